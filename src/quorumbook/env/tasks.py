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


async def finish_all(*work: Awaitable[Any]) -> None:
    """Wait until all is over, and only then raise the first error that came of it, if any."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def gather_bounded(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Return what comes of each item, in their order; ``AT_ONCE`` are under way together.

    Once one fails the others are cancelled, and all are over when its error is raised.
    """
    found: list[R] = []
    for first in range(0, len(items), AT_ONCE):
        tasks = [asyncio.ensure_future(work(item)) for item in items[first : first + AT_ONCE]]
        try:
            found += await asyncio.gather(*tasks)
        except BaseException:
            await cancel_and_wait(tasks)
            raise
    return found
