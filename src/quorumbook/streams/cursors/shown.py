"""What people are shown of a cursor: on the command line, over HTTP, as a table."""

from __future__ import annotations

from quorumbook.errors import MetadataFormatError, QuorumbookError
from quorumbook.streams.cursors.cursor import Cursor
from quorumbook.streams.cursors.lag import Lag
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError


async def lag_to_show(cursor: Cursor) -> tuple[Lag | None, QuorumbookError | None]:
    """Return a cursor's lag, None where it cannot be known, and what is damaged about both."""
    try:
        return await cursor.lag(), cursor.damage
    except (CorruptRecordsError, UnsupportedFormatError, MetadataFormatError) as error:
        return None, cursor.damage or error  # a segment before it, or its ledger


async def row_to_show(cursor: Cursor) -> tuple[dict[str, object], QuorumbookError | None]:
    """Return a cursor's row, with no lag where that cannot be known, and what is damaged."""
    lag, damage = await lag_to_show(cursor)
    row: dict[str, object] = {
        "cursor": cursor.name,
        "position": str(cursor.position),
        "records": None if lag is None else lag.records,
        "bytes": None if lag is None else lag.size_bytes,
        "age_s": None if lag is None else lag.age_s,
        "acknowledged": 0 if cursor.acks is None else cursor.acks.count,
        "holds_retention": cursor.holds_retention,
        "overrun": cursor.is_overrun,
    }
    return row, damage
