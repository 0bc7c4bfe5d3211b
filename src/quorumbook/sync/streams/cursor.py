"""The blocking cursor."""

from __future__ import annotations

from quorumbook.streams.cursors import cursor as aio
from quorumbook.streams.cursors.acks import Acks
from quorumbook.streams.cursors.lag import Lag
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record
from quorumbook.sync.loop import Owned


def unwrapped(cursor: Cursor) -> aio.Cursor:
    """Return the cursor that does the work of a twin."""
    return cursor._aio  # noqa: SLF001 - of this module


class Cursor(Owned):
    """The blocking twin of ``quorumbook.streams.Cursor``."""

    def __init__(self, cursor: aio.Cursor) -> None:
        """Wrap a cursor that was read on the loop thread."""
        super().__init__()
        self._aio = cursor

    @property
    def name(self) -> str:
        """Its name."""
        return self._aio.name

    @property
    def position(self) -> Position:
        """Where to go on reading: ``stream.reader(cursor.position)``."""
        return self._aio.position

    @property
    def state(self) -> bytes | None:
        """What was stored with the position; None if nothing was, or another side moved it."""
        return self._aio.state

    @property
    def holds_retention(self) -> bool:
        """Whether retention keeps what it has not passed."""
        return self._aio.holds_retention

    @property
    def is_overrun(self) -> bool:
        """Whether a hard limit of retention deleted records that it had not passed."""
        return self._aio.is_overrun

    def refresh(self) -> None:
        """Read it again, after a CursorConflictError say."""
        self.run(self._aio.refresh)

    @property
    def acks(self) -> Acks | None:
        """What was acknowledged one by one; None if nothing was from its position on."""
        return self._aio.acks

    @property
    def owner(self) -> str:
        """Which member of a group moves it; empty if none does."""
        return self._aio.owner

    def commit(self, last_processed: Position | Record, *, state: bytes | None = None) -> None:
        """Store how far the application is; see ``quorumbook.streams.Cursor``."""
        self.run(lambda: self._aio.commit(last_processed, state=state))

    def commit_place(
        self, position: Position, sequence_id: int, state: bytes | None = None
    ) -> None:
        """Do what ``commit`` does; a sequence id below 0 is not known."""
        self.run(lambda: self._aio.commit_place(position, sequence_id, state))

    def ack(self, *records: Position | Record) -> None:
        """Store that single records are done, in any order; see ``quorumbook.streams.Cursor``."""
        self.run(lambda: self._aio.ack(*records))

    def ack_gone(self, first: int, last: int, end: Position) -> None:
        """Count as done what no reader gets: truncated records, chunks of a larger one."""
        self.run(lambda: self._aio.ack_gone(first, last, end))

    def nack(self, *records: Position | Record) -> None:
        """Take acknowledgements back: who reads by the cursor next gets those records again."""
        self.run(lambda: self._aio.nack(*records))

    def refuse(self, *records: Position | Record, delay_s: float = 0) -> None:
        """Have a group's members hand out records again, and count that they were in vain."""
        self.run(lambda: self._aio.refuse(*records, delay_s=delay_s))

    def take(self, owner: str) -> None:
        """Shut others out: who read the cursor before gets CursorConflictError from now on."""
        self.run(lambda: self._aio.take(owner))

    def reset(self, position: Position, *, state: bytes | None = None) -> None:
        """Have reading go on at a position, back or forth."""
        self.run(lambda: self._aio.reset(position, state=state))

    def hold_retention(self, *, holds: bool) -> None:
        """Have retention keep what the cursor has not passed, or not."""
        self.run(lambda: self._aio.hold_retention(holds=holds))

    def mark_overrun(self) -> None:
        """Remember that records were deleted that it had not passed."""
        self.run(self._aio.mark_overrun)

    def delete(self) -> None:
        """Forget the cursor; nothing holds retention for it any more."""
        self.run(self._aio.delete)

    def lag(self) -> Lag:
        """Return what is still before it."""
        return self.run(self._aio.lag)

    def __repr__(self) -> str:
        return f"<sync {self._aio!r}>"
