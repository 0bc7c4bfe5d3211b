"""Appends on their way from any thread to a writer on the loop thread, in the order of the calls.

Calls queue up and wake the loop thread once for all that came meanwhile.  The window that refuses
what is too much is counted here, on the calling side: a refusal needs no way to the loop and back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.errors import BackpressureError, QuorumbookError
from quorumbook.sync.futures import Call
from quorumbook.sync.twin import ClosingQuietly

A = TypeVar("A")
C = TypeVar("C", bound=Call)
T = TypeVar("T")


class Appending(ClosingQuietly[A], Generic[A, C]):
    """The twin of a writer: what is appended goes to it by way of a queue.

    Sizes of calls are those of their payloads and ``ENTRY_OVERHEAD_BYTES`` for each.
    """

    #: What is appended, in messages.
    _what = "records"

    def __init__(self, writer: A, max_count: int, max_bytes: int) -> None:
        super().__init__(writer)
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        #: How many were appended ever, with how many bytes; and to what these may grow until more
        #: is confirmed.  An append looks at these four, and changes two.
        self._appended = self._appended_bytes = 0
        self._limit, self._limit_bytes = max_count, max_bytes
        #: How many, and how many bytes, were refused last.
        self._refused = (1, 0)
        self._queue: list[Call] = []
        #: The last of the queue, if more may still join it.
        self._joined: C | None = None
        #: On the loop thread: what the writer has no room for yet.
        self._waiting: deque[Call] = deque()
        self._pumping: asyncio.Task[None] | None = None

    @property
    def _count(self) -> int:
        """How many are not confirmed."""
        # In this order it is never too few, whatever other threads do between.
        confirmed = self._limit - self._max_count
        return self._appended - confirmed

    @property
    def _bytes(self) -> int:
        """How many bytes are not confirmed."""
        confirmed = self._limit_bytes - self._max_bytes
        return self._appended_bytes - confirmed

    # On the calling thread, with the lock

    def _enqueue(self, call: Call) -> None:
        """Have the loop thread take a call behind all others, and nothing join those."""
        is_first = not self._queue
        self._queue.append(call)
        self._end_joined()
        if is_first:
            self._loop_thread.loop.call_soon_threadsafe(self._take)

    def _end_joined(self) -> None:
        """Have nothing more join the last call."""
        self._joined = None

    def _has_room(self, count: int, size_bytes: int) -> bool:
        # What is too large for any window is the writer's to refuse.
        is_in = self._bytes + size_bytes <= self._max_bytes
        return (is_in and self._count + count <= self._max_count) or not self._count

    def _check_room(self, count: int, size_bytes: int) -> None:
        if not self._has_room(count, size_bytes):
            self._refused = count, size_bytes
            raise BackpressureError(
                f"{self._count} {self._what} and {self._bytes} bytes are pending: no room for "
                f"{count} more with {size_bytes - count * ENTRY_OVERHEAD_BYTES} bytes"
            )

    def _wait_for_room(self) -> None:
        """Wait until there is room for what was refused last, and for more than that."""
        (count, size_bytes), self._refused = self._refused, (1, 0)
        # Else who is woken by a few has room for a few, and waits again.
        count = max(count, self._max_count // 8)
        size_bytes = max(size_bytes, self._max_bytes // 8)
        while not self._has_room(count, size_bytes):
            self._room.wait()

    def _after_calls(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something behind all that was appended before."""

        async def run() -> T:
            await self._handed_over()
            return await work()

        return self._run(run)

    # On the loop thread

    async def _handed_over(self) -> None:
        """Wait until the writer has all that was appended before."""
        self._take()
        while self._pumping is not None:
            await asyncio.wait({self._pumping})

    def _take(self) -> None:
        with self._lock:
            self._end_joined()
            calls, self._queue = self._queue, []
        self._waiting += calls
        if self._pumping is None:
            self._start()

    def _start(self) -> None:
        while self._waiting:
            call = self._waiting[0]
            try:
                outcome = call.start()
            except BackpressureError:
                self._pumping = asyncio.ensure_future(self._start_later())
                return
            except Exception as error:
                outcome = asyncio.get_running_loop().create_future()
                outcome.set_exception(error)
            outcome.add_done_callback(partial(self._finish, call))
            self._waiting.popleft()

    async def _start_later(self) -> None:
        writer: Any = self._aio
        with contextlib.suppress(QuorumbookError):  # the next call says so itself
            await writer.drain()
        self._pumping = None
        self._start()

    def _finish(self, call: Call, outcome: asyncio.Future[Any]) -> None:
        with self._lock:
            self._limit += call.count
            self._limit_bytes += call.size_bytes
            self._room.notify_all()
        call.finish(outcome)
