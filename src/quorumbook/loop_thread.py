"""The thread on which an event loop runs for programs without one, and what crosses over to it.

The blocking twin works there, and so do Spark's tasks and planners.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, RUNNING
from typing import Any, Generic, TypeVar

from quorumbook.env import forks
from quorumbook.errors import ClientClosedError, LocalProtocolError

T = TypeVar("T")
#: A signal that comes right before a thread begins to wait is not seen while it waits, and who was
#: interrupted right behind its wait has woken nobody else.
_LOOK_EVERY_S = 0.5
#: How long an interrupt waits for the work that it ended.
_END_S = 5.0
_OVER = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)
#: Held while a future gets its condition, or is settled without one.
_settling = threading.Lock()


class Latch:
    """An event between threads that no interrupt of who waits for it can break.

    ``threading.Event`` has a lock that both sides take for a moment, in Python code.  An interrupt
    that comes in that moment leaves it taken, and who sets the event waits for ever: the loop
    thread, and with it everything.  Here a thread takes no lock but the one it waits for, and that
    in one step.  It is set once; any number of threads wait for it.
    """

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        """Tell whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wake all who wait."""
        self._is_set = True
        self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, at most for that long; return whether it is."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_set:
            left_s = _LOOK_EVERY_S if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                break
            if self._lock.acquire(timeout=min(left_s, _LOOK_EVERY_S)):
                self._lock.release()  # for the next one who waits
        return self._is_set


class _LoopJob(Generic[T]):
    """Work that another thread waits for; an interrupt may come at any point of that."""

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        self._over = Latch()

    def start(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._finish)

    def wait(self) -> T:
        """Return what came of it.

        Raises:
            asyncio.CancelledError: the loop's other work was ended, and this with it.
        """
        self._over.wait()
        assert self._task is not None
        return self._task.result()

    def cancel(self) -> None:
        """Have it ended, and wait for that a little."""
        if not self._over.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is no more
                self._loop.call_soon_threadsafe(self._cancel)
                self._over.wait(_END_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._over.is_set():
            self._work.close()
            self._over.set()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # who was interrupted asks for none
        self._over.set()


class LoopThread:
    """One event loop on a thread of its own; on uvloop where that is installed."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        #: What is run from now on, by a finalizer say, would be waited for in vain.
        self._is_stopped = False
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="quorumbook-sync", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalProtocolError("the blocking client was called from its own event loop")
        if self._is_stopped:
            work.close()
            raise ClientClosedError("the program is ending: the client's event loop has stopped")
        job = _LoopJob(work, self.loop)
        try:
            self.loop.call_soon_threadsafe(job.start)
            return job.wait()
        except asyncio.CancelledError:
            raise ClientClosedError("the client is closed") from None
        except BaseException:
            job.cancel()  # an interrupt must not leave the work running
            raise

    def stop(self) -> None:
        """End the thread."""
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=5.0)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - it exists on Unix only
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _LoopThreads:
    """The loop thread of this process, made when it is needed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        #: Those of the processes this one was forked from.  They are kept: a loop that is
        #: collected would take its descriptors out of the set that its owner waits on.
        self._inherited: list[LoopThread] = []
        forks.watch(self, _LoopThreads.abandon)

    def present(self) -> LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
                atexit.register(self._thread.stop)
            return self._thread

    def abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: have it make its own."""
        del error, may_act
        thread, self._thread, self._lock = self._thread, None, threading.Lock()
        if thread is not None:
            atexit.unregister(thread.stop)
            self._inherited.append(thread)
        forks.watch(self, _LoopThreads.abandon)


_threads = _LoopThreads()


async def _done(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def run_once(work: Callable[[], Awaitable[T]]) -> T:
    """Run what belongs to nothing yet on the loop thread, and wait for its result."""
    return _threads.present().run(_done(work))


class LoopBound:
    """Something that lives on the loop thread of the process that made it."""

    def __init__(self) -> None:
        self._loop_thread = _threads.present()
        self._process_generation = forks.generation

    def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done on the loop thread and wait for its result."""
        self._check_process()
        return self._loop_thread.run(_done(work))

    def _check_process(self) -> None:
        """Raise LocalProtocolError in a child made by fork."""
        if self._process_generation != forks.generation:
            raise forks.forked_error()

    def _iterate(self, start: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Run an asynchronous iteration step by step."""

        async def begin() -> AsyncGenerator[T, None]:
            return start()

        async def step(iteration: AsyncGenerator[T, None]) -> tuple[T] | None:
            try:
                return (await anext(iteration),)
            except StopAsyncIteration:
                return None

        iteration = self._run(begin)
        try:
            while (item := self._run(lambda: step(iteration))) is not None:
                yield item[0]
        finally:
            if self._process_generation == forks.generation:
                with contextlib.suppress(ClientClosedError):
                    self._run(iteration.aclose)


class LoopFuture(concurrent.futures.Future[T]):
    """A future that the loop thread settles: in a child made by fork it is never waited for.

    It is running from the start, as cancelling takes no record back.  Most are never waited for,
    so the condition that others have from the start, and what goes with it, is made when somebody
    asks for it: a future is one object until then.
    """

    def __init__(self) -> None:
        self._generation = forks.generation
        self._state = RUNNING
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._own_condition: threading.Condition | None = None

    @property
    def _condition(self) -> threading.Condition:
        """What everybody who looks at a future takes first."""
        if self._generation != forks.generation:
            if self._state not in _OVER:
                raise forks.forked_error()
            self._make_lists()
            return threading.Condition()
        with _settling:
            if self._own_condition is None:
                self._own_condition = threading.Condition()
                self._make_lists()
            return self._own_condition

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._own_condition = condition

    def _make_lists(self) -> None:
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        if self._state in _OVER:
            return True
        forks.check_owner(self._generation)
        return False

    def set_result(self, result: T) -> None:
        """Settle it."""
        with _settling:
            if self._own_condition is None:  # nobody waits, and nobody is to be called
                self._result = result
                self._state = FINISHED
                return
        super().set_result(result)
