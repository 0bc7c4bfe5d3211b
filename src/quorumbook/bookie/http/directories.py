"""The directories of a bookie, how full they are and how fast: over HTTP, and as metrics.

    GET /api/v1/bookie/directories              ours alone; one object for each use of a directory

A journal is synced with every group, ledgers at the end of a checkpoint; the mean time of a sync
since the start tells a slow disk from a fast one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.http.server import Body
from quorumbook.metric_texts import text_of
from quorumbook.storage.store import LedgerStorage

PAGES = ("GET /api/v1/bookie/directories",)
_GAUGES = ("total_bytes", "free_bytes")


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """One directory in one use."""

    path: str
    #: ``journal`` or ``ledgers``.
    use: str
    total_bytes: int
    free_bytes: int
    syncs: int
    sync_ns: int

    def row(self) -> dict[str, object]:
        """Return what a person reads."""
        return {
            "path": self.path,
            "use": self.use,
            "used": round(1 - self.free_bytes / self.total_bytes, 4) if self.total_bytes else None,
            "total_bytes": self.total_bytes,
            "free_bytes": self.free_bytes,
            "syncs": self.syncs,
            "sync_ms_mean": round(self.sync_ns / self.syncs / 1e6, 3) if self.syncs else None,
        }


class DirectoryPages:
    """Answers for one started bookie."""

    def __init__(self, disks: DiskMonitor, storage: LedgerStorage) -> None:
        self._disks = disks
        self._storage = storage

    def states(self) -> list[DirectoryState]:
        """Return every directory, the journals first."""
        found = []
        for (use, path), (syncs, sync_ns) in sorted(self._storage.sync_times().items()):
            usage = self._disks.usages.get(path)
            total, free = (usage.total_bytes, usage.free_bytes) if usage else (0, 0)
            found.append(DirectoryState(path, use, total, free, syncs, sync_ns))
        return found

    async def answer(self, _method: str, _target: str, _body: Body) -> tuple[int, object]:
        """Return status and body."""
        return 200, [state.row() for state in self.states()]

    def families(self) -> Iterable[Metric]:
        """Yield the metrics."""
        states = self.states()
        for field in _GAUGES:
            name = f"bookie_directory_{field}"
            gauge = GaugeMetricFamily(name, text_of(name), labels=["path"])
            for state in {state.path: state for state in states}.values():
                gauge.add_metric([state.path], getattr(state, field))
            yield gauge
        syncs = Metric("bookie_directory_sync", text_of("bookie_directory_sync"), "summary")
        for state in states:
            labels = {"path": state.path, "use": state.use}
            syncs.add_sample("bookie_directory_sync_count", labels, state.syncs)
            syncs.add_sample("bookie_directory_sync_sum", labels, state.sync_ns / 1e6)
        yield syncs
