"""Numbers of the streams that this process writes and reads, for Prometheus.

    stream_writer_<name>{namespace, stream}    what its writers did
    stream_reader_<name>{namespace, stream}    what its readers did, and where they are

Counters are plain attributes, raised once for an entry or a batch, never for a record.  What rises
and falls (what is pending, how far behind a reader is) is asked of open writers and readers when
somebody looks.  ``STREAM_METRICS`` is all of it and a collector of prometheus_client's: an
application registers it where it registers its own.

How far cursors are behind is measured by the auditor (``autorecovery.stream_retention``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from quorumbook.metric_texts import text_of

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

#: Upper bounds of the append histogram's buckets.
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
#: Streams that nobody here has open are forgotten beyond so many.
_REMEMBERED = 1000
_LABELS = ("namespace", "stream")
_NS = 1_000_000_000


class OpenWriter(Protocol):
    """What a writer is asked."""

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        ...


class OpenReader(Protocol):
    """What a reader is asked."""

    @property
    def read_ahead_bytes(self) -> int:
        """What segments read ahead take in memory."""
        ...

    @property
    def lag_s(self) -> float:
        """How old the newest record handed out is; 0 if there are no others."""
        ...

    @property
    def idle_reason(self) -> str:
        """Why nothing comes; empty while something does."""
        ...


class StreamNumbers:
    """The numbers of one stream; counted in place."""

    def __init__(self) -> None:
        self.writers: WeakSet[OpenWriter] = WeakSet()
        self.readers: WeakSet[OpenReader] = WeakSet()
        self.records_written = 0
        #: Of entries, as stored.
        self.bytes_written = 0
        self.entries_written = 0
        self.segments_completed = 0
        self.records_reappended = 0
        self.writers_fenced = 0
        self.records_read = 0
        self.batches_read = 0
        self.append_sum_s = 0.0
        #: Records by how long they took, the last for whatever is above all bounds.
        self.appends = [0] * (len(_BOUNDS_S) + 1)

    def on_stored(self, entries: int, records: int, size_bytes: int, took_ns: int) -> None:
        """Count entries that are safe, and how long ago their first record was appended."""
        took_s = took_ns / _NS
        self.records_written += records
        self.bytes_written += size_bytes
        self.entries_written += entries
        self.append_sum_s += took_s * records
        self.appends[bisect_left(_BOUNDS_S, took_s)] += records

    def counters(self) -> dict[str, int]:
        """Return what only rises, by name."""
        return {
            "stream_writer_records_total": self.records_written,
            "stream_writer_bytes_total": self.bytes_written,
            "stream_writer_entries_total": self.entries_written,
            "stream_writer_segments_completed_total": self.segments_completed,
            "stream_writer_reappended_records_total": self.records_reappended,
            "stream_writer_fenced_total": self.writers_fenced,
            "stream_reader_records_total": self.records_read,
            "stream_reader_batches_total": self.batches_read,
        }

    def gauges(self) -> dict[str, float]:
        """Return what is asked of whatever is open, by name."""
        readers = list(self.readers)
        return {
            "stream_writer_open": len(self.writers),
            "stream_writer_pending_records": sum(w.pending_records for w in list(self.writers)),
            "stream_reader_open": len(readers),
            "stream_reader_read_ahead_bytes": sum(r.read_ahead_bytes for r in readers),
            "stream_reader_lag_seconds": max((r.lag_s for r in readers), default=0.0),
        }


class StreamMetrics:
    """The numbers of all streams of a process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], StreamNumbers] = {}

    def of(self, namespace: str, stream: str) -> StreamNumbers:
        """Return the numbers of one stream."""
        found = self._known.pop((namespace, stream), None) or StreamNumbers()
        self._known[namespace, stream] = found
        if len(self._known) > _REMEMBERED:
            for name, numbers in self._known.items():
                if numbers is not found and not numbers.writers and not numbers.readers:
                    del self._known[name]
                    break
        return found

    def collect(self) -> Iterable[Metric]:
        """Yield everything as metric families."""
        # It takes a tenth of what it takes to import streams, which each worker of Spark does.
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        known = list(self._known.items())
        yield from _families(
            ((name, numbers.counters()) for name, numbers in known), CounterMetricFamily
        )
        yield from _families(
            ((name, numbers.gauges()) for name, numbers in known), GaugeMetricFamily
        )
        times = HistogramMetricFamily(
            "stream_writer_append_seconds",
            text_of("stream_writer_append_seconds"),
            labels=_LABELS,
        )
        idle = GaugeMetricFamily(
            "stream_reader_idle",
            text_of("stream_reader_idle"),
            labels=(*_LABELS, "reason"),
        )
        for name, numbers in known:
            times.add_metric(name, list(_cumulated(numbers.appends)), numbers.append_sum_s)
            reasons = [reader.idle_reason for reader in list(numbers.readers)]
            for reason in sorted({*reasons} - {""}):
                idle.add_metric((*name, reason), reasons.count(reason))
        yield times
        yield idle


def _families(
    rows: Iterable[
        tuple[tuple[str, str], dict[str, float]] | tuple[tuple[str, str], dict[str, int]]
    ],
    kind: type[CounterMetricFamily | GaugeMetricFamily],
) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    for labels, values in rows:
        for name, value in values.items():
            family = families.setdefault(name, kind(name, text_of(name), labels=_LABELS))
            family.add_sample(name, dict(zip(_LABELS, labels, strict=True)), value)
    return families.values()


def _cumulated(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip([*map(str, _BOUNDS_S), "+Inf"], counts, strict=True):
        total += count
        yield bound, total


STREAM_METRICS = StreamMetrics()
"""What this process counts of all its streams; prometheus_client collects it."""
