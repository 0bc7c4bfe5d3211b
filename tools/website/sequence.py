"""Blocks that say who sends what to whom become drawings.

    ```sequence
    writer, bookie 1, bookie 2
    writer -> bookie 1: add 0
    bookie 1 -> writer: synced
    note writer: entry 0 is safe
    ```

The first line names the actors from left to right.  Each line after it is a message, which is
drawn as an arrow, or a note over an actor.  ``-x`` instead of ``->`` is a message that gets lost
or is refused.  The drawing takes the colours of the page, so it suits light and dark.
"""

from __future__ import annotations

import re
from html import escape

_BLOCK = re.compile(r"^```sequence\n(.*?)^```$", re.M | re.S)
_MESSAGE = re.compile(r"(.+?) -([>x]) (.+?): (.*)")
_NOTE = re.compile(r"note (.+?): (.*)")
_COLUMN, _ROW, _TOP, _CHARACTER = 170, 44, 58, 7.0


def drawn(markdown: str) -> str:
    """Put a drawing in the place of each block."""
    return _BLOCK.sub(lambda match: svg(match[1]), markdown)


def svg(text: str) -> str:
    """Draw one block.

    Raises:
        ValueError: A line is not a message or a note, or names an actor that is not there.
    """
    head, *lines = [line.strip() for line in text.strip().splitlines()]
    actors = [name.strip() for name in head.split(",")]
    middle = {name: _COLUMN * at + _COLUMN / 2 for at, name in enumerate(actors)}
    width, height = _COLUMN * len(actors), _TOP + _ROW * len(lines) + 18
    parts = [
        f'<figure><svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escape(head)}" font-size="13" fill="currentColor" '
        'font-family="system-ui, sans-serif">'
    ]
    for name, x in middle.items():
        parts.append(
            f'<rect x="{x - 62}" y="6" width="124" height="28" rx="6" fill="none" '
            'stroke="currentColor"/>'
            f'<text x="{x}" y="25" text-anchor="middle" font-weight="600">{escape(name)}</text>'
            f'<line x1="{x}" y1="34" x2="{x}" y2="{height - 6}" stroke="currentColor" '
            'stroke-opacity=".35" stroke-dasharray="4 4"/>'
        )
    for at, line in enumerate(lines):
        parts.append(_line(line, middle, width, _TOP + _ROW * at + 14))
    return "".join([*parts, "</svg></figure>"])


def _line(line: str, middle: dict[str, float], width: float, y: float) -> str:
    note = _NOTE.fullmatch(line)
    if note:
        return _note(note[2], middle[_known(note[1], middle)], width, y)
    message = _MESSAGE.fullmatch(line)
    if message is None:
        raise ValueError(f"neither a message nor a note: {line!r}")
    start, end = middle[_known(message[1], middle)], middle[_known(message[3], middle)]
    lost = message[2] == "x"
    way = 1 if end > start else -1
    tip = end - way * (26 if lost else 2)
    colour = "#d64545" if lost else "#0f8f82"
    head = (
        f'<path d="M{tip - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="{colour}" stroke-width="2"/>'
        if lost
        else f'<path d="M{tip} {y} l{-way * 9} -5 v10 z" fill="{colour}"/>'
    )
    return (
        f'<text x="{(start + end) / 2}" y="{y - 7}" text-anchor="middle">'
        f'{escape(message[4])}</text><line x1="{start}" y1="{y}" x2="{tip}" y2="{y}" '
        f'stroke="{colour}" stroke-width="1.6"/>{head}'
    )


def _note(text: str, x: float, width: float, y: float) -> str:
    size = max(60.0, len(text) * _CHARACTER + 16)
    left = min(max(2.0, x - size / 2), max(2.0, width - size - 2))
    return (
        f'<rect x="{left}" y="{y - 20}" width="{size}" height="26" rx="4" fill="#e0a800" '
        'fill-opacity=".22" stroke="#e0a800"/>'
        f'<text x="{left + size / 2}" y="{y - 2}" text-anchor="middle">{escape(text)}</text>'
    )


def _known(name: str, middle: dict[str, float]) -> str:
    if name.strip() not in middle:
        raise ValueError(f"no such actor: {name!r}; there are {', '.join(middle)}")
    return name.strip()
