"""Appends whose ids the caller chose, on their way to the writer: which of them may go now.

The order is kept by ``ledger.machines.explicit_ids``; here are the futures, the window and who
waits for room.  The entry that all others wait for gets room when nothing else could make any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from quorumbook.client.waiting.outcomes import copy_error, fail
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES, Window
from quorumbook.errors import BackpressureError, LedgerClosedError, QuorumbookError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.machines.explicit_ids import ExplicitIds

Append: TypeAlias = tuple[bytes, asyncio.Future[EntryId]]


class ChosenAppends:
    """The appends of one writer whose caller chooses the ids."""

    def __init__(
        self,
        ledger_id: LedgerId,
        window: Window,
        most_ahead: int,
        send: Callable[[list[Append]], None],
    ) -> None:
        """Begin with an empty ledger.

        Args:
            ledger_id: The ledger.
            window: The writer's.
            most_ahead: An id may be so far ahead of the lowest one that is missing.
            send: Takes appends that go now, in the order of their ids.
        """
        self._id = ledger_id
        self._window = window
        self._most_ahead = most_ahead
        self._send = send
        self._ids: ExplicitIds[Append] = ExplicitIds()
        # Who is next is decided by ids, not by who came first.
        window.wakes_everybody = True

    @property
    def last_entry_id(self) -> EntryId:
        """Return the highest id used."""
        return self._ids.last_entry_id

    def append(self, entry_id: EntryId, payload: bytes) -> asyncio.Future[EntryId]:
        """Take an entry in; its future resolves when it and all below it are confirmed.

        Raises:
            DuplicateEntryIdError: the id was used.
            BackpressureError: there is no room for it now.
        """
        self._ids.check(entry_id)
        window = self._window
        ahead = entry_id - self._ids.next_entry_id
        if ahead >= self._most_ahead:
            raise BackpressureError(
                f"entry {entry_id} is {ahead} ahead of {self._ids.next_entry_id}, the lowest one "
                f"missing (max_pending_entries is {self._most_ahead})",
                ledger_id=self._id,
                entry_id=entry_id,
            )
        is_awaited = not ahead and window.used_entries == self._ids.waiting_count
        if not is_awaited:
            window.check_room(1, len(payload))
        window.entries -= 1
        window.size_bytes -= len(payload) + ENTRY_OVERHEAD_BYTES
        future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()
        row = self._ids.put(entry_id, (payload, future))
        if row:
            self._send(row)
        return future

    def give_up(self, error: QuorumbookError | None = None) -> None:
        """Fail what waits behind a hole: with the writer's error, or because it is closed."""
        missing = self._ids.next_entry_id
        appends = self._ids.take_back()
        size_bytes = sum(len(payload) + ENTRY_OVERHEAD_BYTES for payload, _ in appends)
        self._window.give_back(len(appends), size_bytes, self._window.clogged_bytes)
        closed = LedgerClosedError(
            f"ledger {self._id} is closed: entry {missing} was never appended",
            ledger_id=self._id,
            entry_id=missing,
        )
        for _, future in appends:
            fail(future, copy_error(error or closed))
