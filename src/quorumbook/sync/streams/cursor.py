"""The blocking cursor."""

from __future__ import annotations

from quorumbook.streams.cursors import cursor as aio
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.loop import Twin


class Cursor(Twin[aio.Cursor]):
    """The blocking twin of ``quorumbook.streams.Cursor``."""

    name = held(aio.Cursor, lambda it: it.name)
    """Its name."""
    position = held(aio.Cursor, lambda it: it.position)
    """Where to go on reading: ``stream.reader(cursor.position)``."""
    damage = held(aio.Cursor, lambda it: it.damage)
    """Why it cannot be used, if ``Stream.cursors`` listed one that is damaged; delete it."""
    state = held(aio.Cursor, lambda it: it.state)
    """What was stored with the position; None if nothing was, or another side moved it."""
    holds_retention = held(aio.Cursor, lambda it: it.holds_retention)
    """Whether retention keeps what it has not passed."""
    is_overrun = held(aio.Cursor, lambda it: it.is_overrun)
    """Whether a hard limit of retention deleted records that it had not passed."""
    refresh = blocking(aio.Cursor.refresh)
    """Read it again, after a CursorConflictError say."""
    acks = held(aio.Cursor, lambda it: it.acks)
    """What was acknowledged one by one; None if nothing was from its position on."""
    owner = held(aio.Cursor, lambda it: it.owner)
    """Which member of a group moves it; empty if none does."""
    commit = blocking(aio.Cursor.commit)
    """Store how far the application is."""
    ack = blocking(aio.Cursor.ack)
    """Store that single records are done, in any order."""
    nack = blocking(aio.Cursor.nack)
    """Take acknowledgements back: who reads by the cursor next gets those records again."""
    refuse = blocking(aio.Cursor.refuse)
    """Have a group's members hand out records again, and count the failed attempt."""
    reset = blocking(aio.Cursor.reset)
    """Have reading go on at a position, back or forth."""
    hold_retention = blocking(aio.Cursor.hold_retention)
    """Have retention keep what the cursor has not passed, or not."""
    delete = blocking(aio.Cursor.delete)
    """Forget the cursor; nothing holds retention for it any more."""
    lag = blocking(aio.Cursor.lag)
    """Return what is still before it."""
