"""Outcomes of pipelined appends: one event for a batch, a light view of it for each entry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Self, TypeVar

from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.writing.pending import Group
from quorumbook.client.writing.writer import LedgerWriter, append_group
from quorumbook.env import forks, patience
from quorumbook.errors import QuorumbookError, RequestTimeoutError
from quorumbook.ids import EntryId
from quorumbook.loop_thread import Latch

T = TypeVar("T")


class Call:
    """Appends that go to the writer together."""

    __slots__ = ("count", "size_bytes")

    def __init__(self, count: int, size_bytes: int) -> None:
        self.count = count
        self.size_bytes = size_bytes

    def start(self) -> asyncio.Future[Any]:
        """Hand them to the writer, on the loop thread.

        Raises:
            BackpressureError: it has no room for them yet.
        """
        raise NotImplementedError

    def finish(self, outcome: asyncio.Future[Any]) -> None:
        """Settle what came of them, on the loop thread."""
        raise NotImplementedError


class Batch(Call):
    """Entries of a ledger that went to the loop thread together; their futures look here."""

    __slots__ = (
        "_callbacks",
        "_lock",
        "_settled",
        "_writer",
        "error",
        "first_entry_id",
        "generation",
        "group",
        "is_good",
        "payloads",
    )

    def __init__(self, writer: LedgerWriter) -> None:
        super().__init__(0, 0)
        self._writer = writer
        self.payloads: list[bytes] = []
        self.group: Group | None = None
        self.error: BaseException | None = None
        self.first_entry_id: EntryId = -1
        #: Everything is confirmed: futures need not look any further.
        self.is_good = False
        #: Of the process whose loop settles it.
        self.generation = forks.generation
        self._settled = Latch()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def start(self) -> asyncio.Future[Any]:
        """Hand the entries to the writer."""
        future: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self.group = Group(self.payloads, None, future)
        append_group(self._writer, self.group)
        self.payloads = []
        return future

    @property
    def is_done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._settled.is_set()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the outcome."""
        if self._settled.is_set():
            return
        forks.check_owner(self.generation)
        if not patience.wait(self._settled.wait, timeout_s):
            raise RequestTimeoutError(f"not confirmed within {timeout_s} s; it may still be")

    def finish(self, outcome: asyncio.Future[Any]) -> None:
        """Settle the outcome; runs on the loop thread."""
        self.settle(outcome.exception())

    def settle(self, error: BaseException | None) -> None:
        """Say what became of the entries: None for good."""
        self.error = error
        if self.group is not None:
            self.first_entry_id = self.group.first_entry_id
        self.is_good = error is None
        with self._lock:
            self._settled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call when the outcome is known, or at once."""
        if not self._settled.is_set():
            forks.check_owner(self.generation)
        elif self.generation != forks.generation:
            callback()  # the lock may be another thread's for ever
            return
        with self._lock:
            if not self._settled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def error_of(self, index: int) -> BaseException | None:
        """Return what an entry failed with; entries before the failure may be confirmed."""
        if self.error is None or (self.group is not None and index < self.group.resolved):
            return None
        return again(self.error)


class _Outcome(Generic[T]):
    """What became of entries of a batch, of which the last one decides."""

    __slots__ = ("_batch", "_last")

    def __init__(self, batch: Batch, last: int) -> None:
        self._batch = batch
        self._last = last

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._batch.is_done

    def result(self, timeout_s: float | None = None) -> T:
        """Wait until all entries are safe and return their ids, or the id of the only one.

        Raises:
            RequestTimeoutError: they were not confirmed in this time.
            QuorumbookError: the writer failed; the fate of the last of them is unknown.
        """
        if not self._batch.is_good and (error := self.exception(timeout_s)) is not None:
            raise error
        return self._ids()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the outcome and return the error, or None."""
        self._batch.wait(timeout_s)
        return self._batch.error_of(self._last)

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Have a function called with this future when the outcome is known.

        It runs on the loop thread, or at once; it must not wait for anything.
        """
        self._batch.on_done(partial(callback, self))

    def _ids(self) -> T:
        raise NotImplementedError


class AppendFuture(_Outcome[EntryId]):
    """The outcome of ``append_nowait``."""

    __slots__ = ()

    def _ids(self) -> EntryId:
        return self._batch.first_entry_id + self._last


class AppendBatchFuture(_Outcome[range]):
    """The outcome of ``append_batch_nowait``."""

    __slots__ = ("_count",)

    def __init__(self, batch: Batch, first: int, count: int) -> None:
        super().__init__(batch, first + count - 1)
        self._count = count

    def _ids(self) -> range:
        behind = self._batch.first_entry_id + self._last + 1
        return range(behind - self._count, behind)


def again(error: BaseException) -> BaseException:
    """Return an error that may be raised by several callers."""
    return copy_error(error) if isinstance(error, QuorumbookError) else error
