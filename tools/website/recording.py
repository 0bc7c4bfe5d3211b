"""Draws what a command prints in a terminal: ``python -m tools.website.recording``.

``make picture`` runs the demo, in which a bookie is killed, and writes
``docs/images/demo.svg``.  The picture needs no font and nothing else from elsewhere.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path

_COLUMNS, _CHARACTER, _LINE, _EDGE = 100, 7.83, 20, 18
_OUTPUT = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"


def drawn(command: str, printed: str) -> str:
    """Return a picture of a terminal in which a command printed something."""
    lines = [f"$ {command}"]
    for line in printed.strip().splitlines():
        lines += textwrap.wrap(line, _COLUMNS) or [""]
    width, height = _COLUMNS * _CHARACTER + 2 * _EDGE, len(lines) * _LINE + 2 * _EDGE + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"'
        f' aria-label="{escape(command)}" font-size="13" font-family="ui-monospace, Menlo,'
        ' Consolas, monospace"><rect width="100%" height="100%" rx="8" fill="#1d2330"/>'
    ]
    for at, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        parts.append(f'<circle cx="{22 + 20 * at}" cy="20" r="6" fill="{colour}"/>')
    for at, line in enumerate(lines):
        colour = "#7fd1b9" if at == 0 else "#ffb86b" if "kill" in line else "#e6e9ef"
        y = 24 + _EDGE + _LINE * (at + 1) - 6
        parts.append(
            f'<text x="{_EDGE}" y="{y}" fill="{colour}" xml:space="preserve"'
            f' textLength="{len(line) * _CHARACTER:.0f}">{escape(line)}</text>'
            if line
            else ""
        )
    return "".join([*parts, "</svg>\n"])


def main() -> None:
    """Run the demo and draw it."""
    done = subprocess.run(
        [sys.executable, "-m", "quorumbook", "demo"], capture_output=True, text=True, check=True
    )
    _OUTPUT.parent.mkdir(exist_ok=True)
    _OUTPUT.write_text(drawn("quorumbook demo", done.stdout), encoding="utf-8")


if __name__ == "__main__":
    main()
