"""The durable cursors of a query: named positions of its streams, moved when batches are done."""

from __future__ import annotations

from collections.abc import Mapping

from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.offsets import Offset
from quorumbook.streams import Cursor, Position
from quorumbook.streams.cursors.cursor import read_cursor
from quorumbook.streams.errors import CursorConflictError, StreamNotFoundError
from quorumbook.streams.stream_context import stream_context

_ATTEMPTS = 8


class QueryCursors:
    """The cursors of one name, in every stream that is read."""

    def __init__(self, cluster: ClusterClient, name: str) -> None:
        """Take the name; empty if none is wanted."""
        self._cluster = cluster
        self.name = name
        self._known: dict[str, Cursor] = {}

    async def position(self, stream: str) -> Position | None:
        """Return where the cursor of a stream is; None if there is none."""
        namespace = await self._cluster.opened_namespace()
        found = await read_cursor(stream_context(namespace.stream(stream)), self.name)
        return None if found is None else found.position

    async def move(self, places: Mapping[str, Offset]) -> None:
        """Move the cursors of streams forth, never back."""
        for stream, offset in places.items():
            for attempt in range(_ATTEMPTS):
                try:
                    await self._move(stream, Position(*offset.place))
                    break
                except CursorConflictError:
                    self._known.pop(stream, None)
                    if attempt == _ATTEMPTS - 1:
                        raise
                except StreamNotFoundError:
                    self._known.pop(stream, None)  # deleted; the next batch finds it out
                    break

    async def _move(self, stream: str, position: Position) -> None:
        cursor = self._known.get(stream)
        if cursor is None:
            namespace = await self._cluster.opened_namespace()
            cursor = await namespace.stream(stream).cursor(self.name, start=position)
            self._known[stream] = cursor
        if cursor.position < position:
            await cursor.reset(position)
