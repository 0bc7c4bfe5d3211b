"""Reads a cursor's two nodes as they were at one moment, also where the second is damaged.

What is done with a cursor is ``cursor.py``'s, what is in its nodes ``state.py``'s.
"""

from __future__ import annotations

from typing import NamedTuple

from quorumbook.metadata.store import Revision
from quorumbook.streams.cursors.state import REST_NAME, CursorState
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.stream_context import StreamContext


class StoredCursor(NamedTuple):
    """What was read of a cursor, and the revisions of its nodes."""

    state: CursorState
    revision: Revision
    #: None if there is no second node.
    rest_revision: Revision | None


async def read(context: StreamContext, name: str) -> StoredCursor | None:
    """Return what is stored of a cursor, None if there is none.

    Raises:
        CorruptRecordsError: its second node is damaged.
        UnsupportedFormatError: a newer release made it.
    """
    found = await look(context, name)
    if found is not None and found.state.damage is not None:
        raise found.state.damage
    return found


async def look(context: StreamContext, name: str) -> StoredCursor | None:
    """Return the same; of one that is damaged what is known, with its ``damage``."""
    path = context.nodes.paths.subscriber(name)
    rest_path = f"{path}/{REST_NAME}"
    node = await context.store.exists(path)
    while node is not None:
        rest = await context.store.exists(rest_path)
        again = await context.store.exists(path)
        if again is not None and again.revision == node.revision:
            try:
                state = CursorState.decode(node.data, None if rest is None else rest.data)
            except (CorruptRecordsError, UnsupportedFormatError) as error:
                where = f"cursor {name} of stream {context.name} (metadata node {rest_path})"
                state = CursorState.decode_damaged(node.data, error, where)
            return StoredCursor(state, node.revision, None if rest is None else rest.revision)
        node = again  # it moved between the two reads
    return None


async def read_as_changed(
    context: StreamContext, name: str, new: CursorState, before: Revision
) -> StoredCursor | None:
    """Return what is stored of a cursor if it is what a change would have left, None otherwise."""
    found = await look(context, name)
    if found is None or found.revision != before.next:
        return None
    return found if found.state.encode_rest() == new.encode_rest() else None
