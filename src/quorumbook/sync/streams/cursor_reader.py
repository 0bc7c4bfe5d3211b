"""The blocking reader by a cursor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from quorumbook.errors import QuorumbookError
from quorumbook.streams.cursors import reader as aio
from quorumbook.streams.reading.batches import Record
from quorumbook.sync.declared import blocking, iterating
from quorumbook.sync.loop import Closing
from quorumbook.sync.streams.cursor import Cursor


class CursorReader(Closing[aio.CursorReader]):
    """The blocking twin of ``quorumbook.streams.CursorReader``."""

    def __init__(self, reader: aio.CursorReader) -> None:
        """Wrap a reader that was opened on the loop thread."""
        super().__init__(reader)
        self._cursor = Cursor(reader.cursor)
        #: What was fetched on the loop thread: an interrupt of who waits for it loses nothing.
        self._found: list[Record] = []

    @property
    def cursor(self) -> Cursor:
        """The cursor, to commit, to acknowledge, and to store a state."""
        return self._cursor

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        found = self.read(1, wait_s=None)
        if not found:
            raise StopIteration
        return found[0]

    read_batches = iterating(aio.CursorReader.read_batches)
    """Yield records as they come, those of an entry together."""

    def read(self, max_records: int = 1000, *, wait_s: float | None = 0.5) -> list[Record]:
        """Return the next records; see ``quorumbook.streams.CursorReader``."""
        if not self._found:
            self._run(lambda: self._find(max_records, wait_s))
        found, self._found = self._found[:max_records], self._found[max_records:]
        return found

    async def _find(self, max_records: int, wait_s: float | None) -> None:
        self._found = await self._aio.read(max_records, wait_s=wait_s)

    commit = blocking(aio.CursorReader.commit)
    """Move the cursor behind what is done: what was handed out before the last call."""
    close = blocking(aio.CursorReader.close)
    """Let go of everything."""

    def _end_block(self, error: BaseException | None) -> None:
        if error is None:
            self.close(is_done=True)
            return
        with contextlib.suppress(QuorumbookError):
            self.close()
