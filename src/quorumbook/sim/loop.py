"""The event loop of one simulated process: asyncio's rules, the kernel's time.

Within a process callbacks run in the order in which they became ready, as asyncio promises.  What
is not promised is when: mostly a turn begins a little later than it could, by the tape, so turns of
different processes, messages, threads and timers meet in every order.

A paused loop runs nothing; what becomes due meanwhile is ready at once when it goes on, timers
before arrivals or behind them.  A dead loop never runs anything again, ``finally`` included.

Threads, sockets and executors of the machine are refused: nothing here may wait for real.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events, format_helpers
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, cast

from quorumbook.sim.kernel import MICROSECOND, SECOND, Kernel

_TURN_DELAY_NS = 40 * MICROSECOND
#: How often others get a chance between two turns of a loop that has more to do.
_PAUSES = 0.25
#: How often a loop that has nothing to do takes in what arrives right when it does.
_AT_ONCE = 0.5
_FIRST_PRUNING = 256


Connector = Callable[
    [str, int, Callable[[], asyncio.Protocol]], Awaitable[tuple[Any, asyncio.Protocol]]
]


class _Future(asyncio.Future[Any]):
    """A future whose place in a set does not depend on where it lies in memory."""

    _number = 0

    def __hash__(self) -> int:
        # Most are never asked for one.
        self._number = self._number or cast("ProcessLoop", self._loop).number()
        return self._number


class _Task(asyncio.Task[Any]):
    """A task of the same kind."""

    _number = 0

    def __hash__(self) -> int:
        self._number = self._number or cast("ProcessLoop", self._loop).number()
        return self._number


class _Handle(asyncio.Handle):
    """asyncio's, made faster: there is one for each callback."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._source_traceback = self._repr = None


class _Timer(asyncio.TimerHandle):
    """The same for what has its time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = self._scheduled = False
        self._source_traceback = self._repr = None
        self._when = when


#: A handle, or what comes from outside: a function and its arguments.
_Ready = asyncio.Handle | tuple[Callable[..., object], tuple[Any, ...]]


class EscapeError(RuntimeError):
    """Simulated code asked the real machine for something."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Args:
        kernel: Time and chance.
        on_error: Gets what asyncio would log.
    """

    def __init__(self, kernel: Kernel, on_error: Callable[[dict[str, Any]], None]) -> None:
        self._kernel = kernel
        self._on_error = on_error
        self._unit = kernel.tape.unit
        self._ready: deque[_Ready] = deque()
        self._held: list[_Ready] = []
        self._run_outside = contextvars.Context().run
        self._is_awake = False
        self._numbers = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = _FIRST_PRUNING
        self.is_paused = False
        self.is_dead = False
        #: Opens a connection to a host and port.
        self.connector: Connector | None = None

    # What asyncio and the code on it ask for

    def time(self) -> float:
        """Return virtual seconds."""
        return self._kernel.now_ns / SECOND

    def get_debug(self) -> bool:
        """Say no."""
        return False

    def is_running(self) -> bool:
        """Tell whether anything of it may still run."""
        return not self.is_dead

    @property
    def tasks_under_way(self) -> int:
        """How many there are that have not ended."""
        return sum(not each.done() for each in self._tasks)

    def is_closed(self) -> bool:
        """Tell whether it is over."""
        return self.is_dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell what nobody caught."""
        self._on_error(context)

    def number(self) -> int:
        """Return the next number, for what is put into sets."""
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return _Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],  # type: ignore[override]
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        """Start a coroutine."""
        task = _Task(coro, loop=self, name=name or "task", context=context)
        # A task that waits would be collected with what it waits for, and run its `finally`.
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._prune_at:
            tasks[:] = [each for each in tasks if not each.done()]
            self._prune_at = 2 * len(tasks) + _FIRST_PRUNING
        return task

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Have something called in the next turn."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._is_awake:
            self._wake()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Do the same; there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Have something called after a time."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Have something called at a moment."""
        handle = _Timer(when, callback, args, self, context)
        self._kernel.at(round(when * SECOND), self._is_due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the queue: it is looked at when it is due."""

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **tls: Any
    ) -> tuple[Any, asyncio.Protocol]:
        """Open a connection, in the clear."""
        if self.connector is None or any(tls.values()):
            raise EscapeError("a simulated process wants a connection of the machine")
        return await self.connector(host, port, protocol_factory)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Refuse."""
        raise EscapeError("a simulated process wants an executor")

    # What the world does with it

    def deliver(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Have something from outside called, when the process gets to it."""
        if self.is_dead:
            return
        if self.is_paused:
            self._held.append((callback, arguments))
            return
        self._ready.append((callback, arguments))
        if not self._is_awake:
            self._wake()

    def arrive(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Do the same as an event of its own: in the turn of no process."""
        if self._is_awake or self.is_paused or self.is_dead:
            self.deliver(callback, *arguments)
            return
        self._ready.append((callback, arguments))
        self._begin_turn()

    def pause(self) -> None:
        """Stop as a process that got SIGSTOP."""
        self.is_paused = True

    def go_on(self) -> None:
        """End a pause."""
        if not self.is_paused or self.is_dead:
            return
        self.is_paused = False
        held, self._held = self._held, []
        timers_first = self._kernel.tape.chance(0.5)
        held.sort(key=lambda each: isinstance(each, asyncio.TimerHandle) != timers_first)
        self._ready.extend(held)
        if self._ready:
            self._wake()

    def die(self) -> None:
        """Never run anything again."""
        self.is_dead = True

    def bury(self) -> None:
        """At the end of the simulation: let go of what was waiting when it died."""
        self.is_dead = True
        tasks, self._tasks = self._tasks, []
        self._ready.clear()
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: S112 - clean-up in a world that is no more
                    continue

    def _is_due(self, handle: asyncio.TimerHandle) -> None:
        if handle._cancelled or self.is_dead:
            return
        if self.is_paused:
            self._held.append(handle)
            return
        self._ready.append(handle)
        if not self._is_awake:
            self._begin_turn()

    def _begin_turn(self) -> None:
        # What brought it about came at a time of the tape's choice already.
        if self._unit() < _AT_ONCE:
            self._is_awake = True
            self._turn()
        else:
            self._wake()

    def _wake(self) -> None:
        if self.is_dead or self.is_paused:
            return
        self._is_awake = True
        self._kernel.after(int(self._unit() * _TURN_DELAY_NS), self._turn)

    def _turn(self) -> None:
        """Run what is ready, and mostly what that makes ready at once, too."""
        if self.is_dead or self.is_paused:
            self._is_awake = False
            return
        ready: deque[Any] = self._ready
        run_outside = self._run_outside
        events._set_running_loop(self)
        try:
            while ready:
                for _ in range(len(ready)):
                    each = ready.popleft()
                    # What a handle does on its own, without a call of Python's for it.
                    try:
                        if isinstance(each, tuple):
                            run_outside(each[0], *each[1])
                        elif not each._cancelled:
                            each._context.run(each._callback, *each._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._failed(each, error)
                    if self.is_dead:
                        return
                if self._unit() < _PAUSES:
                    break
        finally:
            events._set_running_loop(None)
        self._is_awake = False
        if ready:
            self._wake()

    def _failed(self, each: Any, error: BaseException) -> None:
        callback, arguments = each if isinstance(each, tuple) else (each._callback, each._args)
        source = format_helpers._format_callback_source(callback, arguments)
        message = f"Exception in callback {source}"
        self.call_exception_handler({"message": message, "exception": error, "handle": each})


@contextlib.contextmanager
def on_a_dead_loop() -> Iterator[None]:
    """Have what begins in this block begin on a loop that never runs."""
    loop = ProcessLoop(Kernel(0), lambda _: None)  # type: ignore[abstract]
    loop.die()
    events._set_running_loop(loop)
    try:
        yield
    finally:
        events._set_running_loop(None)
