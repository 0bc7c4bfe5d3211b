"""Pages of a bookie begin one after another, each in a turn of the loop of its own.

A page takes a millisecond at most, but sixty who ask at once would have it for sixty in one turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from quorumbook.bookie.http.server import Body, Page


def one_in_a_turn(pages: Mapping[str, Page]) -> dict[str, Page]:
    """Return the same pages; all of them together wait for one another's beginning."""
    turn = asyncio.Lock()

    def in_turn(page: Page) -> Page:
        async def answer(method: str, target: str, body: Body) -> tuple[int, object]:
            async with turn:
                # Who waits next is woken by the end of this, and goes on in the turn after it.
                await asyncio.sleep(0)
            return await page(method, target, body)

        return answer

    return {path: in_turn(page) for path, page in pages.items()}
