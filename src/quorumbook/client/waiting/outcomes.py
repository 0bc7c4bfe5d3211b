"""Waiting that ends: operations within their time, tasks others may cancel, futures that fail."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any, TypeVar

from quorumbook.env import patience
from quorumbook.errors import ClientClosedError, QuorumbookError, RequestTimeoutError

T = TypeVar("T")


class _Limit:
    """The time that an operation may take; a class, as every operation has one."""

    __slots__ = ("_scope", "_seconds", "_what")

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._scope = patience.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as over:
            raise self._error() from over
        if isinstance(error, TimeoutError) and not isinstance(error, QuorumbookError):
            raise self._error() from error

    def _error(self) -> RequestTimeoutError:
        return RequestTimeoutError(f"{self._what} took longer than {self._seconds:g} s")


def limit(seconds: float, what: str) -> contextlib.AbstractAsyncContextManager[None]:
    """Give an operation so much time.

    Raises:
        RequestTimeoutError: it takes longer; whether it happens all the same is unknown.
    """
    return _Limit(seconds, what)


async def each_within(
    items: AsyncIterator[T], seconds: float, what: str
) -> AsyncGenerator[T, None]:
    """Yield the items; each may take so long to come."""
    while True:
        async with limit(seconds, what):
            try:
                item = await anext(items)
            except StopAsyncIteration:
                return
        yield item


async def outcome_of(task: asyncio.Task[T]) -> T:
    """Wait for a shared task; being cancelled leaves it running.

    Raises:
        ClientClosedError: the task was cancelled, as the client does with all when it closes.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if not task.cancelled() or (current is not None and current.cancelling()):
            raise
        raise ClientClosedError("the client is closed") from None


def fail(future: asyncio.Future[Any], error: QuorumbookError) -> None:
    """Give a future its error; whoever let go of it in the meantime need not hear of it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def copy_error(error: QuorumbookError) -> QuorumbookError:
    """Return an error of its own for each waiter: a raised one collects its raiser's frames."""
    another = copy.copy(error)
    another.__cause__ = error.__cause__
    return another
