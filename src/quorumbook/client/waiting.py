"""Waiting that ends: whole operations within their time, tasks that somebody else may cancel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any, TypeVar

from quorumbook.errors import ClientClosedError, QuorumbookError, RequestTimeoutError

T = TypeVar("T")


@contextlib.asynccontextmanager
async def limit(seconds: float, what: str) -> AsyncGenerator[None, None]:
    """Give an operation so much time.

    Raises:
        RequestTimeoutError: it takes longer; whether it happens all the same is unknown.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except QuorumbookError:
        raise
    except TimeoutError as error:
        raise RequestTimeoutError(f"{what} took longer than {seconds:g} s") from error


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


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they are over, whatever comes of them."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
