"""Reads the segments that follow the present one at the same time, in bounded memory.

A small segment costs its reader more in waiting than in bytes: its ledger's metadata, then one
answer of a bookie.  Here some are opened ahead, and those that fit into the bound are read whole.
Room is given in the order of the stream, and back when the segment is done; a segment that is
larger than the bound is opened ahead and read when its turn comes, by the ledger's own read-ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice

from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import QuorumbookError
from quorumbook.streams.reading.segment_list import Listed
from quorumbook.streams.reading.segment_reader import SegmentReader, open_segment
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.reader import PartsReader

#: Segments that are opened ahead.
_MAX_SEGMENTS = 8
#: What an entry takes beside its bytes: header, checksum, and an object.
_ENTRY_OVERHEAD_BYTES = 160


def _size_in_memory(ledger: LedgerReader | PartsReader) -> int:
    """Return what a closed ledger's entries take: the answers, and the payloads cut from them."""
    entries = ledger.last_add_confirmed + 1
    return 2 * ledger.length + entries * _ENTRY_OVERHEAD_BYTES


class _Ahead:
    """A segment that is opened, and maybe read, before its turn."""

    __slots__ = ("has_turn", "listed", "size_bytes", "task")

    def __init__(self, listed: Listed) -> None:
        self.listed = listed
        #: What it takes of the bound.
        self.size_bytes = 0
        #: Set when it has its room, or wants none: the next one may ask.
        self.has_turn = asyncio.Event()
        self.task: asyncio.Task[SegmentReader | None]


class ReadAhead:
    """The segments behind the one that is read."""

    def __init__(self, context: StreamContext, max_bytes: int) -> None:
        """Begin with none; with 0 bytes nothing is done ahead."""
        self._context = context
        self._max_bytes = max_bytes
        self._line: deque[_Ahead] = deque()
        self._taken: _Ahead | None = None
        self._freed = asyncio.Event()
        self._over: set[asyncio.Task[SegmentReader | None]] = set()
        #: What is in memory, or will be.
        self.used_bytes = 0

    def plan(self, following: Iterable[Listed]) -> None:
        """Open and read the first of these completed segments, and forget all others."""
        wanted = list(islice(following, _MAX_SEGMENTS if self._max_bytes else 0))
        known = 0
        while known < min(len(wanted), len(self._line)):
            if self._line[known].listed.segment != wanted[known].segment:
                break
            known += 1
        while len(self._line) > known:
            self._drop(self._line.pop())
        for listed in wanted[known:]:
            item = _Ahead(listed)
            before = self._line[-1] if self._line else None
            item.task = asyncio.create_task(self._fetch(item, before))
            self._line.append(item)

    async def take(self, listed: Listed) -> SegmentReader | None:
        """Return the segment whose turn it is, open; None if its ledger is gone."""
        self.done()
        while self._line and self._line[0].listed.segment != listed.segment:
            self._drop(self._line.popleft())
        if not self._line:
            return await open_segment(self._context, *listed)
        self._taken = item = self._line.popleft()
        try:
            opened = await asyncio.shield(item.task)
            if opened is not None:
                # It may not have been known before what lies in front was read.
                opened.start_sequence_id = listed.start
            return opened
        except QuorumbookError:
            # What was wrong then may be over; if not, it is said now.
            return await open_segment(self._context, *listed)
        except asyncio.CancelledError:
            self._taken = None
            self._drop(item)
            raise

    def done(self) -> None:
        """Give back the room of what was taken last."""
        taken, self._taken = self._taken, None
        if taken is not None:
            self._give_back(taken)

    async def close(self) -> None:
        """Let go of everything."""
        self.done()
        self.plan(())
        await asyncio.gather(*self._over, return_exceptions=True)

    def _give_back(self, item: _Ahead) -> None:
        self.used_bytes -= item.size_bytes
        item.size_bytes = 0
        self._freed.set()

    def _drop(self, item: _Ahead) -> None:
        item.task.cancel()
        task = asyncio.create_task(self._let_go(item))
        self._over.add(task)
        task.add_done_callback(self._over.discard)

    async def _let_go(self, item: _Ahead) -> SegmentReader | None:
        (opened,) = await asyncio.gather(item.task, return_exceptions=True)
        if isinstance(opened, SegmentReader):
            await opened.close()
        self._give_back(item)
        return None

    async def _fetch(self, item: _Ahead, before: _Ahead | None) -> SegmentReader | None:
        opened: SegmentReader | None = None
        try:
            opened = await open_segment(self._context, *item.listed)
            if opened is None:
                return None
            if before is not None:
                await before.has_turn.wait()
            if await self._has_room(item, _size_in_memory(opened.ledger)):
                item.has_turn.set()
                await opened.read_whole()
        except BaseException:
            if opened is not None:
                await opened.close()
            raise
        finally:
            item.has_turn.set()
        return opened

    async def _has_room(self, item: _Ahead, size_bytes: int) -> bool:
        """Wait for room; False if there is never so much."""
        if size_bytes > self._max_bytes:
            return False
        while self.used_bytes + size_bytes > self._max_bytes:
            self._freed.clear()
            await self._freed.wait()
        self.used_bytes += size_bytes
        item.size_bytes = size_bytes
        return True
