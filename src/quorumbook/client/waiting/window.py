"""What a writer may hold: a bound on entries and bytes, and who waits for room.

Counted are the entries that are not confirmed, and the bytes that a slow bookie has not taken
although its entries are confirmed without it: a write quorum above the ack quorum would otherwise
turn a slow bookie into a growing heap.
"""

from __future__ import annotations

import asyncio
from collections import deque

from quorumbook.errors import BackpressureError, LocalProtocolError

#: What an entry costs beside its payload: frame head, entry header, digest, the bytes object,
#: the future and its place in lists.
ENTRY_OVERHEAD_BYTES = 300


class Window:
    """The room of one writer; ``entries`` and ``size_bytes`` are what is free."""

    __slots__ = (
        "_clogged_bytes",
        "_max_bytes",
        "_max_entries",
        "_refused",
        "_waiters",
        "entries",
        "is_over",
        "size_bytes",
        "wakes_everybody",
    )

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._clogged_bytes = 0
        #: Entries and bytes that were refused last: what ``drained`` waits for.
        self._refused = (1, 0)
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.entries = max_entries
        self.size_bytes = max_bytes
        #: The writer takes nothing more: nobody needs to wait.
        self.is_over = False
        #: Who may go on is not decided by who came first: all look when there is room.
        self.wakes_everybody = False

    @property
    def clogged_bytes(self) -> int:
        """How many bytes the slowest bookie has not taken."""
        return self._clogged_bytes

    @property
    def used_entries(self) -> int:
        """How many entries are held."""
        return self._max_entries - self.entries

    @property
    def used_bytes(self) -> int:
        """How many bytes are held, what slow bookies have not taken included."""
        return self._max_bytes - self.size_bytes

    @property
    def has_waiters(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiters)

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Tell whether entries fit; one that is larger than the window fits when it is empty."""
        need = size_bytes + count * ENTRY_OVERHEAD_BYTES
        if self.entries >= count and self.size_bytes >= need:
            return True
        is_empty = self.entries == self._max_entries and not self._clogged_bytes
        return is_empty and count == 1

    def check_room(self, count: int, size_bytes: int) -> None:
        """Raise BackpressureError unless entries fit; LocalProtocolError if they never will."""
        if self.has_room(count, size_bytes):
            return
        check_fits(count, size_bytes, self._max_entries, self._max_bytes)
        self._refused = count, size_bytes
        raise BackpressureError(
            f"{self.used_entries} entries and {self.used_bytes} bytes are pending: no room for "
            f"{count} more with {size_bytes} bytes (max_pending_entries is {self._max_entries}, "
            f"max_pending_bytes {self._max_bytes})"
        )

    def give_back(self, count: int, size_bytes: int, clogged_bytes: int) -> None:
        """Make room: entries were confirmed, and so much is not taken by the slowest bookie."""
        self.entries += count
        self.size_bytes += size_bytes + self._clogged_bytes - clogged_bytes
        self._clogged_bytes = clogged_bytes
        if self._waiters:
            self.wake()

    def clear(self) -> None:
        """Be empty: the writer is done for."""
        self.is_over = True
        self.entries, self.size_bytes = self._max_entries, self._max_bytes
        self._clogged_bytes = 0
        self.wake()

    async def drained(self) -> None:
        """Wait until there is room for what was refused last, or for one entry."""
        (count, size_bytes), self._refused = self._refused, (1, 0)
        has_turn = False
        while not self.is_over and not self.has_room(count, size_bytes):
            await self.wait()
            has_turn = True
        if has_turn:
            self._give_turns(1)  # this one takes no room

    async def wait(self) -> None:
        """Wait for a turn; whoever gets it looks for room itself, and waits again if need be."""
        if self.is_over:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_turns(1)  # the turn goes to the next one
            raise

    def wake(self) -> None:
        """Give as many a turn as there is room for entries, in the order they came."""
        room = self.entries if self.has_room(1, 0) else 0
        is_for_all = self.is_over or self.wakes_everybody
        self._give_turns(len(self._waiters) if is_for_all else room)

    def _give_turns(self, turns: int) -> None:
        waiters = self._waiters
        while turns > 0 and waiters:
            future = waiters.popleft()
            if not future.done():
                future.set_result(None)
                turns -= 1


def check_fits(count: int, size_bytes: int, max_entries: int, max_bytes: int) -> None:
    """Raise LocalProtocolError if entries would not even fit into an empty window together."""
    need = size_bytes + count * ENTRY_OVERHEAD_BYTES
    if count > max_entries or (count > 1 and need > max_bytes):
        raise LocalProtocolError(
            f"{count} entries with {size_bytes} bytes never fit into the window together: "
            f"max_pending_entries is {max_entries}, max_pending_bytes {max_bytes} "
            f"(an entry counts {ENTRY_OVERHEAD_BYTES} bytes beside its payload)"
        )
