"""Ending tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they are over, whatever comes of them.

    Whoever is cancelled meanwhile hears of it when they are over, not before.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
