"""What an auditor knows of streams, for Prometheus: deletions, cursors' lag, orphans.

    stream_retention_<name>{namespace}                what its retention deleted
    stream_cursor_lag_<unit>{namespace, stream, cursor}  how far cursors, and with them consumer
                                                      groups, are behind; as of the last look
    stream_orphan_<name>{namespace}                   ledgers that nothing refers to; daily

The last two are there in the auditor's process only, and gone when its term is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumbook.metric_texts import text_of
from quorumbook.streams import Lag, Orphan, RetentionReport

_LAGS = {"records": 0, "bytes": 1, "seconds": 2}


class StreamsFound:
    """What was found and done; fed by ``StreamRetention``."""

    def __init__(self) -> None:
        self._deleted: Counter[tuple[str, str]] = Counter()
        #: By namespace, and in it by stream and cursor.
        self._lags: dict[str, dict[tuple[str, str], Lag]] = {}
        self._orphans: dict[str, tuple[int, int]] = {}

    def add_deleted(self, namespace: str, report: RetentionReport) -> None:
        """Count what retention let go of."""
        self._deleted["segments_deleted", namespace] += len(report.segments)
        self._deleted["records_deleted", namespace] += sum(s.record_count for s in report.segments)
        self._deleted["cursors_overrun", namespace] += len(report.overrun)

    def set_lags(self, namespace: str, lags: dict[tuple[str, str], Lag]) -> None:
        """Replace what is known of a namespace's cursors, by stream and cursor."""
        self._lags[namespace] = lags

    def set_orphans(self, namespace: str, orphans: Sequence[Orphan]) -> None:
        """Replace what is known of a namespace's orphans."""
        self._orphans[namespace] = len(orphans), sum(orphan.size_bytes for orphan in orphans)

    def forget(self) -> None:
        """Somebody else is auditor now, and says how things are."""
        self._lags.clear()
        self._orphans.clear()

    def families(self) -> Iterable[Metric]:
        """Yield everything as metric families."""
        for name in ("segments_deleted", "records_deleted", "cursors_overrun"):
            full = f"stream_retention_{name}"
            # CounterMetricFamily would append "_total" to the name.
            counter = CounterMetricFamily(full, text_of(full))
            for (kind, namespace), count in sorted(self._deleted.items()):
                if kind == name:
                    counter.add_sample(full, {"namespace": namespace}, count)
            yield counter
        labels = ("namespace", "stream", "cursor")
        for unit, index in _LAGS.items():
            full = f"stream_cursor_lag_{unit}"
            gauge = GaugeMetricFamily(full, text_of(full), labels=labels)
            for namespace, lags in self._lags.items():
                for (stream, cursor), lag in lags.items():
                    value = lag[index]
                    if value is not None or unit == "seconds":
                        gauge.add_metric((namespace, stream, cursor), value or 0)
            yield gauge
        for index, name in enumerate(("ledgers", "bytes")):
            full = f"stream_orphan_{name}"
            gauge = GaugeMetricFamily(full, text_of(full), labels=("namespace",))
            for namespace, found in self._orphans.items():
                gauge.add_metric((namespace,), found[index])
            yield gauge
