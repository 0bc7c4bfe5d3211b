"""Many tasks: ending them, and the same asked about many things."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
#: So many questions wait for their answers at a time.
AT_ONCE = 64


async def cancel_and_wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they are over, whatever comes of them.

    Whoever is cancelled meanwhile hears of it when they are over, not before.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_bounded(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Return what comes of each item, in their order; ``AT_ONCE`` are under way together."""
    found: list[R] = []
    for first in range(0, len(items), AT_ONCE):
        found += await asyncio.gather(*map(work, items[first : first + AT_ONCE]))
    return found


async def gather_or_cancel(
    work: Callable[[T], Awaitable[R]], items: Sequence[T], at_once: int
) -> list[R]:
    """Return what comes of each item, in their order; once one fails, all are over.

    Args:
        work: What is done with an item.
        items: Which.
        at_once: So many are under way together.
    """
    found: list[R] = []
    for first in range(0, len(items), at_once):
        tasks = [asyncio.ensure_future(work(item)) for item in items[first : first + at_once]]
        try:
            found += await asyncio.gather(*tasks)
        finally:
            await cancel_and_wait(tasks)
    return found
