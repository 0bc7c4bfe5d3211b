"""Outcomes of pipelined appends: one event for a batch, a light view of it for each entry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.writing.pending import Group
from quorumbook.env import forks, patience
from quorumbook.errors import QuorumbookError, RequestTimeoutError
from quorumbook.ids import EntryId


class Batch:
    """Entries that went to the loop thread together; their futures look here."""

    __slots__ = (
        "_callbacks",
        "_event",
        "_lock",
        "error",
        "first_entry_id",
        "generation",
        "group",
        "is_good",
        "payloads",
        "size_bytes",
    )

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.size_bytes = 0
        self.group: Group | None = None
        self.error: BaseException | None = None
        self.first_entry_id: EntryId = -1
        #: Everything is confirmed: futures need not look any further.
        self.is_good = False
        #: Of the process whose loop settles it.
        self.generation = forks.generation
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    @classmethod
    def of_nothing(cls, next_entry_id: EntryId) -> Batch:
        """Return the settled outcome of appending no entries."""
        batch = cls()
        batch.first_entry_id = next_entry_id
        batch.finish(None)
        return batch

    @property
    def is_done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the outcome."""
        if self._event.is_set():
            return
        forks.check_owner(self.generation)
        if not patience.wait(self._event, timeout_s):
            raise RequestTimeoutError(f"not confirmed within {timeout_s} s; it may still be")

    def finish(self, error: BaseException | None) -> None:
        """Settle the outcome; runs on the loop thread."""
        self.error = error
        if self.group is not None:
            self.first_entry_id = self.group.first_entry_id
        self.is_good = error is None
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def on_done(self, callback: Callable[[], object]) -> None:
        """Call when the outcome is known, or at once."""
        if not self._event.is_set():
            forks.check_owner(self.generation)
        elif self.generation != forks.generation:
            callback()  # the lock may be another thread's for ever
            return
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def error_of(self, index: int) -> BaseException | None:
        """Return what an entry failed with; entries before the failure may be confirmed."""
        if self.error is None or (self.group is not None and index < self.group.resolved):
            return None
        return copy_error(self.error) if isinstance(self.error, QuorumbookError) else self.error


class AppendFuture:
    """The outcome of ``append_nowait``."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._batch.is_done

    def result(self, timeout_s: float | None = None) -> EntryId:
        """Wait until the entry is safe and return its id.

        Raises:
            RequestTimeoutError: it was not confirmed in this time.
            QuorumbookError: the writer failed; the entry's fate is unknown.
        """
        batch = self._batch
        if not batch.is_good:
            error = self.exception(timeout_s)
            if error is not None:
                raise error
        return batch.first_entry_id + self._index

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the outcome and return the error, or None."""
        self._batch.wait(timeout_s)
        return self._batch.error_of(self._index)

    def add_done_callback(self, callback: Callable[[AppendFuture], object]) -> None:
        """Have a function called with this future when the outcome is known.

        It runs on the loop thread, or at once; it must not wait for anything.
        """
        self._batch.on_done(partial(callback, self))


class AppendBatchFuture:
    """The outcome of ``append_batch_nowait``."""

    __slots__ = ("_batch", "_count", "_first")

    def __init__(self, batch: Batch, first: int, count: int) -> None:
        self._batch = batch
        self._first = first
        self._count = count

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        return self._batch.is_done

    def result(self, timeout_s: float | None = None) -> range:
        """Wait until all entries are safe and return their ids.

        Raises:
            RequestTimeoutError: they were not confirmed in this time.
            QuorumbookError: the writer failed; the fate of the last of them is unknown.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        first = self._batch.first_entry_id + self._first
        return range(first, first + self._count)

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the outcome and return the error, or None."""
        self._batch.wait(timeout_s)
        return self._batch.error_of(self._first + self._count - 1)

    def add_done_callback(self, callback: Callable[[AppendBatchFuture], object]) -> None:
        """Have a function called with this future when the outcome is known.

        It runs on the loop thread, or at once; it must not wait for anything.
        """
        self._batch.on_done(partial(callback, self))
