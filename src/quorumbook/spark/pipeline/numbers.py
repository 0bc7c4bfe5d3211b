"""What is known of each step, of the progress that Spark reports; pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: What a query counts of what it writes: Spark's observed metrics have it under this name.
OBSERVED = "quorumbook"
_MS = 1000.0


class StreamSegments(NamedTuple):
    """The segments of a stream or partition at a moment."""

    #: The first one's number: a merge moves those before it up, retention takes the first ones.
    first: int
    #: With which sequence ids they begin; below 0 where nobody knows.
    starts: tuple[int, ...]


@dataclass(slots=True)
class StepNumbers:
    """One step, from its start by this process on."""

    #: How often its query reads each record; Spark counts each time.
    scans: int = 1
    #: ``running``, ``waiting`` to be started again, ``failed`` for good, ``done``.
    state: str = "waiting"
    #: Batches that were done, each with one commit.
    commits: int = 0
    records_read: int = 0
    rows_written: int = 0
    dead_letters: int = 0
    restarts: int = 0
    #: Of the last batch: records a second that came, and that were done.
    input_rate: float = 0.0
    rate: float = 0.0
    batch_s: float = 0.0
    #: What was not read when the last batch began.
    lag_entries: int = 0
    lag_bytes: int = 0
    lag_s: float = 0.0
    #: The same in entries, by stream or partition; those that are the furthest behind.
    lag_by_stream: Mapping[str, int] = field(default_factory=dict)
    #: Of the streams that it writes: how many there are, and how many since the start were merged
    #: into others, or went by retention.
    segments: int = 0
    segments_merged: int = 0
    segments_retired: int = 0
    #: Why it failed last.
    error: str = ""
    _seen: tuple[str, int] = ("", -1)
    _last: Mapping[str, StreamSegments] = field(default_factory=dict)

    def take(self, progress: Mapping[str, Any]) -> None:
        """Take in what Spark says of a batch, once; what it said before counts no more.

        Args:
            progress: ``StreamingQueryProgress`` as JSON has it.
        """
        run, batch = str(progress["runId"]), int(progress["batchId"])
        self.input_rate = _rate(progress, "inputRowsPerSecond") / self.scans
        self.rate = _rate(progress, "processedRowsPerSecond") / self.scans
        self.batch_s = progress.get("batchDuration", 0) / _MS
        self._take_lag(progress.get("sources", ()))
        observed = progress.get("observedMetrics", {}).get(OBSERVED)
        if run == self._seen[0] and batch <= self._seen[1]:
            return
        if progress.get("numInputRows", 0) or (observed and observed["rows"]):
            self._seen = run, batch
            self.commits += 1
            self.records_read += progress.get("numInputRows", 0) // self.scans
        if observed:
            letters = observed["dead_letters"] or 0
            self.dead_letters += letters
            self.rows_written += observed["rows"] - letters

    def _take_lag(self, sources: Sequence[Mapping[str, Any]]) -> None:
        for source in sources:
            latest = source.get("latestOffset")
            found = json.loads(latest) if isinstance(latest, str) else latest
            lag = (found or {}).get("lag")
            if lag:
                self.lag_entries, self.lag_bytes = lag["entries"], lag["bytes"]
                self.lag_s = lag["ms"] / _MS
                self.lag_by_stream = lag["by_stream"]

    def take_segments(self, found: Mapping[str, StreamSegments]) -> None:
        """Take in the segments of the streams that it writes, by stream."""
        self.segments = sum(len(each.starts) for each in found.values())
        for stream, now in found.items():
            before = self._last.get(stream, now)
            begin = now.starts[0] if now.starts else None
            retired = sum(begin is None or start < begin for start in before.starts)
            self.segments_retired += retired
            self.segments_merged += max(now.first - before.first - retired, 0)
        self._last = found


def _rate(progress: Mapping[str, Any], name: str) -> float:
    value = float(progress.get(name) or 0.0)
    return value if math.isfinite(value) else 0.0
