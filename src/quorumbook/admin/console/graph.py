"""The graph of a pipeline: where streams and steps stand, and what goes between them; pure.

It is made of what a pipeline tells of itself.  Sizes are pixels; how it looks is left to whoever
draws it, the console or a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

#: Five columns are as wide as a page of the console.
BOX_WIDTH, BOX_HEIGHT = 180, 58
_GAP_X, _GAP_Y, _EDGE = 66, 22, 20
_FILES = "parquet:"


class Box(NamedTuple):
    """A stream, a step, or a directory of files."""

    x: int
    y: int
    title: str
    lines: tuple[str, ...]
    #: ``stream``, ``letters``, ``files``, or the state of a step.
    kind: str
    is_step: bool
    width: int = BOX_WIDTH
    height: int = BOX_HEIGHT

    @property
    def middle(self) -> int:
        """Where its words are, from the left."""
        return self.x + self.width // 2


class Edge(NamedTuple):
    """What a step reads or writes, from the right of one box to the left of another."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str

    @property
    def line(self) -> str:
        """The path of the line, as SVG has it."""
        middle = (self.x1 + self.x2) // 2
        return (
            f"M{self.x1} {self.y1} C{middle} {self.y1} {middle} {self.y2} {self.x2 - 6} {self.y2}"
        )

    @property
    def head(self) -> str:
        """The path of the arrow's head."""
        return f"M{self.x2 - 7} {self.y2 - 4} L{self.x2} {self.y2} L{self.x2 - 7} {self.y2 + 4} Z"

    @property
    def at(self) -> tuple[int, int]:
        """Where the middle of the label's foot is."""
        return (self.x1 + self.x2) // 2, (self.y1 + self.y2) // 2 - 5


class Graph(NamedTuple):
    """A whole picture."""

    width: int
    height: int
    boxes: list[Box]
    edges: list[Edge]


def graph_of(steps: Sequence[Mapping[str, Any]], *, top: int = 0) -> Graph:
    """Return the graph of a pipeline.

    Args:
        steps: What it tells of each step; one comes behind those that write what it reads.
        top: Room that is left free above.
    """
    columns = _columns(steps)
    places: dict[str, tuple[int, int]] = {}
    taken: dict[int, int] = {}
    for key in (key for step in steps for key in _keys(step)):
        if key not in places:
            column = columns[key]
            row = taken[column] = taken.get(column, -1) + 1
            y = top + _EDGE + row * (BOX_HEIGHT + _GAP_Y)
            places[key] = _EDGE + column * (BOX_WIDTH + _GAP_X), y
    letters = {step["dead_letter_stream"] for step in steps}
    by_name = {f"step:{step['step']}": step for step in steps}
    boxes = [_box(key, place, by_name.get(key), letters) for key, place in places.items()]
    edges = [
        Edge(x1 + BOX_WIDTH, y1 + BOX_HEIGHT // 2, x2, y2 + BOX_HEIGHT // 2, label)
        for begin, end, label in _edges(steps)
        for (x1, y1), (x2, y2) in [(places[begin], places[end])]
    ]
    width = 2 * _EDGE + (max(columns.values()) + 1) * (BOX_WIDTH + _GAP_X) - _GAP_X
    height = top + 2 * _EDGE + (max(taken.values()) + 1) * (BOX_HEIGHT + _GAP_Y) - _GAP_Y
    return Graph(width, height, boxes, edges)


def _keys(step: Mapping[str, Any]) -> Iterator[str]:
    """Return what a step reads, itself, and what it writes."""
    yield from (f"stream:{name}" for name in step["sources"])
    yield f"step:{step['step']}"
    yield from _ends(step)


def _ends(step: Mapping[str, Any]) -> Iterator[str]:
    target = step["target"]
    yield f"files:{target}" if target.startswith(_FILES) else f"stream:{target}"
    if step["dead_letter_stream"]:
        yield f"stream:{step['dead_letter_stream']}"


def _columns(steps: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how far to the right each box is."""
    columns: dict[str, int] = {}
    for step in steps:
        before = [columns.get(f"stream:{name}", 0) for name in step["sources"]]
        here = columns[f"step:{step['step']}"] = max(before, default=0) + 1
        for key in _ends(step):
            columns[key] = max(columns.get(key, 0), here + 1)
    written = set(columns)
    for step in steps:
        for name in step["sources"]:
            if f"stream:{name}" not in written:
                columns[f"stream:{name}"] = columns[f"step:{step['step']}"] - 1
    return columns


def _edges(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for step in steps:
        own = f"step:{step['step']}"
        for name in step["sources"]:
            yield f"stream:{name}", own, f"{step['input_rate']:,.0f}/s"
        counts = step["rows_written"], step["dead_letters"]
        for key, count in zip(_ends(step), counts, strict=False):
            yield own, key, f"{count:,}"


def _box(
    key: str, place: tuple[int, int], step: Mapping[str, Any] | None, letters: set[str | None]
) -> Box:
    kind, _, name = key.partition(":")
    if step is not None:
        state = step["state"]
        if step["restarts"]:
            state += f", {step['restarts']} restarts"
        lag = f"{step['lag_entries']:,} behind ({step['lag_s']:.0f} s)"
        lines = state, f"{step['commits']:,} commits, {lag}"
        return Box(*place, name, lines, step["state"], is_step=True)
    if kind == "files":
        return Box(*place, name.rstrip("/").rpartition("/")[2], ("Parquet",), kind, is_step=False)
    return Box(*place, name, (), "letters" if name in letters else kind, is_step=False)
