"""Putting journal records together into runs.

Consecutive entries of one ledger lie in the journal as they lie in ``EntryRun.data``, so a
stretch of them is sliced once.  Stretches that go on in the next group are joined, up to a
bounded size.  The order of everything is kept.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.run import EntryRun

#: A run handed over is not larger, except for a single entry that is.
RUN_SIZE_BYTES = 1024 * 1024
#: A striped ledger's ids have holes; a jump by more starts a new run.
GAP_LIMIT = 16

_HEAD = Struct(">iqq")


class JournalVisitor(Protocol):
    """Who is told what a journal holds, in its order."""

    def on_run(self, run: EntryRun) -> None:
        """Entries of one ledger, ascending."""
        ...

    def on_key(self, ledger_id: LedgerId, master_key: bytes) -> None:
        """A ledger's master key."""
        ...

    def on_fence(self, ledger_id: LedgerId) -> None:
        """A ledger was fenced."""
        ...

    def on_lac(self, ledger_id: LedgerId, packet: bytes) -> None:
        """A ledger's explicit last add confirmed, its packet as it came."""
        ...


class RunCollector:
    """Collects stretches of one ledger and hands them to a visitor as runs."""

    def __init__(self, visitor: JournalVisitor) -> None:
        self._visitor = visitor
        self.records = 0
        self._data = b""
        self._ledger_id: LedgerId = -1
        self._first: EntryId = 0
        self._last: EntryId = -1
        self._sizes: list[int] = []
        self._pieces: list[bytes] = []
        self._collected = 0

    def begin(self, data: bytes) -> None:
        """Work on this piece of the file from now on."""
        self._data = data

    def end(self) -> None:
        """Let go of the piece."""
        self._data = b""

    def entries(
        self, position: int, size: int, ledger_id: LedgerId, entry_id: EntryId, limit: int
    ) -> int:
        """Take the stretch of entries that starts at ``position``; return where it ends.

        The first record is known to be whole; the stretch ends at ``limit`` or before it.
        """
        data = self._data
        last = self._last
        if ledger_id != self._ledger_id or not last < entry_id <= last + GAP_LIMIT:
            self.flush()
            self._ledger_id, self._first = ledger_id, entry_id
            last = entry_id - 1
        sizes = self._sizes
        room = RUN_SIZE_BYTES - self._collected
        stop = min(limit, position + room) if room > 0 else position
        unpack = _HEAD.unpack_from
        start = position
        before = len(sizes)
        holes = 0
        last_head = limit - _HEAD.size
        while True:
            # The record at ``position`` is whole and goes on with the run.
            if entry_id - last > 1:
                holes += entry_id - last - 1
                sizes.extend([0] * (entry_id - last - 1))
            sizes.append(size)
            last = entry_id
            position += 4 + size
            if position > last_head or position >= stop:
                break
            size, next_ledger, entry_id = unpack(data, position)
            if (
                next_ledger != ledger_id
                or not last < entry_id <= last + GAP_LIMIT
                or size < 16
                or position + 4 + size > limit
            ):
                break
        self._last = last
        self.records += len(sizes) - before - holes
        self._pieces.append(data[start:position])
        self._collected += position - start
        if self._collected >= RUN_SIZE_BYTES:
            self.flush()
        return position

    def visitor_key(self, ledger_id: LedgerId, master_key: bytes) -> None:
        """Pass a key on."""
        self.flush()
        self.records += 1
        self._visitor.on_key(ledger_id, master_key)

    def visitor_fence(self, ledger_id: LedgerId) -> None:
        """Pass a fence on."""
        self.flush()
        self.records += 1
        self._visitor.on_fence(ledger_id)

    def visitor_lac(self, ledger_id: LedgerId, packet: bytes) -> None:
        """Pass an explicit last add confirmed on."""
        self.flush()
        self.records += 1
        self._visitor.on_lac(ledger_id, packet)

    def skipped(self) -> None:
        """Count a record that means nothing."""
        self.records += 1

    def flush(self) -> None:
        """Hand over what is collected."""
        if not self._pieces:
            return
        sizes: int | list[int] = self._sizes
        if self._sizes.count(self._sizes[0]) == len(self._sizes):
            sizes = self._sizes[0]
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        run = EntryRun(self._ledger_id, self._first, self._last, sizes, data)
        self._ledger_id, self._last = -1, -1
        self._sizes, self._pieces, self._collected = [], [], 0
        self._visitor.on_run(run)
