"""The thread on which the blocking clients' event loop runs, and what crosses over to it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from quorumbook.errors import ClientClosedError, LocalProtocolError

T = TypeVar("T")


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
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClientClosedError("the client is closed") from None
        except BaseException:
            future.cancel()  # an interrupt must not leave the work running
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


_start_lock = threading.Lock()
_thread: LoopThread | None = None
#: Raised by one in a child made by fork: what was made before belongs to the parent.
generation = 0


def _loop_thread() -> LoopThread:
    global _thread
    with _start_lock:
        if _thread is None:
            _thread = LoopThread()
            atexit.register(_thread.stop)
        return _thread


def _after_fork() -> None:
    global _thread, generation, _start_lock
    if _thread is not None:
        atexit.unregister(_thread.stop)
    _thread = None
    generation += 1
    _start_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Owned:
    """Something that lives on the loop thread of the process that made it."""

    def __init__(self) -> None:
        self.loop_thread = _loop_thread()
        self.generation = generation

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop thread and wait for its result."""
        self.check_process()
        return self.loop_thread.run(work())

    def check_process(self) -> None:
        """Raise LocalProtocolError in a child made by fork."""
        if self.generation != generation:
            raise LocalProtocolError(
                "this client was made before the process was forked; connect again in the child"
            )

    def iterate(self, start: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Run an asynchronous iteration step by step."""

        async def begin() -> AsyncGenerator[T, None]:
            return start()

        async def step(iteration: AsyncGenerator[T, None]) -> tuple[T] | None:
            try:
                return (await anext(iteration),)
            except StopAsyncIteration:
                return None

        iteration = self.run(begin)
        try:
            while (item := self.run(lambda: step(iteration))) is not None:
                yield item[0]
        finally:
            if self.generation == generation:
                with contextlib.suppress(ClientClosedError):
                    self.run(iteration.aclose)
