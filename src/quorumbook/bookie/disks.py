"""Whether a bookie may be written to: full disks make it read-only, free ones writable again.

A poll of ``env.disk.usage`` runs off the loop.  The storage says at once when a write met a full
disk, without waiting for the poll.  Every directory counts, the journal's too (S82).  While it is
read-only a bookie still takes recovery and high-priority adds as long as there is room for them:
they restore copies and finish ledgers.

Registering the change is the life cycle's affair (``server.py``): ``on_change`` tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.env import DiskUsage, Env, Worker, logger

_log = logger("bookie.disks")


class Writability:
    """What the request path asks before it takes an add."""

    __slots__ = ("is_read_only", "takes_high_priority")

    def __init__(self) -> None:
        self.is_read_only = False
        self.takes_high_priority = True


class DiskMonitor:
    """Watches the disks of a bookie and keeps its ``Writability``.

    Args:
        env: The outside world.
        options: Thresholds and interval.
        metrics: Where usages are shown.
        storage_is_full: Tells whether the storage still meets a full disk.
        on_change: Called when the bookie became read-only or writable.
    """

    def __init__(
        self,
        env: Env,
        options: BookieOptions,
        metrics: BookieMetrics,
        *,
        storage_is_full: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self.writability = Writability()
        self.writability.is_read_only = options.force_read_only
        #: By directory, as measured last.
        self.usages: dict[str, DiskUsage] = {}
        self.total_bytes = 0
        self.free_bytes = 0
        self._disk = env.disk
        self._threads = env.threads
        self._options = options
        self._metrics = metrics
        self._storage_is_full = storage_is_full
        self._on_change = on_change
        self._paths = tuple(
            dict.fromkeys((*options.journal_directories, *options.ledger_directories))
        )
        self._ledger_paths = frozenset(options.ledger_directories)
        self._worker: Worker | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] | None = None
        self._is_above = False
        #: Directories whose disks did not answer when they were asked last.
        self._silent: list[str] = []
        self._is_held = False

    async def start(self) -> None:
        """Measure once, then every interval."""
        self._worker = self._threads.start_worker("bookie-disks")
        self._first = asyncio.get_running_loop().create_future()
        self._poll()
        await self._first

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def storage_full(self, error: BaseException) -> None:
        """A write of the storage met a full disk: read-only at once."""
        if not self.writability.is_read_only:
            _log.error("a disk is full, no more entries are taken: %s", error)
        self._decide(full=True)

    def set_operators_word(self, *, is_read_only: bool) -> None:
        """Refuse plain adds, or leave that to the disks again."""
        self._is_held = is_read_only
        self._decide(full=self._is_full())

    def reasons(self) -> list[str]:
        """Return what makes the bookie read-only, its operator's word aside."""
        options = self._options
        found = ["configured: bookie.force_read_only"] if options.force_read_only else []
        usages = self._metrics.directory_usage.items()
        limit = options.disk_usage_writable if self._is_above else options.max_disk_usage
        found += [f"disk: {path} is {used:.0%} full" for path, used in usages if used > limit]
        found += [f"disk: the space of {path} cannot be told" for path in self._silent]
        if self._storage_is_full():
            found.append("disk: a write met a full one")
        return found

    def storage_has_space(self) -> None:
        """The storage could write again; the next poll decides."""
        self._poll_soon()

    def _poll_soon(self) -> None:
        if self._worker is not None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._poll()

    def _poll(self) -> None:
        worker = self._worker
        if worker is not None:
            self._timer = None
            worker.submit(self._measure, self._measured)

    def _measure(self) -> list[DiskUsage | None]:
        """Runs on the worker."""
        found: list[DiskUsage | None] = []
        for path in self._paths:
            try:
                found.append(self._disk.usage(path))
            except Exception as error:
                _log.error("the space of %s cannot be told: %s", path, error)
                found.append(None)
        return found

    def _measured(self, result: list[DiskUsage | None] | BaseException) -> None:
        if isinstance(result, BaseException):
            _log.error("the disks could not be measured: %s", result)
        elif self._worker is not None:
            self._take(result)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        if self._worker is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._options.disk_check_interval_s, self._poll)

    def _take(self, result: list[DiskUsage | None]) -> None:
        options = self._options
        worst = 0.0
        self._silent = []
        free = total = 0
        frees: list[int] = []
        writable = 0
        seen: set[tuple[int, int]] = set()
        for path, usage in zip(self._paths, result, strict=True):
            if usage is None or not usage.total_bytes:
                # It takes no entries, but is no fuller than it was: a disk that was never above
                # the limit would have to fall below the lower one when it answers again.
                self._silent.append(path)
                worst = max(worst, self._metrics.directory_usage.get(path, 0.0))
                continue
            self.usages[path] = usage
            used = 1 - usage.free_bytes / usage.total_bytes
            worst = max(worst, used)
            self._metrics.directory_usage[path] = used
            writable += used <= options.max_disk_usage
            frees.append(usage.free_bytes)
            same = (usage.total_bytes, usage.free_bytes)
            if path in self._ledger_paths and same not in seen:
                # Directories of one file system must not count its space twice.
                seen.add(same)
                total += usage.total_bytes
                free += usage.free_bytes
        self.total_bytes, self.free_bytes = total, free
        self._metrics.writable_directories = writable
        # Of no disk at all nothing is known, so it takes nothing.
        least_free = min(frees, default=0)
        self.writability.takes_high_priority = least_free >= options.min_high_priority_free_bytes
        limit = options.disk_usage_writable if self._is_above else options.max_disk_usage
        self._is_above = worst > limit
        self._decide(full=self._is_full())

    def _is_full(self) -> bool:
        return self._is_above or bool(self._silent) or self._storage_is_full()

    def _decide(self, *, full: bool) -> None:
        read_only = full or self._is_held or self._options.force_read_only
        if read_only != self.writability.is_read_only:
            self.writability.is_read_only = read_only
            _log.warning("the bookie is %s now", "read-only" if read_only else "writable")
            self._on_change()
