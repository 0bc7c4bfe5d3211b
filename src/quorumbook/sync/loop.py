"""The thread on which the blocking clients' event loop runs, and what crosses over to it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from quorumbook.env import forks
from quorumbook.errors import ClientClosedError, LocalProtocolError, QuorumbookError

A = TypeVar("A")
T = TypeVar("T")
#: A signal that comes right before a thread begins to wait is not seen while it waits.
_LOOK_FOR_SIGNALS_S = 0.5
#: How long an interrupt waits for the work that it ended.
_END_S = 5.0


class _LoopJob(Generic[T]):
    """Work that another thread waits for; an interrupt may come at any point of that."""

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        if self.future.done():
            self._work.close()
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._finish)

    def wait(self) -> T:
        """Return what came of it."""
        while not self.future.done():
            with contextlib.suppress(TimeoutError):
                return self.future.result(_LOOK_FOR_SIGNALS_S)
        return self.future.result()

    def cancel(self) -> None:
        """Have it ended, and wait for that a little."""
        if not self.future.done():
            with contextlib.suppress(RuntimeError):  # the loop is no more
                self._loop.call_soon_threadsafe(self._cancel)
                concurrent.futures.wait([self.future], _END_S)

    def _cancel(self) -> None:
        if self._task is None:
            self._end_cancelled()
        else:
            self._task.cancel()

    def _end_cancelled(self) -> None:
        self.future.cancel()
        self.future.set_running_or_notify_cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._end_cancelled()
        elif (error := task.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


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
        except concurrent.futures.CancelledError:
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


class Twin(LoopBound, Generic[A]):
    """The twin of an object of asyncio that lives on the loop thread, and does the work there."""

    def __init__(self, of: A) -> None:
        """Wrap what was made on the loop thread."""
        super().__init__()
        self._aio = of

    def __repr__(self) -> str:
        return f"<sync {self._aio!r}>"


def unwrapped(twin: Twin[A]) -> A:
    """Return what does the work of a twin."""
    return twin._aio  # noqa: SLF001 - of this module


class Closing(Twin[A]):
    """A twin that the end of a ``with`` block closes."""

    def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_block(exc)

    def _end_block(self, error: BaseException | None) -> None:
        del error
        self.close()


class ClosingQuietly(Closing[A]):
    """A twin whose closing has nothing to say where the block failed already."""

    def _end_block(self, error: BaseException | None) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(QuorumbookError):
            self.close()
