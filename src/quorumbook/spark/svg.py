"""What pictures in SVG have in common; pure.  What they show is each picture's own."""

from __future__ import annotations

import html


def svg_text(
    x: int, y: int, text: str, *, size: int = 12, weight: int = 400,
    anchor: str = "start", fill: str = "#222",
) -> str:  # fmt: skip
    """Return a line of text at a place, in pixels."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
        f' fill="{fill}">{html.escape(text)}</text>'
    )
