"""The numbers of a pipeline for Prometheus; ``docs/spark.md`` has the same words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumbook.spark.pipeline.numbers import StepNumbers

#: What each tells; what only rises ends with ``_total``.
TEXTS: Mapping[str, str] = {
    "running": "1 while a step runs, 0 while it waits to be started again, failed or is done",
    "commits_total": "batches that were done, each of which is one commit",
    "records_read_total": "records that batches have read",
    "rows_written_total": "rows that batches have written, dead letters not counted",
    "dead_letters_total": "records that could not be decoded and went to the stream for those",
    "restarts_total": "times that a step was started again because it had failed",
    "input_records_per_second": "records a second that came, by the last batch",
    "records_per_second": "records a second that were done, by the last batch",
    "batch_seconds": "how long the last batch took",
    "lag_entries": "entries that were not read when the last batch began",
    "lag_bytes": "the same in bytes",
    "lag_seconds": "age of the oldest of them",
    "stream_lag_entries": "the same by stream and partition; the 20 that are the furthest behind",
    "segments": "segments of the streams that a step writes",
    "segments_merged_total": "segments of those that were merged into others",
    "segments_retired_total": "segments of those that retention took",
}
_FIELDS = {
    "commits_total": "commits", "records_read_total": "records_read",
    "rows_written_total": "rows_written", "dead_letters_total": "dead_letters",
    "restarts_total": "restarts", "input_records_per_second": "input_rate",
    "records_per_second": "rate", "batch_seconds": "batch_s", "lag_entries": "lag_entries",
    "lag_bytes": "lag_bytes", "lag_seconds": "lag_s", "segments": "segments",
    "segments_merged_total": "segments_merged", "segments_retired_total": "segments_retired",
}  # fmt: skip
_PREFIX = "quorumbook_pipeline_"


class PipelineMetrics:
    """A collector of prometheus_client's.

    Args:
        pipeline: The pipeline's name.
        numbers: Returns what is known of each step, by name.
    """

    def __init__(self, pipeline: str, numbers: Callable[[], Mapping[str, StepNumbers]]) -> None:
        self._pipeline = pipeline
        self._numbers = numbers

    def collect(self) -> Iterable[Metric]:
        """Yield everything as metric families."""
        steps = dict(self._numbers())
        for name, text in TEXTS.items():
            full = _PREFIX + name
            labels = ("pipeline", "step", *(["stream"] if name == "stream_lag_entries" else []))
            kind: Any = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(full, text, labels=labels)
            for step, found in steps.items():
                own = self._pipeline, step
                if name == "stream_lag_entries":
                    for stream, entries in found.lag_by_stream.items():
                        family.add_metric((*own, stream), entries)
                elif name == "running":
                    family.add_metric(own, found.state == "running")
                else:
                    family.add_metric(own, getattr(found, _FIELDS[name]))
            yield family
