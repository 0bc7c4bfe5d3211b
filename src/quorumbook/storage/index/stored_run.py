"""Where a run of entries lies in an entry log: one row of the index, as a value.

``sizes`` is as in ``EntryRun``: one integer where all entries are alike, else one number for each
id from first to last, 0 for an id that is not here.  ``position`` is where the size field of the
first entry lies.  A run that was cut keeps no checksum, because the whole of it is not there any
more to be checked.  One that cannot be believed keeps it, below ``DAMAGED``: a disk that was away
for a while gives back what was written, and nothing else can tell.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quorumbook.ids import EntryId, LedgerId

#: In the place of a checksum: other bytes are there than were written.  Where the checksum of those
#: is known, that much and one less.
DAMAGED = -1
#: Likewise where the bytes cannot be read, and nobody has seen that they are others.
UNREADABLE = DAMAGED - 1 - 2**32


class StoredExtent(NamedTuple):
    """What is stored of one ledger; it differs if anything comes, and if runs move."""

    run_count: int
    entry_count: int
    #: Sums over the ledger's runs: a new run in the place of an old one lies behind it.
    entry_logs: int
    positions: int

    def moved(self, entry_logs: int, positions: int) -> StoredExtent:
        """Return it after runs of the ledger moved so far in sum."""
        return self._replace(
            entry_logs=self.entry_logs + entry_logs, positions=self.positions + positions
        )


class StoredRun(NamedTuple):
    """Entries ``first_entry_id`` to ``last_entry_id``, both of them here, side by side on disk."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId
    entry_log_id: int
    position: int
    sizes: int | Sequence[int]
    #: CRC32C of the whole run's bytes, None after a cut; ``DAMAGED`` or ``UNREADABLE``, or less.
    checksum: int | None = None
    #: The last add confirmed that the last entry carries, None if unknown.
    last_add_confirmed: EntryId | None = None

    @property
    def is_damaged(self) -> bool:
        """Tell whether the entries are known to be damaged here."""
        return self.checksum is not None and self.checksum <= DAMAGED

    @property
    def is_unreadable(self) -> bool:
        """Tell whether they are so because they could not be read."""
        return self.checksum is not None and self.checksum <= UNREADABLE

    @property
    def written_checksum(self) -> int | None:
        """CRC32C of the bytes that were written, None where nobody knows it."""
        if self.checksum is None or self.checksum in (DAMAGED, UNREADABLE):
            return None
        if not self.is_damaged:
            return self.checksum
        return (UNREADABLE if self.is_unreadable else DAMAGED) - 1 - self.checksum

    @property
    def is_believed_unproven(self) -> bool:
        """Tell whether sizes and ids have to do, as it was cut, and nobody has seen damage."""
        return self.checksum is None or self.checksum == UNREADABLE

    def condemned(self, *, was_read: bool) -> StoredRun:
        """Return it as one that is damaged, until its bytes are those that were written.

        Args:
            was_read: It is known that they are others; else they could not be read.
        """
        is_other = was_read or (self.is_damaged and not self.is_unreadable)
        kind, written = DAMAGED if is_other else UNREADABLE, self.written_checksum
        return self._replace(checksum=kind if written is None else kind - 1 - written)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, size fields included."""
        sizes = self.sizes
        if isinstance(sizes, int):
            return (self.last_entry_id - self.first_entry_id + 1) * (sizes + 4)
        return sum(sizes) + 4 * self.entry_count

    @property
    def entry_count(self) -> int:
        """How many entries are here."""
        span = self.last_entry_id - self.first_entry_id + 1
        return span if isinstance(self.sizes, int) else span - _zeros(self.sizes)

    @property
    def has_holes(self) -> bool:
        """Tell whether an id between first and last is missing."""
        return not isinstance(self.sizes, int) and 0 in self.sizes

    def size_of(self, entry_id: EntryId) -> int:
        """Return the entry's size, 0 for a hole."""
        sizes = self.sizes
        return sizes if isinstance(sizes, int) else sizes[entry_id - self.first_entry_id]

    def position_of(self, entry_id: EntryId) -> int:
        """Return where the entry's size field lies."""
        index = entry_id - self.first_entry_id
        sizes = self.sizes
        if isinstance(sizes, int):
            return self.position + index * (sizes + 4)
        before = sizes[:index]
        return self.position + sum(before) + 4 * (index - _zeros(before))

    def entry_after(self, entry_id: EntryId) -> EntryId | None:
        """Return the first id here that is above ``entry_id``."""
        if entry_id < self.first_entry_id:
            return self.first_entry_id
        if entry_id >= self.last_entry_id:
            return None
        entry_id += 1
        if not isinstance(self.sizes, int):
            while not self.sizes[entry_id - self.first_entry_id]:
                entry_id += 1
        return entry_id

    def entry_before(self, entry_id: EntryId) -> EntryId | None:
        """Return the last id here that is below ``entry_id``."""
        if entry_id > self.last_entry_id:
            return self.last_entry_id
        if entry_id <= self.first_entry_id:
            return None
        entry_id -= 1
        if not isinstance(self.sizes, int):
            while not self.sizes[entry_id - self.first_entry_id]:
                entry_id -= 1
        return entry_id

    def part(self, first_entry_id: EntryId, last_entry_id: EntryId) -> StoredRun:
        """Return the part between two ids that are both here."""
        if first_entry_id == self.first_entry_id and last_entry_id == self.last_entry_id:
            return self
        sizes = self.sizes
        if not isinstance(sizes, int):
            base = self.first_entry_id
            sizes = sizes[first_entry_id - base : last_entry_id - base + 1]
        is_end = last_entry_id == self.last_entry_id
        unproven = UNREADABLE if self.is_unreadable else DAMAGED if self.is_damaged else None
        return StoredRun(
            self.ledger_id,
            first_entry_id,
            last_entry_id,
            self.entry_log_id,
            self.position_of(first_entry_id),
            sizes,
            unproven,
            self.last_add_confirmed if is_end else None,
        )

    def without_holes(self) -> Iterator[StoredRun]:
        """Yield the maximal parts in which every id is here."""
        for ids in self.ranges():
            yield self.part(ids.start, ids.stop - 1)

    def ranges(self) -> list[range]:
        """Return the ids that are here as ascending ranges."""
        first, last, sizes = self.first_entry_id, self.last_entry_id, self.sizes
        if isinstance(sizes, int) or 0 not in sizes:
            return [range(first, last + 1)]
        ranges, start = [], None
        for entry_id, size in enumerate(sizes, first):
            if size and start is None:
                start = entry_id
            elif not size and start is not None:
                ranges.append(range(start, entry_id))
                start = None
        if start is not None:
            ranges.append(range(start, last + 1))
        return ranges


def _zeros(sizes: Sequence[int]) -> int:
    """Count the zeros at C speed; ``array.count`` exists, the protocol's is for sequences."""
    return sizes.count(0)


def packed_size_bytes(packed: bytes) -> int:
    """Return the bytes of a run of the given sizes, as the index keeps them: uint32, little."""
    sizes = array("I", packed)
    if sys.byteorder == "big":
        sizes.byteswap()
    return sum(sizes) + 4 * (len(sizes) - _zeros(sizes))
