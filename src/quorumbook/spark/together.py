"""The same asked about many things: together, but not of all of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 64


async def of_each(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Return what comes of each item, in their order."""
    found: list[R] = []
    for first in range(0, len(items), AT_ONCE):
        found += await asyncio.gather(*map(work, items[first : first + AT_ONCE]))
    return found
