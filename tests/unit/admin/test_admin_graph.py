"""The graph of a pipeline: each box has a place of its own, and lines go to the right."""

from __future__ import annotations

import pytest

from doubles.told_pipelines import told_orders
from quorumbook.admin.console.graph import graph_of

#: From where to where, with what stands beside the line.
EDGES = {
    ("orders/eu", "clean"): "1,000/s", ("clean", "orders/clean"): "120,398",
    ("clean", "orders/bad"): "2", ("orders/clean", "lake"): "0/s", ("jobs", "lake"): "0/s",
    ("lake", "archive"): "300",
}  # fmt: skip


@pytest.mark.parametrize("top", [0, 40])
def test_boxes_have_places_of_their_own_and_lines_go_to_the_right(top: int) -> None:
    graph = graph_of(told_orders()["steps"], top=top)
    at = {box.title: box for box in graph.boxes}
    assert len({(box.x, box.y) for box in graph.boxes}) == len(at) == len(graph.boxes) == 7
    for box in graph.boxes:
        assert 0 <= box.x <= box.x + box.width < graph.width
        assert top <= box.y <= box.y + box.height < graph.height
    labels = {edge[:4]: edge.label for edge in graph.edges}
    assert len(labels) == len(EDGES)
    for (left, right), label in EDGES.items():
        one, other = at[left], at[right]
        begin = one.x + one.width, one.y + one.height // 2
        assert begin[0] < other.x
        assert labels[*begin, other.x, other.y + other.height // 2] == label


def test_a_stream_that_only_a_late_step_reads_stands_right_before_it() -> None:
    at = {box.title: box for box in graph_of(told_orders()["steps"]).boxes}
    assert at["jobs"].x == at["orders/clean"].x > at["orders/eu"].x
