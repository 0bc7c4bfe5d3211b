"""How the blocking twin is declared: each method names the one of asyncio that does its work.

    class Cursor(Twin[aio.Cursor]):
        commit = blocking(aio.Cursor.commit)
        lag = blocking(aio.Cursor.lag)
        name = held(aio.Cursor, lambda cursor: cursor.name)

Parameters, their types and the documentation are those of the method of asyncio.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from quorumbook.loop_thread import run_once

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TwinMethod(Protocol[P, R_co]):
    """A method with the parameters of another, for type checkers and editors."""

    @overload
    def __get__(self, twin: None, kind: type, /) -> Callable[Concatenate[Any, P], R_co]: ...
    @overload
    def __get__(self, twin: object, kind: type | None = None, /) -> Callable[P, R_co]: ...


@overload
def blocking(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> TwinMethod[P, R]: ...
@overload
def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[T]], then: Callable[[T], R]
) -> TwinMethod[P, R]: ...
def blocking(method: Any, then: Any = None) -> Any:
    """Return a method that waits for one of asyncio.

    Args:
        method: The one of asyncio.
        then: What makes the result of it: the twin of an object, say.
    """
    name = method.__name__

    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        found = self._run(lambda: getattr(self._aio, name)(*args, **keywords))
        return found if then is None else then(found)

    return described_as(method)(call)


def deriving(method: Callable[Concatenate[Any, P], T], then: Callable[[T], R]) -> TwinMethod[P, R]:
    """Return a method that makes something of what a method of asyncio returns at once."""
    name = method.__name__

    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        return then(getattr(self._aio, name)(*args, **keywords))

    described: TwinMethod[P, R] = described_as(method)(call)
    return described


def once(function: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """Return a function that runs one of asyncio's, which belongs to nothing yet."""

    def call(*args: P.args, **keywords: P.kwargs) -> R:
        return run_once(lambda: function(*args, **keywords))

    return cast("Callable[P, R]", described_as(function)(call))


def iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> TwinMethod[P, Iterator[R]]:
    """Return a method that iterates as one of asyncio does, step by step."""
    name = method.__name__

    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        return self._iterate(lambda: getattr(self._aio, name)(*args, **keywords))

    described: TwinMethod[P, Iterator[R]] = described_as(method)(call)
    return described


def described_as(method: Callable[..., Any]) -> Callable[[Any], Any]:
    """Give a function the name, the parameters and the documentation of one of asyncio's."""

    def described(call: Any) -> Any:
        call.__name__, call.__doc__ = method.__name__, method.__doc__
        call.__qualname__ = method.__qualname__
        signature = inspect.signature(method)
        call.__signature__ = signature.replace(return_annotation=signature.empty)
        return call

    return described


class Held(Protocol[R_co]):
    """A value that a twin shows, for type checkers and editors."""

    @overload
    def __get__(self, twin: None, kind: type, /) -> property: ...
    @overload
    def __get__(self, twin: object, kind: type | None = None, /) -> R_co: ...


def held(kind: type[A], value: Callable[[A], R]) -> Held[R]:
    """Return a property that shows what the object of asyncio knows, without waiting."""
    shown = getattr(kind, value.__code__.co_names[-1], None)  # a plain attribute has no doc
    twin = property(lambda twin: value(twin._aio), doc=shown and inspect.getdoc(shown))  # noqa: SLF001 - ours
    return cast("Held[R]", twin)
