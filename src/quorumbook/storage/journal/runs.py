"""Putting journal records together into runs.

Consecutive entries of one ledger lie in the journal as they lie in ``EntryRun.data``, so a
stretch of them is sliced once.  A ledger's stretches are joined, up to a bounded size, over
whatever lies between them: a thousand ledgers that were written in turn come back as runs, not as
single entries.  The order of everything of one ledger is kept; ledgers have nothing to do with
each other.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun

#: A run handed over is not larger, except for a single entry that is.
RUN_SIZE_BYTES = 1024 * 1024
#: A striped ledger's ids have holes; a jump by more starts a new run.
GAP_LIMIT = 16
#: All stretches that are not handed over yet are not larger together.
OPEN_SIZE_BYTES = 16 * 1024 * 1024

_HEAD = Struct(">iqq")
#: An entry has its two ids at least.
_LEAST_SIZE = 16


class JournalVisitor(Protocol):
    """Who is told what a journal holds, each ledger's in its order."""

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


class _Open:
    """What is collected of a ledger."""

    __slots__ = ("first", "last", "pieces", "size_bytes", "sizes")

    def __init__(self, first: EntryId) -> None:
        self.first = first
        self.last = first - 1
        self.sizes: list[int] = []
        self.pieces: list[bytes] = []
        self.size_bytes = 0


class RunCollector:
    """Collects stretches by ledger and hands them to a visitor as runs."""

    def __init__(self, visitor: JournalVisitor) -> None:
        self._visitor = visitor
        self.records = 0
        self._data = b""
        self._open: dict[LedgerId, _Open] = {}
        self._open_bytes = 0

    def begin(self, data: bytes) -> None:
        """Work on this piece of the file from now on."""
        self._data = data

    def end(self) -> None:
        """Let go of the piece."""
        self._data = b""

    def entries(
        self, position: int, size: int, ledger_id: LedgerId, entry_id: EntryId, limit: int
    ) -> int:
        """Take the entries that follow each other from ``position`` on; return where they end.

        The first record is known to be whole; the last one ends at ``limit`` or before it.
        """
        data = self._data
        unpack = _HEAD.unpack_from
        last_head = limit - _HEAD.size
        while True:
            # The record at ``position`` is whole, and may begin a stretch.
            found = self._open.get(ledger_id)
            if found is None or not found.last < entry_id <= found.last + GAP_LIMIT:
                if found is not None:
                    self._hand_over(ledger_id)
                found = self._open[ledger_id] = _Open(entry_id)
            last, sizes = found.last, found.sizes
            stop = position + RUN_SIZE_BYTES - found.size_bytes
            start = position
            stretch_ledger = ledger_id
            while True:
                if entry_id - last > 1:
                    sizes.extend([0] * (entry_id - last - 1))
                sizes.append(size)
                self.records += 1
                last = entry_id
                position += 4 + size
                if position > last_head:
                    is_over = True
                    break
                size, ledger_id, entry_id = unpack(data, position)
                is_over = entry_id < 0 or size < _LEAST_SIZE or position + 4 + size > limit
                if (
                    is_over
                    or position >= stop
                    or ledger_id != stretch_ledger
                    or not last < entry_id <= last + GAP_LIMIT
                ):
                    break
            found.last = last
            found.pieces.append(data[start:position])
            found.size_bytes += position - start
            self._open_bytes += position - start
            if position >= stop:
                self._hand_over(stretch_ledger)
            elif self._open_bytes >= OPEN_SIZE_BYTES:
                self.flush()
            if is_over:
                return position

    def visitor_key(self, ledger_id: LedgerId, master_key: bytes) -> None:
        """Pass a key on."""
        self._hand_over(ledger_id)
        self.records += 1
        self._visitor.on_key(ledger_id, master_key)

    def visitor_fence(self, ledger_id: LedgerId) -> None:
        """Pass a fence on."""
        self._hand_over(ledger_id)
        self.records += 1
        self._visitor.on_fence(ledger_id)

    def visitor_lac(self, ledger_id: LedgerId, packet: bytes) -> None:
        """Pass an explicit last add confirmed on."""
        self._hand_over(ledger_id)
        self.records += 1
        self._visitor.on_lac(ledger_id, packet)

    def skipped(self) -> None:
        """Count a record that means nothing."""
        self.records += 1

    def flush(self) -> None:
        """Hand over what is collected."""
        for ledger_id in list(self._open):
            self._hand_over(ledger_id)

    def _hand_over(self, ledger_id: LedgerId) -> None:
        found = self._open.pop(ledger_id, None)
        if found is None:
            return
        self._open_bytes -= found.size_bytes
        sizes: int | list[int] = found.sizes
        if found.sizes.count(found.sizes[0]) == len(found.sizes):
            sizes = found.sizes[0]
        pieces = found.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._visitor.on_run(EntryRun(ledger_id, found.first, found.last, sizes, data))
