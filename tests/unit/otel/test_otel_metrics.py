"""Metric families as instruments: the same names and numbers, whoever asks from which thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from doubles.waiting import until
from quorumbook.otel import metrics
from quorumbook.otel.metrics import MeteredFamilies


class Numbers:
    """What a server counts."""

    def __init__(self) -> None:
        self.adds = 3
        self.disks: dict[str, float] = {"a": 0.5, "nan": math.nan}
        self.loops: set[object] = set()

    def families(self) -> Iterator[Metric]:
        try:
            self.loops.add(asyncio.get_running_loop())
        except RuntimeError:
            self.loops.add(None)
        adds = CounterMetricFamily("adds", "Entries that were added.")
        adds.add_metric([], self.adds)
        usage = GaugeMetricFamily("usage", "How full a disk is.", labels=["disk"])
        for disk, value in self.disks.items():
            usage.add_metric([disk], value)
        yield from (adds, usage, SummaryMetricFamily("took", "", count_value=2, sum_value=0.5))
        if "late" in self.disks:
            yield GaugeMetricFamily("late", "Was not there at first.", value=1)


def sent(reader: InMemoryMetricReader) -> dict[str, dict[tuple, float]]:
    data = reader.get_metrics_data()
    return {
        metric.name: {
            tuple(point.attributes.items()): point.value for point in metric.data.data_points
        }
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_every_sample_is_an_instrument_and_what_is_no_number_is_left_out(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "_LOOK_SERVES_S", 0)
    reader, numbers = InMemoryMetricReader(), Numbers()
    metered = MeteredFamilies(MeterProvider([reader]).get_meter("test"), numbers.families)
    assert sent(reader) == {
        "adds_total": {(): 3},
        "usage": {(("disk", "a"),): 0.5},
        "took_count": {(): 2},
        "took_sum": {(): 0.5},
    }
    numbers.adds = 4
    assert sent(reader)["adds_total"] == {(): 4}
    metered.end()
    assert sent(reader) == {}


async def test_what_belongs_to_a_loop_is_asked_there(monkeypatch) -> None:
    monkeypatch.setattr(metrics, "_LOOK_SERVES_S", 0)
    reader, numbers, loop = InMemoryMetricReader(), Numbers(), asyncio.get_running_loop()
    MeteredFamilies(MeterProvider([reader]).get_meter("test"), numbers.families, loop)
    assert (await asyncio.to_thread(sent, reader))["adds_total"] == {(): 3}
    assert numbers.loops == {loop}
    numbers.disks["late"] = 0.0

    async def is_sent() -> bool:
        return "late" in await asyncio.to_thread(sent, reader)

    await until(is_sent)


def test_a_loop_that_is_over_answers_nothing() -> None:
    reader, numbers, loop = InMemoryMetricReader(), Numbers(), asyncio.new_event_loop()
    MeteredFamilies(MeterProvider([reader]).get_meter("test"), numbers.families, loop)
    loop.close()
    assert sent(reader) == {}
