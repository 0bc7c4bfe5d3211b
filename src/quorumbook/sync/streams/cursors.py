"""The blocking cursor, and the reader by one."""

from __future__ import annotations

import contextlib

from quorumbook.errors import QuorumbookError
from quorumbook.streams.cursors import cursor as aio
from quorumbook.streams.cursors import reader as aio_reader
from quorumbook.streams.reading.batches import Record
from quorumbook.sync.declared import blocking, held, iterating
from quorumbook.sync.streams.reader import Taking
from quorumbook.sync.twin import Twin


class Cursor(Twin[aio.Cursor]):
    """The blocking twin of ``quorumbook.streams.Cursor``."""

    name = held(aio.Cursor, lambda it: it.name)
    """Its name."""
    position = held(aio.Cursor, lambda it: it.position)
    """Where to go on reading: ``stream.reader(cursor.position)``."""
    damage = held(aio.Cursor, lambda it: it.damage)
    """Why the cursor cannot be used, if ``Stream.cursors`` found it damaged: delete it."""
    state = held(aio.Cursor, lambda it: it.state)
    """The state stored with the position; None if none was, or Java moved the cursor."""
    holds_retention = held(aio.Cursor, lambda it: it.holds_retention)
    """Whether retention keeps the records that the cursor has not passed."""
    is_overrun = held(aio.Cursor, lambda it: it.is_overrun)
    """Whether a hard limit of retention deleted records that it had not passed."""
    refresh = blocking(aio.Cursor.refresh)
    """Read it again, after a CursorConflictError say."""
    acks = held(aio.Cursor, lambda it: it.acks)
    """Records after the position that were acknowledged one by one; None if there are none."""
    owner = held(aio.Cursor, lambda it: it.owner)
    """The member of a group that moves the cursor; empty if none does."""
    commit = blocking(aio.Cursor.commit)
    """Store how far the application is."""
    ack = blocking(aio.Cursor.ack)
    """Store that single records are done, in any order."""
    nack = blocking(aio.Cursor.nack)
    """Take acknowledgements back: the next reader of the cursor gets those records again."""
    refuse = blocking(aio.Cursor.refuse)
    """Make a group's members hand out records again, and count the failed attempt."""
    reset = blocking(aio.Cursor.reset)
    """Have reading go on at a position, back or forth."""
    hold_retention = blocking(aio.Cursor.hold_retention)
    """Have retention keep what the cursor has not passed, or not."""
    delete = blocking(aio.Cursor.delete)
    """Forget the cursor; nothing holds retention for it any more."""
    lag = blocking(aio.Cursor.lag)
    """Return what is still before it."""


class CursorReader(Taking[aio_reader.CursorReader, Record]):
    """The blocking twin of ``quorumbook.streams.CursorReader``."""

    def __init__(self, reader: aio_reader.CursorReader) -> None:
        """Wrap a reader that was opened on the loop thread."""
        super().__init__(reader)
        self._cursor = Cursor(reader.cursor)

    @property
    def cursor(self) -> Cursor:
        """The cursor, to commit, to acknowledge, and to store a state."""
        return self._cursor

    read_batches = iterating(aio_reader.CursorReader.read_batches)
    """Yield records as they come, those of an entry together."""
    commit = blocking(aio_reader.CursorReader.commit)
    """Move the cursor past the records that were handed out before the last call."""
    close = blocking(aio_reader.CursorReader.close)
    """Let go of everything."""

    def _end_block(self, error: BaseException | None) -> None:
        if error is None:
            self.close(is_done=True)
            return
        with contextlib.suppress(QuorumbookError):
            self.close()
