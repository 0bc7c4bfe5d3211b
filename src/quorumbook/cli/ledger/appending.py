"""Appending a long input in pieces, several under way, never more than the writer can hold."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from quorumbook.errors import BackpressureError

if TYPE_CHECKING:
    from quorumbook import LedgerWriter

_PIECES_UNDER_WAY = 16


class EntryAppender:
    """Sends pieces to a writer and calls back with each range of ids that is safe."""

    def __init__(self, writer: LedgerWriter, on_safe: Callable[[range], None]) -> None:
        self._writer = writer
        self._on_safe = on_safe
        self._under_way: deque[asyncio.Future[range]] = deque()

    async def append(self, piece: list[bytes]) -> None:
        """Send a piece; wait for earlier ones while too much is under way."""
        while len(self._under_way) >= _PIECES_UNDER_WAY:
            await self._oldest()
        while True:
            try:
                self._under_way.append(self._writer.append_batch_nowait(piece))
            except BackpressureError:
                if not self._under_way:
                    raise  # larger than the whole window: it will never fit
                await self._oldest()
            else:
                break
        while self._under_way and self._under_way[0].done():
            await self._oldest()

    async def finish(self) -> None:
        """Wait until every piece is safe."""
        while self._under_way:
            await self._oldest()

    async def _oldest(self) -> None:
        self._on_safe(await self._under_way.popleft())
