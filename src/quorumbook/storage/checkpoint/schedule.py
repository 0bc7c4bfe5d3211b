"""When to flush: by size, by time, on demand, again after a failure, and at the stop.

One checkpoint is under way at a time, on the flush worker.  The caches swap in a step of the
event loop of their own, never inside an answer of the journal: only between groups does the
journal's mark cover exactly what is visible.

A failed checkpoint is kept and run again: on a full disk until there is space (the owner turns
read-only meanwhile), after another error a few times before the owner is told that it is over.
Nothing is lost either way, the journal still has everything.

A checkpoint takes its time: at full speed it would hold up the journal, whose disk it shares, and
the loop, whose interpreter it shares.  It rests between its pieces as long as it is ahead of what
changes meanwhile, the write cache that fills and ledgers, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from quorumbook.env import Worker, logger
from quorumbook.errors import DiskFullError, StorageError
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.checkpoint.checkpoint import Checkpoint, Checkpointer
from quorumbook.storage.checkpoint.visible_ledgers import VisibleLedgers
from quorumbook.storage.journal.marks import Marks
from quorumbook.storage.options import StorageOptions

_ATTEMPTS = 5
#: Ledgers whose state no checkpoint has stored yet stay in memory, fences of unknown ones too.
_CHANGED_LEDGERS_MAX = 5_000
#: So many ledgers of a checkpoint that is over are freed in a turn of the loop, within 2 ms.
_FREED_A_TURN = 2_000
#: A rest; with pieces of 256 KB, or of 256 ledgers, it bounds how long a checkpoint takes that
#: nothing hurries.
_REST_S = 0.005
#: A pause between two short pieces of ledgers' states.
_PAUSE_S = 0.0005
#: So many times faster than the next one fills a checkpoint goes on.
_LEAD = 2
_log = logger("storage.flush")


class Flusher:
    """Runs checkpoints; used on the event loop.

    Args:
        worker: Where they run.
        checkpointer: What they do.
        visible: Where they are cut from.
        caches: Whose size calls for them.
        marks: Give the end of each journal's last durable group.
        options: Sizes and times.
        random_below: Keeps bookies out of step.
        sleep: Blocks the worker for some seconds.
        on_settled: A checkpoint went through: whether older entries were replaced, and whether
            the disk had been full until now.
        on_full: A disk is full; called once until it is not.
        on_fatal: Checkpoints fail for another reason.
    """

    def __init__(
        self,
        worker: Worker,
        checkpointer: Checkpointer,
        visible: VisibleLedgers,
        caches: Caches,
        *,
        marks: Callable[[], Marks],
        options: StorageOptions,
        random_below: Callable[[int], int],
        sleep: Callable[[float], None],
        on_settled: Callable[[bool, bool], None],
        on_full: Callable[[BaseException], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._checkpointer = checkpointer
        self._visible = visible
        self._caches = caches
        self._marks = marks
        self._options = options
        self._on_settled = on_settled
        self._on_full = on_full
        self._on_fatal = on_fatal
        self._random_below = random_below
        self._sleep = sleep
        self._flush_bytes = self._next_flush_bytes()
        self._running: Checkpoint | None = None
        self._failed: Checkpoint | None = None
        self._failures = 0
        self._last_marks = marks()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_scheduled = False
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.is_full = False
        #: Somebody waits for room, so that the cache is flushed however little is in it.
        self.is_room_wanted = False

    def start(self, pending: Checkpoint | None) -> None:
        """Begin to watch the time; ``pending`` failed during the start, on a full disk."""
        if pending is not None:
            self._failed = pending
            self.is_full = True
            self._retry = self._loop.call_later(self._options.retry_interval_s, self._begin)
        self._timer = self._loop.call_later(self._options.flush_interval_s, self._by_time)
        self._checkpointer.rest = self._rest
        self._checkpointer.pause = self._pause

    def _rest(self, done: float) -> None:
        """Rest between two pieces of a checkpoint, of which a share is done; on the worker."""
        is_awaited = self._waiters or self.is_room_wanted or self._is_stopped
        filled = max(
            self._caches.active.size_bytes / max(1, self._flush_bytes),
            len(self._visible.table.dirty) / _CHANGED_LEDGERS_MAX,
        )
        if not is_awaited and filled * _LEAD < done:
            self._sleep(_REST_S)

    def _pause(self) -> None:
        """Let the loop have the interpreter for a moment, unless the next checkpoint waits.

        Thousands of states take as long as the loop's own work on them; in one go they would
        double what everybody waits for.
        """
        if not self._waiters and len(self._visible.table.dirty) < _CHANGED_LEDGERS_MAX:
            self._sleep(_PAUSE_S)

    async def stop(self, *, flush: bool) -> BaseException | None:
        """Flush for the last time; return why that failed."""
        if self._timer is not None:
            self._timer.cancel()
        error: BaseException | None = None
        if flush:
            try:
                await self.flush()
            except Exception as failure:  # the caller decides
                error = failure
        self.halt()
        while self._running is not None:
            with contextlib.suppress(Exception):
                await self._attempt()
        return error

    def halt(self) -> None:
        """Begin no further checkpoint: the journal keeps what the next start needs."""
        self._is_stopped = True
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        if self._running is None:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(_stopped())

    def _next_flush_bytes(self) -> int:
        """Return at which size to flush next: the whole cache, or up to a third less.

        The bookies of an ensemble fill at the same pace.  If they flushed at the same time too,
        no ack quorum would be free of it; so they fall out of step.
        """
        full = self._options.write_cache_size_bytes
        return full - self._random_below(full // 3 + 1)

    def flush_if_full(self) -> None:
        """Flush soon if there is enough to; called after each batch."""
        enough = 1 if self.is_room_wanted else self._flush_bytes
        is_full = self._caches.active.size_bytes >= enough
        if (
            (is_full or len(self._visible.table.dirty) >= _CHANGED_LEDGERS_MAX)
            and self._running is None
            and not self._is_scheduled
            and self._failed is None
        ):
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    async def flush(self) -> None:
        """Return when everything visible now is on disk; raises what a checkpoint failed with."""
        if self._running is not None:
            # What is under way was cut before now.
            await self._attempt()
        while self._failed is not None:
            await self._attempt(begin=True)
        # One that began since then took along what there was, and ends later than now.
        if self._running is not None or self._has_work():
            await self._attempt(begin=True)

    async def _attempt(self, *, begin: bool = False) -> None:
        """Wait for the next checkpoint to end; raise its error."""
        if self._is_stopped and self._running is None:
            raise _stopped()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if begin and self._running is None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)
        await waiter

    def _has_work(self) -> bool:
        return self._visible.is_dirty or self._marks() != self._last_marks

    def _by_time(self) -> None:
        if self._running is None and self._failed is None and self._has_work():
            self._begin()
        if not self._is_stopped:
            self._timer = self._loop.call_later(self._options.flush_interval_s, self._by_time)

    def _begin(self) -> None:
        self._is_scheduled = False
        if self._running is not None or self._is_stopped:
            return
        self._flush_bytes = self._next_flush_bytes()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        checkpoint, self._failed = self._failed, None
        if checkpoint is None:
            checkpoint = self._visible.checkpoint(self._marks())
        self._running = checkpoint
        self._worker.submit(lambda: self._checkpointer.run(checkpoint), self._ended)

    def _ended(self, result: Checkpoint | BaseException) -> None:
        checkpoint, self._running = self._running, None
        assert checkpoint is not None
        waiters, self._waiters = self._waiters, []
        if isinstance(result, BaseException):
            self._failed = checkpoint
            self._note_failure(result)
        else:
            self._failures = 0
            self._last_marks = checkpoint.marks
            had_been_full, self.is_full = self.is_full, False
            self._visible.settle(checkpoint)
            has_replaced = bool(checkpoint.replaced)
            self._let_go(checkpoint)
            self._on_settled(has_replaced, had_been_full)
        for waiter in waiters:
            if waiter.done():
                continue
            if isinstance(result, BaseException):
                waiter.set_exception(result)
            else:
                waiter.set_result(None)
        if not self._is_stopped:
            self.flush_if_full()

    def _let_go(self, checkpoint: Checkpoint) -> None:
        if checkpoint.take_apart(_FREED_A_TURN):
            self._loop.call_soon(self._let_go, checkpoint)

    def _note_failure(self, error: BaseException) -> None:
        _log.error("a flush failed: %s", error)
        if isinstance(error, DiskFullError):
            if not self.is_full:
                self.is_full = True
                self._on_full(error)
        else:
            self._failures += 1
            if self._failures >= _ATTEMPTS or not isinstance(error, Exception):
                self._on_fatal(error)
                return
        if not self._is_stopped:
            self._retry = self._loop.call_later(self._options.retry_interval_s, self._begin)


def _stopped() -> StorageError:
    return StorageError("the storage has stopped, the next start replays the journal")
