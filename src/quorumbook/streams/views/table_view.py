"""A table of a stream's latest value for each key, kept up to date while the stream goes on.

What there is when the table is opened is read first, then it follows the stream.  In memory are
the keys that have a value, and those values; what was overwritten or deleted takes no room, nor
does the stream's length.  A consumer of ``changes`` that is slow gets a key's latest value only,
so that what waits for it is never more than what it knew and what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar, overload

from quorumbook.client.waiting.closing import Closing
from quorumbook.env import logger
from quorumbook.errors import LocalProtocolError
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record
from quorumbook.streams.stream import Stream
from quorumbook.streams.views.following import Follower

_log = logger("streams.table_view")
K = TypeVar("K")
V = TypeVar("V")


def own_key(record: Record) -> tuple[bytes, bytes | None] | None:
    """Return a record's key and payload; None instead of an empty one, or of both without key."""
    return None if record.key is None else (record.key, record.payload or None)


class Change(NamedTuple, Generic[K, V]):
    """What became of a key."""

    key: K
    #: Its value now; None: it was deleted.
    value: V | None


class TableView(Closing, Mapping[K, V]):
    """The latest value of each key of a stream; a mapping, opened by ``async with``.

    A record whose value is None deletes its key.  If the stream cannot be followed any more
    (records are lost, or were truncated before they were read), every use of the table raises the
    reason.
    """

    @overload
    def __init__(self: TableView[bytes, bytes], stream: Stream) -> None: ...
    @overload
    def __init__(
        self, stream: Stream, key: Callable[[Record], tuple[K, V | None] | None]
    ) -> None: ...
    def __init__(
        self,
        stream: Stream,
        key: Callable[[Record], tuple[K, V | None] | None] = own_key,  # type: ignore[assignment]
    ) -> None:
        """Prepare; nothing is read before ``open``.

        Args:
            stream: What to show.
            key: Tells key and value of a record; a value of None deletes the key, and None
                instead of both says that the record is about something else.  If not given, the
                record's own key and its payload, an empty one being a deletion; records without
                a key are about something else.
        """
        self._key = key
        self._values: dict[K, V] = {}
        self._follower = Follower(stream, self._apply)
        self._follower.on_end = self._wake
        self._callbacks: list[Callable[[K, V | None], object]] = []
        self._watchers: list[_Watcher[K]] = []
        self._is_open = False

    async def open(self) -> TableView[K, V]:
        """Read what there is, and follow the stream from then on; ``async with`` does it.

        Raises:
            StreamError: a record of the stream cannot be read.
        """
        await self._follower.catch_up()
        self._follower.start()
        self._is_open = True
        return self

    async def close(self) -> None:
        """Stop following the stream."""
        await self._follower.close()

    async def __aenter__(self) -> TableView[K, V]:
        return await self.open()

    # Reading -------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        return self._checked()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._checked())

    def __len__(self) -> int:
        return len(self._checked())

    @property
    def position(self) -> Position | None:
        """The position after the last record that is in the table; None before the first."""
        return self._follower.next

    async def refresh(self) -> None:
        """Wait until everything is in the table that readers can see now."""
        self._checked()
        await self._follower.catch_up()

    async def wait_for(self, position: Position) -> None:
        """Wait until the record at a position is in the table: what ``append`` returned, say."""
        self._checked()
        await self._follower.wait_for(position)

    # Being told ----------------------------------------------------------------------------

    def on_change(self, callback: Callable[[K, V | None], object]) -> Callable[[], None]:
        """Call a function for every record, in order, with key and value; None: deleted.

        If you look through the table before this call, without an ``await`` in between, you miss no
        change and see none twice.  If the callback raises, the error is logged, and the next record
        follows.

        Returns:
            A function that removes the callback again.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def changes(self, *, replay: bool = False) -> AsyncGenerator[Change[K, V], None]:
        """Yield keys that change, each with its latest value at that moment.

        Args:
            replay: Begin with everything that is in the table.

        Raises:
            StreamError: the stream cannot be followed any more; also when the table was closed.
        """
        watcher: _Watcher[K] = _Watcher(self._checked() if replay else ())
        self._watchers.append(watcher)
        try:
            while True:
                while watcher.pending:
                    key = watcher.take()
                    yield Change(key, self._values.get(key))
                self._follower.check()
                if self._follower.is_ended:
                    return
                watcher.news.clear()
                await watcher.news.wait()
        finally:
            self._watchers.remove(watcher)

    # Inside --------------------------------------------------------------------------------

    def _checked(self) -> dict[K, V]:
        self._follower.check()
        if not self._is_open:
            raise LocalProtocolError("the table is not open: enter its `async with` block")
        return self._values

    def _apply(self, record: Record) -> None:
        found = self._key(record)
        if found is None:
            return
        key, value = found
        was_there = key in self._values
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        for watcher in self._watchers:
            watcher.put(key, was_there=was_there, is_there=value is not None)
        for callback in self._callbacks.copy():
            try:
                callback(key, value)
            except Exception:
                _log.exception("a callback of a table of changes failed")

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.news.set()


class _Watcher(Generic[K]):
    """Keys that one consumer has still to hear of, and whether it knows them."""

    def __init__(self, keys: Mapping[K, object] | tuple[()]) -> None:
        self.pending: dict[K, bool] = dict.fromkeys(keys, False)
        self.news = asyncio.Event()

    def put(self, key: K, *, was_there: bool, is_there: bool) -> None:
        is_known = self.pending.pop(key, was_there)
        # What came and went before the consumer looked is nothing to it.
        if is_known or is_there:
            self.pending[key] = is_known
            self.news.set()

    def take(self) -> K:
        key = next(iter(self.pending))
        del self.pending[key]
        return key
