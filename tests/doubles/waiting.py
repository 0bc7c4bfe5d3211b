"""How tests wait: for a condition, never for seconds."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

#: Longer than anything takes that a test waits for.
PATIENCE_S = 60.0


async def until(
    condition: Callable[[], object], what: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Wait until something holds; what has to be asked for may be a coroutine function.

    Args:
        condition: Asked again and again.
        what: What is waited for, if the condition does not say so by itself.
        patience_s: Turns a hang into a failure; no test's outcome depends on it.
    """
    try:
        async with asyncio.timeout(patience_s):
            while True:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
                await asyncio.sleep(0.002)
    except TimeoutError as error:
        raise AssertionError(f"still waiting after {patience_s:g} s: {what}") from error
