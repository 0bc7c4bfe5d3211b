"""Runs: consecutive entries of one ledger as one piece of memory.

Three places of the peer's formats write an entry the same way, a 4-byte size and that many bytes:

    journal record        int32 size, entry
    entry log record      int32 size, entry
    batch read answer     int32 size, entry

So the entries that arrive together are joined once into

    data = (int32 size, entry bytes) (int32 size, entry bytes) ...

and these bytes go into the journal, the write cache, the entry log, the read cache and the
answer of a batch read unchanged.  What crosses a boundary on the hot path is a run; nothing in
those rooms touches a single entry.

``sizes`` says how many bytes each entry has: one integer where all are alike (the usual case),
else a list with one number for each id from first to last, 0 for an id that is not here (the
ensemble stripes).  Entry bytes are laid out as in ``digest.py``: ledger id, entry id, last add
confirmed and length first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct

from quorumbook.ids import EntryId, LedgerId

SIZE = Struct(">i")
_LAC = Struct(">q")
_LAC_OFFSET = 16


class EntryRun:
    """Entries ``first_entry_id`` to ``last_entry_id`` of a ledger; treat as immutable."""

    __slots__ = ("_ends", "count", "data", "first_entry_id", "last_entry_id", "ledger_id", "sizes")

    def __init__(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        last_entry_id: EntryId,
        sizes: int | Sequence[int],
        data: bytes,
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id
        self.sizes = sizes
        self.data = data
        self._ends: list[int] | None = None
        if isinstance(sizes, int):
            self.count = last_entry_id - first_entry_id + 1
        else:
            self.count = len(sizes) - list(sizes).count(0)

    @classmethod
    def of(cls, ledger_id: LedgerId, first_entry_id: EntryId, bodies: Sequence[bytes]) -> EntryRun:
        """Join entries without holes."""
        last_entry_id = first_entry_id + len(bodies) - 1
        size = len(bodies[0])
        if len(bodies) == 1:
            return cls(ledger_id, first_entry_id, last_entry_id, size, SIZE.pack(size) + bodies[0])
        sizes = list(map(len, bodies))
        if sizes.count(size) == len(sizes):
            # One join in C instead of a step per entry: the size is the separator.
            prefix = SIZE.pack(size)
            return cls(ledger_id, first_entry_id, last_entry_id, size, prefix + prefix.join(bodies))
        pack = SIZE.pack
        parts = [piece for body in bodies for piece in (pack(len(body)), body)]
        return cls(ledger_id, first_entry_id, last_entry_id, sizes, b"".join(parts))

    def __repr__(self) -> str:
        return (
            f"EntryRun(ledger {self.ledger_id}, entries {self.first_entry_id} to "
            f"{self.last_entry_id}, {len(self.data)} bytes)"
        )

    def bounds(self, entry_id: EntryId) -> tuple[int, int]:
        """Return where the entry's bytes start and end in ``data``; equal if it is a hole."""
        index = entry_id - self.first_entry_id
        sizes = self.sizes
        if isinstance(sizes, int):
            start = index * (sizes + 4) + 4
            return start, start + sizes
        if self._ends is None:
            self._ends = list(accumulate(size + 4 if size else 0 for size in sizes))
        end = self._ends[index]
        return end - sizes[index], end

    def entries_at(self, entry_ids: range) -> list[memoryview]:
        """Return the entries of ascending ids within the run, empty where there is a hole."""
        view, size = memoryview(self.data), self.sizes
        if not isinstance(size, int):
            return [view[slice(*self.bounds(entry_id))] for entry_id in entry_ids]
        start, end = self.bounds(entry_ids[0])[0], self.bounds(entry_ids[-1])[1]
        return [view[at : at + size] for at in range(start, end, (size + 4) * entry_ids.step)]

    def has(self, entry_id: EntryId) -> bool:
        """Tell whether the entry is here."""
        if not self.first_entry_id <= entry_id <= self.last_entry_id:
            return False
        return isinstance(self.sizes, int) or self.sizes[entry_id - self.first_entry_id] > 0

    def entry(self, entry_id: EntryId) -> bytes | None:
        """Return the entry's bytes, or None if it is not here."""
        if not self.has(entry_id):
            return None
        start, end = self.bounds(entry_id)
        return self.data[start:end]

    def entry_ids(self) -> Sequence[EntryId]:
        """Return the ids that are here, ascending."""
        ids = range(self.first_entry_id, self.last_entry_id + 1)
        if isinstance(self.sizes, int):
            return ids
        return [entry_id for entry_id, size in zip(ids, self.sizes, strict=True) if size]

    def entries(self) -> Iterator[tuple[EntryId, bytes]]:
        """Yield ids and entry bytes, ascending."""
        for entry_id in self.entry_ids():
            start, end = self.bounds(entry_id)
            yield entry_id, self.data[start:end]

    def slice(self, first_entry_id: EntryId, last_entry_id: EntryId) -> EntryRun:
        """Return the part of the run between two ids that are both here."""
        if first_entry_id == self.first_entry_id and last_entry_id == self.last_entry_id:
            return self
        start = self.bounds(first_entry_id)[0] - 4
        end = self.bounds(last_entry_id)[1]
        sizes = self.sizes
        if not isinstance(sizes, int):
            base = self.first_entry_id
            sizes = sizes[first_entry_id - base : last_entry_id - base + 1]
        return EntryRun(self.ledger_id, first_entry_id, last_entry_id, sizes, self.data[start:end])

    def last_add_confirmed(self) -> EntryId:
        """Return the last add confirmed that the writer knew when it sent the newest entry."""
        sizes = self.sizes
        if isinstance(sizes, int):
            start = (self.last_entry_id - self.first_entry_id) * (sizes + 4) + 4
            end = start + sizes
        else:
            start, end = self.bounds(self.last_entry_id)
        if end - start < _LAC_OFFSET + 8:
            return -1
        lac: int = _LAC.unpack_from(self.data, start + _LAC_OFFSET)[0]
        return lac
