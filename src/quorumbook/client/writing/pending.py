"""What a writer holds of entries that are not confirmed: their frames, futures and room.

Entries that were packed together are one ``Group``; everything here is done for groups, and the
only loop over entries is the one that resolves their futures.  The frames are the very bytes that
were sent: a bookie that takes another one's place gets the same bytes again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.writing.positions import stripe_of
from quorumbook.errors import QuorumbookError
from quorumbook.ids import EntryId


class Watcher(Protocol):
    """Who wants to know of a group's entries as runs of them become safe, without any future."""

    def on_entries_confirmed(self, last_entry_id: EntryId) -> None:
        """Learn that this entry and all before it are safe."""
        ...

    def on_entries_failed(self, error: QuorumbookError) -> None:
        """Learn that nothing behind what was confirmed is known to be safe."""
        ...


class Group:
    """Consecutive entries that were packed together.

    Either every entry has a future of its own, which gets its id, or all of them share one, which
    gets the range of ids, or a watcher is told of each run of them.
    """

    __slots__ = (
        "count",
        "first_entry_id",
        "frames",
        "future",
        "futures",
        "payloads",
        "resolved",
        "sent_ns",
        "size_bytes",
        "watcher",
    )

    def __init__(
        self,
        payloads: Sequence[bytes],
        futures: list[asyncio.Future[EntryId]] | None,
        future: asyncio.Future[range] | None,
        watcher: Watcher | None = None,
    ) -> None:
        self.payloads = payloads
        self.watcher = watcher
        self.futures = futures
        self.future = future
        self.count = len(payloads)
        self.first_entry_id: EntryId = -1
        self.frames: list[bytes] = []
        self.size_bytes = 0
        #: How many of the entries were confirmed.
        self.resolved = 0
        self.sent_ns = 0

    def resolve(self, last_entry_id: EntryId) -> None:
        """Tell who waits for the entries up to this one; it is in the group."""
        first = self.first_entry_id + self.resolved
        count = last_entry_id - first + 1
        futures = self.futures
        if futures is not None:
            if count != self.count:
                futures = futures[self.resolved : self.resolved + count]
            for entry_id, future in enumerate(futures, first):
                if not future.done():
                    future.set_result(entry_id)
        self.resolved += count
        if self.future is not None and self.resolved == self.count and not self.future.done():
            self.future.set_result(range(self.first_entry_id, last_entry_id + 1))
        if self.watcher is not None:
            self.watcher.on_entries_confirmed(last_entry_id)

    def fail(self, error: QuorumbookError) -> None:
        """Tell who waits for the entries that were not confirmed."""
        if self.watcher is not None:
            self.watcher.on_entries_failed(error)
        futures: list[asyncio.Future[EntryId]] | list[asyncio.Future[range]]
        if self.futures is not None:
            futures = self.futures[self.resolved :]
        else:
            futures = [self.future] if self.future is not None else []
        for future in futures:
            if not future.done():
                future.set_exception(copy_error(error))
                # Who appends without looking at the futures learns of it from flush and close.
                future.exception()


class PendingGroups:
    """The unconfirmed groups, oldest first."""

    __slots__ = ("_groups", "entries", "size_bytes")

    def __init__(self) -> None:
        self._groups: deque[Group] = deque()
        self.entries = 0
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def oldest(self) -> Group:
        """Return the group of the next entry to be confirmed."""
        return self._groups[0]

    def add(self, group: Group) -> None:
        """Take a group in that was packed."""
        self._groups.append(group)
        self.entries += group.count
        self.size_bytes += group.size_bytes

    def confirm(self, last_entry_id: EntryId) -> None:
        """Resolve everything up to an entry, in order."""
        groups = self._groups
        while groups:
            group = groups[0]
            first = group.first_entry_id
            if last_entry_id < first + group.resolved:
                return
            if last_entry_id < first + group.count - 1:
                self.entries -= last_entry_id - first - group.resolved + 1
                group.resolve(last_entry_id)
                return
            groups.popleft()
            self.entries -= group.count - group.resolved
            self.size_bytes -= group.size_bytes
            group.resolve(first + group.count - 1)

    def fail(self, error: QuorumbookError) -> None:
        """Fail everything."""
        groups, self._groups = self._groups, deque()
        self.entries = self.size_bytes = 0
        for group in groups:
            group.fail(error)

    def frames_of(
        self,
        first_entry_id: EntryId,
        last_entry_id: EntryId,
        index: int,
        ensemble_size: int,
        write_quorum_size: int,
    ) -> list[bytes]:
        """Return the frames that a position stores of the unconfirmed entries in a range."""
        frames: list[bytes] = []
        for group in self._groups:
            first = max(first_entry_id, group.first_entry_id)
            last = min(last_entry_id, group.first_entry_id + group.count - 1)
            if first <= last:
                start = first - group.first_entry_id
                part = group.frames[start : last - group.first_entry_id + 1]
                frames += stripe_of(part, first, index, ensemble_size, write_quorum_size)
        return frames


def frozen(payload: object) -> bytes:
    """Copy what could change until the last bookie has it (R6)."""
    if isinstance(payload, bytearray | memoryview | bytes):
        return bytes(payload)
    raise TypeError(f"a payload must be bytes, not {type(payload).__name__}")
