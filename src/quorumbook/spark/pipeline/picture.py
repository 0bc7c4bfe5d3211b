"""The graph of a pipeline with its rates, as an SVG; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quorumbook.spark.pipeline.declaration import Pipeline, PipelineStep
from quorumbook.spark.pipeline.numbers import StepNumbers
from quorumbook.spark.svg import svg_text

_W, _H, _GAP_X, _GAP_Y, _EDGE, _TOP = 190, 58, 110, 22, 20, 60
_STREAM, _LETTERS, _LINE = "#eef3f8", "#fbeeee", "#8a99a8"
_STATES = {"running": "#dff0e3", "waiting": "#fdf3d8", "failed": "#f6d5d5", "done": "#e9e9e9"}


class _Box(NamedTuple):
    title: str
    lines: tuple[str, ...]
    fill: str
    is_step: bool


class _Edge(NamedTuple):
    begin: str
    end: str
    label: str


def graph(pipeline: Pipeline, numbers: Mapping[str, StepNumbers]) -> str:
    """Return the picture: streams, steps, and what goes between them.

    Args:
        pipeline: The pipeline.
        numbers: What is known of each step, by name.
    """
    nodes, edges = _parts(pipeline, numbers)
    columns = _columns(pipeline)
    rows: dict[str, int] = {}
    taken: dict[int, int] = {}
    for key in nodes:
        rows[key] = taken.get(columns[key], 0)
        taken[columns[key]] = rows[key] + 1
    width = 2 * _EDGE + (max(columns.values()) + 1) * (_W + _GAP_X) - _GAP_X
    height = _TOP + max(taken.values()) * (_H + _GAP_Y) + _EDGE
    places = {
        key: (_EDGE + columns[key] * (_W + _GAP_X), _TOP + rows[key] * (_H + _GAP_Y))
        for key in nodes
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        svg_text(_EDGE, 32, pipeline.whole.name, size=17, weight=600),
    ]
    for edge in edges:
        parts += _drawn_edge(places[edge.begin], places[edge.end], edge.label)
    for key, node in nodes.items():
        parts += _drawn_node(*places[key], node)
    return "\n".join([*parts, "</svg>\n"])


def _parts(
    pipeline: Pipeline, numbers: Mapping[str, StepNumbers]
) -> tuple[dict[str, _Box], list[_Edge]]:
    nodes: dict[str, _Box] = {}
    edges = []
    letters = {step.dead_letters for step in pipeline.steps}

    def stream(name: str) -> str:
        fill = _LETTERS if name in letters else _STREAM
        nodes.setdefault(f"stream:{name}", _Box(name, (), fill, is_step=False))
        return f"stream:{name}"

    for step in pipeline.steps:
        found = numbers[step.name]
        key = f"step:{step.name}"
        rate = f"{found.input_rate:,.0f}/s"
        edges += [_Edge(stream(name), key, rate) for name in step.sources]
        nodes[key] = _step_node(step, found)
        if step.directory:
            files = f"files:{step.directory}"
            title = step.directory.rstrip("/").rpartition("/")[2]
            nodes.setdefault(files, _Box(title, ("Parquet",), _STREAM, is_step=False))
            edges.append(_Edge(key, files, f"{found.rows_written:,}"))
        if step.stream:
            edges.append(_Edge(key, stream(step.stream), f"{found.rows_written:,}"))
        if step.dead_letters:
            edges.append(_Edge(key, stream(step.dead_letters), f"{found.dead_letters:,}"))
    return nodes, edges


def _step_node(step: PipelineStep, found: StepNumbers) -> _Box:
    state = found.state if not found.restarts else f"{found.state}, {found.restarts} restarts"
    lag = f"{found.commits:,} commits, {found.lag_entries:,} behind ({found.lag_s:.0f} s)"
    return _Box(step.name, (state, lag), _STATES[found.state], is_step=True)


def _columns(pipeline: Pipeline) -> dict[str, int]:
    """Return how far to the right each node is; steps come in the order in which they read."""
    columns: dict[str, int] = {}
    for step in pipeline.steps:
        before = [columns.setdefault(f"stream:{name}", 0) for name in step.sources]
        here = columns[f"step:{step.name}"] = max(before) + 1
        for key in _ends(step):
            columns[key] = max(columns.get(key, 0), here + 1)
    return columns


def _ends(step: PipelineStep) -> Sequence[str]:
    files = [f"files:{step.directory}"] if step.directory else []
    return [*files, *(f"stream:{name}" for name in step.written)]


def _drawn_edge(begin: tuple[int, int], end: tuple[int, int], label: str) -> list[str]:
    x1, y1, x2, y2 = begin[0] + _W, begin[1] + _H // 2, end[0], end[1] + _H // 2
    middle = (x1 + x2) // 2
    return [
        f'<path d="M{x1} {y1} C{middle} {y1} {middle} {y2} {x2 - 6} {y2}" fill="none"'
        f' stroke="{_LINE}" stroke-width="1.5"/>',
        f'<path d="M{x2 - 7} {y2 - 4} L{x2} {y2} L{x2 - 7} {y2 + 4} Z" fill="{_LINE}"/>',
        svg_text(middle, (y1 + y2) // 2 - 5, label, anchor="middle", fill="#555"),
    ]


def _drawn_node(x: int, y: int, node: _Box) -> list[str]:
    radius = 12 if node.is_step else 2
    line = y + 21 if node.lines else y + _H // 2 + 4
    return [
        f'<rect x="{x}" y="{y}" width="{_W}" height="{_H}" rx="{radius}" fill="{node.fill}"'
        f' stroke="{_LINE}"/>',
        svg_text(x + _W // 2, line, node.title, anchor="middle", weight=600),
        *(
            svg_text(x + _W // 2, line + 15 * number, text, anchor="middle", size=11, fill="#444")
            for number, text in enumerate(node.lines, 1)
        ),
    ]
