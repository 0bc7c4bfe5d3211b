"""The graph of a pipeline with its rates, as an SVG; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorumbook.admin.console.graph import Box, Edge, graph_of
from quorumbook.spark.svg import svg_text

_TOP = 40
_LINE = "#8a99a8"
_FILLS = {
    "stream": "#eef3f8", "files": "#eef3f8", "letters": "#fbeeee", "running": "#dff0e3",
    "waiting": "#fdf3d8", "failed": "#f6d5d5", "done": "#e9e9e9", "stopped": "#e9e9e9",
}  # fmt: skip


def picture(told: Mapping[str, Any]) -> str:
    """Return the picture: streams, steps, and what goes between them.

    Args:
        told: What the pipeline tells of itself (``telling``).
    """
    graph = graph_of(told["steps"], top=_TOP)
    width, height = graph.width, graph.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        svg_text(20, 32, told["name"], size=17, weight=600),
    ]
    for edge in graph.edges:
        parts += _drawn_edge(edge)
    for box in graph.boxes:
        parts += _drawn_box(box)
    return "\n".join([*parts, "</svg>\n"])


def _drawn_edge(edge: Edge) -> list[str]:
    return [
        f'<path d="{edge.line}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>',
        f'<path d="{edge.head}" fill="{_LINE}"/>',
        svg_text(*edge.at, edge.label, anchor="middle", fill="#555"),
    ]


def _drawn_box(box: Box) -> list[str]:
    line = box.y + 21 if box.lines else box.y + box.height // 2 + 4
    return [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
        f' rx="{12 if box.is_step else 2}" fill="{_FILLS[box.kind]}" stroke="{_LINE}"/>',
        svg_text(box.middle, line, box.title, anchor="middle", weight=600),
        *(
            svg_text(box.middle, line + 15 * number, text, anchor="middle", size=11, fill="#444")
            for number, text in enumerate(box.lines, 1)
        ),
    ]
