"""Entries whose ids the writer chose: in any order in, in the order of ids out.

    ExplicitIds(first_entry_id=0)
      .check(entry_id)                 raises if the id was used, or is not one
      .put(entry_id, item) -> list     what can be sent now: the item and those that waited for it
      .take_back() -> list             what waits behind a hole, when nothing fills it any more
      .next_entry_id .last_entry_id .waiting_count

An entry ahead of a hole is not sent: nothing could confirm it, and what stands behind a hole when
the writer dies is cut off by recovery anyway.  So entries leave in the order of their ids, every
entry's length counts exactly those before it, and nothing downstream knows that ids were chosen.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from quorumbook.errors import DuplicateEntryIdError
from quorumbook.ids import EntryId

T = TypeVar("T")


class ExplicitIds(Generic[T]):
    """See the module's docstring."""

    def __init__(self, first_entry_id: EntryId = 0) -> None:
        """Begin with the id that must come first."""
        #: The lowest id not used: the hole, if anything waits.
        self.next_entry_id = first_entry_id
        #: The highest id used.
        self.last_entry_id = first_entry_id - 1
        self._waiting: dict[EntryId, T] = {}

    @property
    def waiting_count(self) -> int:
        """Return how many entries wait behind the hole."""
        return len(self._waiting)

    def check(self, entry_id: EntryId) -> None:
        """Raise DuplicateEntryIdError if an id was used (ids below zero count as used)."""
        if entry_id < self.next_entry_id or entry_id in self._waiting:
            raise DuplicateEntryIdError(
                f"entry id {entry_id} was used already; the lowest free one is "
                f"{self.next_entry_id}",
                entry_id=entry_id,
            )

    def put(self, entry_id: EntryId, item: T) -> list[T]:
        """Take an entry in and return all that now stand in a row behind what was returned.

        Raises:
            DuplicateEntryIdError: the id was used.
        """
        self.check(entry_id)
        self.last_entry_id = max(self.last_entry_id, entry_id)
        if entry_id != self.next_entry_id:
            self._waiting[entry_id] = item
            return []
        row = [item]
        self.next_entry_id += 1
        while self.next_entry_id in self._waiting:
            row.append(self._waiting.pop(self.next_entry_id))
            self.next_entry_id += 1
        return row

    def take_back(self) -> list[T]:
        """Give up what waits behind the hole, and return it in the order of ids."""
        waiting, self._waiting = self._waiting, {}
        return [waiting[entry_id] for entry_id in sorted(waiting)]
