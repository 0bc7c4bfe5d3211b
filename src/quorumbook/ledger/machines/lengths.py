"""The length of a ledger at any of its newest entries, kept by batch.

A ledger is closed with the number of payload bytes up to its last confirmed entry, which may lie in
the middle of a batch.  One object is kept for each batch that is not confirmed entirely.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from quorumbook.errors import InternalError
from quorumbook.ids import EntryId


class _Batch:
    __slots__ = ("count", "first_entry_id", "length_before", "sizes", "total_size_bytes")

    def __init__(
        self,
        first_entry_id: EntryId,
        count: int,
        length_before: int,
        total_size_bytes: int,
        sizes: Sequence[int] | None,
    ) -> None:
        self.first_entry_id = first_entry_id
        self.count = count
        self.length_before = length_before
        self.total_size_bytes = total_size_bytes
        self.sizes = sizes

    def length_after(self, entry_id: EntryId) -> int:
        taken = entry_id - self.first_entry_id + 1
        if self.sizes is not None:
            return self.length_before + sum(self.sizes[:taken])
        return self.length_before + self.total_size_bytes * taken // self.count


class Lengths:
    """Lengths after the confirmed and after the newest entry."""

    __slots__ = ("_batches", "length", "length_confirmed")

    def __init__(self) -> None:
        self.length = 0
        #: With all batches that are confirmed entirely.
        self.length_confirmed = 0
        self._batches: deque[_Batch] = deque()

    def push(
        self,
        first_entry_id: EntryId,
        count: int,
        total_size_bytes: int,
        sizes: Sequence[int] | None,
    ) -> None:
        """Take in a batch; without ``sizes`` its payloads are all of one size."""
        self._batches.append(_Batch(first_entry_id, count, self.length, total_size_bytes, sizes))
        self.length += total_size_bytes

    def confirm(self, last_entry_id: EntryId) -> None:
        """Forget the batches that are confirmed entirely."""
        batches = self._batches
        while batches and batches[0].first_entry_id + batches[0].count - 1 <= last_entry_id:
            batch = batches.popleft()
            self.length_confirmed = batch.length_before + batch.total_size_bytes

    def length_after(self, last_entry_id: EntryId) -> int:
        """Return the length with the last confirmed entry as the last."""
        if self._batches and self._batches[0].first_entry_id <= last_entry_id:
            return self._batches[0].length_after(last_entry_id)
        return self.length_confirmed

    def check(self, last_add_confirmed: EntryId, next_entry_id: EntryId) -> None:
        """Derive again that the batches lie side by side from the confirmed entries on."""
        expected_first, length = last_add_confirmed + 1, self.length_confirmed
        for batch in self._batches:
            if batch.length_before != length or batch.first_entry_id > expected_first:
                raise InternalError(f"the batch at entry {batch.first_entry_id} does not fit")
            length += batch.total_size_bytes
            expected_first = batch.first_entry_id + batch.count
        if length != self.length or expected_first != next_entry_id:
            raise InternalError(f"batches end at {expected_first} with length {length}")
