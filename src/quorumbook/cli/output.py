"""Printing results: as an aligned table, JSON, JSON lines, or bare values.

Everything a command finds out goes to standard output in one of these forms and nothing else
does, so that output can be piped.  ``raw`` is for scripts: values separated by tabs, no heading.
A time is how long ago in a table, and ISO 8601 in every other form.  Sizes and shares of a disk
have units in a table, and are numbers elsewhere.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quorumbook.admin.facts.words import at, since
from quorumbook.errors import QuorumbookError

Row: TypeAlias = Mapping[str, object]

TABLE, JSON, JSONL, RAW = "table", "json", "jsonl", "raw"
#: From here on six digits are not enough for what stands before the point.
_LARGE = 1e6
FORMATS = (TABLE, JSON, JSONL, RAW)
#: Rows of a long table that are aligned together; so many are in memory.
_PIECE = 1000


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A time in a row."""

    at_ms: int

    @classmethod
    def known(cls, at_ms: int | None) -> Moment | None:
        """Return a time; None where the metadata does not say it."""
        return None if at_ms is None or at_ms < 0 else cls(at_ms)

    def __str__(self) -> str:
        return at(self.at_ms)

    def shown(self) -> str:
        """Return how long ago it was."""
        return since(self.at_ms, int(time.time() * 1000))


@dataclass(frozen=True, slots=True)
class Worded:
    """A value that a table has in other words."""

    value: object
    text: str


class Output:
    """One command's output in the form asked for."""

    def __init__(self, form: str) -> None:
        self.form = form

    def record(self, row: Row) -> None:
        """Print one thing with its properties."""
        if self.form == RAW:
            self._line("\t".join(_plain(value) for value in row.values()))
        elif self.form == JSONL:
            self._line(json.dumps(row, default=_json))
        elif self.form == JSON:
            self._line(json.dumps(row, default=_json, indent=2))
        else:
            width = max(map(len, row), default=0)
            for name, value in row.items():
                self._line(f"{name:{width}}  {_shown(value)}".rstrip())

    def rows(self, rows: Iterable[Row], columns: Sequence[str], *, empty: str = "") -> None:
        """Print things of one kind; ``empty`` tells people what to do when there are none."""
        found = list(rows)
        if self.form == JSON:
            self._line(json.dumps(found, default=_json, indent=2))
        elif self.form == JSONL:
            for row in found:
                self._line(json.dumps(row, default=_json))
        elif self.form == RAW:
            for row in found:
                self._line("\t".join(_plain(row.get(column, "")) for column in columns))
        elif found:
            self._table(found, columns)
        elif empty:
            print(empty, file=sys.stderr)

    async def stream(
        self, rows: AsyncIterable[Row], columns: Sequence[str], *, empty: str = ""
    ) -> None:
        """Print things as they are found, a piece at a time.

        What was found before an error is printed in every form.
        """
        lines = _Table(columns)
        piece: list[Row] = []
        count = 0
        try:
            async for row in rows:
                if self.form in (JSONL, RAW):
                    self.rows([row], columns)
                    sys.stdout.flush()
                else:
                    piece.append(row)
                count += 1
                if len(piece) == _PIECE:
                    self._piece(piece, lines, is_first=count == _PIECE)
                    piece = []
        except QuorumbookError:
            if count:
                self._end(piece, lines, count)
            raise
        if count or self.form == JSON:
            self._end(piece, lines, count)
        elif self.form == TABLE and empty:
            print(empty, file=sys.stderr)

    def _piece(self, piece: Sequence[Row], lines: _Table, *, is_first: bool) -> None:
        if self.form == JSON:
            texts = (json.dumps(row, default=_json, indent=2) for row in piece)
            joined = ",\n  ".join(text.replace("\n", "\n  ") for text in texts)
            sys.stdout.write(("[\n  " if is_first else ",\n  ") + joined)
        else:
            for line in lines.of(piece):
                self._line(line)

    def _end(self, piece: Sequence[Row], lines: _Table, count: int) -> None:
        if self.form == JSON:
            if not count:
                self._line("[]")
                return
            if piece:
                self._piece(piece, lines, is_first=count == len(piece))
            self._line("\n]")
        elif piece:
            self._piece(piece, lines, is_first=count == len(piece))

    def _table(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        for line in _Table(columns).of(rows):
            self._line(line)

    def _line(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")


class _Table:
    """A table that grows: its columns never get narrower than they were."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths = [len(column) for column in columns]
        self._numeric: list[bool] = []

    def of(self, rows: Sequence[Row]) -> Iterable[str]:
        """Return the lines of some more rows; with the first, the heading before them."""
        cells = [[_shown(row.get(column, "")) for column in self._columns] for row in rows]
        self._widths = [
            max(width, *(len(line[index]) for line in cells))
            for index, width in enumerate(self._widths)
        ]
        if not self._numeric:
            self._numeric = [
                all(_is_number(row.get(column, 0)) for row in rows) for column in self._columns
            ]
            cells.insert(0, [column.replace("_", " ") for column in self._columns])
        for line in cells:
            yield "  ".join(
                cell.rjust(width) if is_number else cell.ljust(width)
                for cell, width, is_number in zip(line, self._widths, self._numeric, strict=True)
            ).rstrip()


def _is_number(value: object) -> bool:
    return isinstance(value.value if isinstance(value, Worded) else value, int | float)


def _shown(value: object) -> str:
    """Return a value for people."""
    if isinstance(value, Worded):
        return value.text
    return value.shown() if isinstance(value, Moment) else _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, Worded):
        value = value.value
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < _LARGE else f"{value:.0f}"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_plain(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ",".join(_plain(item) for item in value)
    return str(value)


def _json(value: object) -> object:
    if isinstance(value, Worded):
        return value.value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
