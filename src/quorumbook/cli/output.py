"""Printing results: as an aligned table, JSON, JSON lines, or bare values.

Everything a command finds out goes to standard output in one of these forms and nothing else
does, so that output can be piped.  ``raw`` is for scripts: values separated by tabs, no heading.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import TypeAlias

from quorumbook.errors import QuorumbookError

Row: TypeAlias = Mapping[str, object]

TABLE, JSON, JSONL, RAW = "table", "json", "jsonl", "raw"
#: From here on six digits are not enough for what stands before the point.
_LARGE = 1e6
FORMATS = (TABLE, JSON, JSONL, RAW)


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
                self._line(f"{name:{width}}  {_plain(value)}".rstrip())

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
        """Print things as they are found, where the form allows it.

        What was found before an error is printed in every form.
        """
        if self.form not in (JSONL, RAW):
            found: list[Row] = []
            try:
                async for row in rows:
                    found.append(row)  # noqa: PERF401 - an error keeps what came before it
            except QuorumbookError:
                if found:
                    self.rows(found, columns)
                raise
            self.rows(found, columns, empty=empty)
            return
        async for row in rows:
            self.rows([row], columns)
            sys.stdout.flush()

    def _table(self, rows: Sequence[Row], columns: Sequence[str]) -> None:
        cells = [[_plain(row.get(column, "")) for column in columns] for row in rows]
        widths = [
            max(len(column), *(len(line[index]) for line in cells))
            for index, column in enumerate(columns)
        ]
        numeric = [
            all(isinstance(row.get(column, 0), int | float) for row in rows) for column in columns
        ]
        for line in ([column.replace("_", " ") for column in columns], *cells):
            self._line(
                "  ".join(
                    cell.rjust(width) if is_number else cell.ljust(width)
                    for cell, width, is_number in zip(line, widths, numeric, strict=True)
                ).rstrip()
            )

    def _line(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")


def _plain(value: object) -> str:
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
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
