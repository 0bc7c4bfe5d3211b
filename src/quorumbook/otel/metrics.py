"""Metrics of this process by OpenTelemetry: numbers, names and labels are those of Prometheus.

A sample's name is an instrument: what only rises (a counter, and the counts, sums and buckets of a
distribution) an observable counter, everything else an observable gauge.  The reader of metrics
asks from a thread of its own; what is asked may belong to an event loop, which answers then.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from prometheus_client.core import Metric

#: Instruments are asked one after the other; one look serves all of them for so long.
_LOOK_SERVES_S = 0.5
_LOOP_ANSWERS_S = 5.0
_RISING = ("_total", "_count", "_sum", "_bucket")

Families: TypeAlias = Callable[[], Iterable[Metric]]


class MeteredFamilies:
    """The instruments of what yields metric families; they live as long as their provider.

    Args:
        meter: Where they are made.
        families: Asked whenever the provider's reader wants numbers.
        loop: Where that is to be called; in the reader's thread if not given.
    """

    def __init__(
        self, meter: Meter, families: Families, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._meter = meter
        self._families = families
        self._loop = loop
        self._names: set[str] = set()
        self._seen: dict[str, list[Observation]] = {}
        self._seen_at_s = float("-inf")
        self._is_over = False
        self._make(families())

    def end(self) -> None:
        """Tell nothing any more: what was asked is gone."""
        self._is_over = True
        self._seen = {}

    def _make(self, families: Iterable[Metric]) -> None:
        for family in families:
            for sample in family.samples:
                if sample.name in self._names:
                    continue
                self._names.add(sample.name)
                rises = family.type == "counter" or (
                    family.type in ("summary", "histogram") and sample.name.endswith(_RISING)
                )
                kind = "counter" if rises else "gauge"
                make = getattr(self._meter, f"create_observable_{kind}")
                make(sample.name, [partial(self._observe, sample.name)], "", family.documentation)

    def _observe(self, name: str, _options: CallbackOptions) -> list[Observation]:
        if time.monotonic() - self._seen_at_s > _LOOK_SERVES_S and not self._is_over:
            self._look()
        return self._seen.get(name, [])

    def _look(self) -> None:
        families = self._asked()
        seen: dict[str, list[Observation]] = {}
        for family in families:
            for sample in family.samples:
                if math.isfinite(sample.value):  # a quantile of nothing is not
                    seen.setdefault(sample.name, []).append(
                        Observation(sample.value, sample.labels)
                    )
        self._seen, self._seen_at_s = seen, time.monotonic()
        if not seen.keys() <= self._names:
            # Not here: the provider holds its lock while it asks.
            threading.Thread(target=self._make, args=(families,), daemon=True).start()

    def _asked(self) -> list[Metric]:
        if self._loop is None:
            return list(self._families())

        answer: Future[list[Metric]] = Future()

        def ask() -> None:
            try:
                answer.set_result(list(self._families()))
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(ask)
            return answer.result(_LOOP_ANSWERS_S)
        except (TimeoutError, RuntimeError):  # it is busy, or closed
            return []
