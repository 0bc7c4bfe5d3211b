"""The blocking views of a stream: bytes, as raw files for ``io``; tables; state machines."""

from __future__ import annotations

import io
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar, overload

from quorumbook.options import takes
from quorumbook.streams.reading.batches import Record
from quorumbook.streams.views import byte_stream as aio_bytes
from quorumbook.streams.views import state_machine as aio_machine
from quorumbook.streams.views import table_view as aio_table
from quorumbook.streams.views.state_machine import S
from quorumbook.streams.views.table_view import own_key
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.declared import blocking, held, iterating
from quorumbook.sync.streams.stream import Stream
from quorumbook.sync.twin import Closing, Twin, unwrapped

K = TypeVar("K")
V = TypeVar("V")


class ByteStream(Twin[aio_bytes.ByteStream]):
    """The blocking twin of ``quorumbook.streams.ByteStream``."""

    def __init__(self, stream: Stream) -> None:
        """Take a stream, whose policy does not leave transaction ids free."""
        super().__init__(aio_bytes.ByteStream(unwrapped(stream)))

    @takes(WriterOptions)
    def writer(self, **options: Any) -> ByteWriter:
        """Append bytes, as the only one: ``with bytes.writer() as file``."""

        async def begin() -> aio_bytes.ByteWriter:
            return await self._aio.writer(**options)

        return ByteWriter(self._run(begin))

    def reader(self, offset: int = 0, *, tail: bool = False) -> ByteReader:
        """Read bytes: ``with bytes.reader() as file``; see the asyncio twin."""
        return ByteReader(self, self._aio.reader(offset, tail=tail))

    size = blocking(aio_bytes.ByteStream.size)
    """Return the offset behind the last byte that readers can see."""
    truncate = blocking(aio_bytes.ByteStream.truncate)
    """Cut bytes off at the beginning."""


class ByteWriter(Twin[aio_bytes.ByteWriter], io.RawIOBase):
    """Appends bytes; ``write`` returns when they are safe."""

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def tell(self) -> int:
        """Return the offset at which the next byte is written."""
        return self._aio.tell()

    def write(self, data: Any) -> int:
        """Append bytes, and return how many there are."""
        kept = bytes(data)
        return self._run(lambda: self._aio.write(kept))

    def flush(self) -> None:
        """Wait until tailing readers can see what was written."""
        super().flush()
        self._run(self._aio.flush)

    def close(self) -> None:
        """Complete the segment, and give the stream's lock back."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._run(self._aio.close)


class ByteReader(Twin[aio_bytes.ByteReader], io.RawIOBase):
    """Reads bytes from any offset on."""

    def __init__(self, stream: ByteStream, reader: aio_bytes.ByteReader) -> None:
        """Take what ``ByteStream.reader`` made."""
        super().__init__(reader)
        self._stream = stream

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can go anywhere."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte that is read."""
        return self._aio.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go on at another offset, from the beginning, here, or the end."""
        base = 0
        if whence == io.SEEK_CUR:
            base = self.tell()
        elif whence == io.SEEK_END:
            base = self._stream.size()
        return self._run(lambda: self._aio.seek(base + offset))

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what is there at once; 0 at the end."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def read(self, size: int | None = -1) -> bytes:
        """Return bytes; see ``quorumbook.streams.ByteReader``."""
        count = -1 if size is None else size
        return self._run(lambda: self._aio.read(count))

    def readall(self) -> bytes:
        """Return all that is left."""
        return self.read()

    def close(self) -> None:
        """Let go of everything."""
        if not self.closed:
            super().close()
            self._run(self._aio.close)


class TableView(Closing[aio_table.TableView[K, V]], Mapping[K, V]):
    """The blocking twin of ``quorumbook.streams.TableView``.

    The table goes on while it is looked at: a look through it (``for``, ``keys``, ``items``,
    ``values``) is at all of it as it was at one moment.  ``key`` and the callbacks of
    ``on_change`` run on the loop's thread, where they must not block.
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
        """Prepare; nothing is read before ``open``."""
        super().__init__(aio_table.TableView(unwrapped(stream), key))

    def open(self) -> TableView[K, V]:
        """Read what there is, and follow the stream from then on; ``with`` does it."""
        self._run(self._aio.open)
        return self

    close = blocking(aio_table.TableView.close)
    """Stop following the stream."""

    def __enter__(self) -> TableView[K, V]:
        return self.open()

    def __getitem__(self, key: K) -> V:
        return self._aio[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._aio)

    def keys(self) -> KeysView[K]:
        """Return the keys that are there now."""
        return self._now().keys()

    def items(self) -> ItemsView[K, V]:
        """Return the keys that are there now, and their values."""
        return self._now().items()

    def values(self) -> ValuesView[V]:
        """Return the values that are there now."""
        return self._now().values()

    position = held(aio_table.TableView, lambda it: it.position)
    """The position after the last record that is in the table; None before the first."""
    refresh = blocking(aio_table.TableView.refresh)
    """Wait until everything is in the table that readers can see now."""
    wait_for = blocking(aio_table.TableView.wait_for)
    """Wait until the record at a position is in the table: what ``append`` returned, say."""

    def on_change(self, callback: Callable[[K, V | None], object]) -> Callable[[], None]:
        """Call a function for every record, in order, with key and value; None: deleted.

        What came before is not told; who wants that too takes ``changes(replay=True)``.

        Returns:
            A function that removes the callback again.
        """

        async def add() -> Callable[[], None]:
            return self._aio.on_change(callback)

        async def take_away() -> None:
            remove()

        remove = self._run(add)
        return lambda: self._run(take_away)

    changes = iterating(aio_table.TableView.changes)
    """Yield what becomes of keys."""

    def _now(self) -> dict[K, V]:
        async def copy() -> dict[K, V]:
            return dict(self._aio)

        return self._run(copy)


class StateMachine(Closing[aio_machine.StateMachine[S]]):
    """The blocking twin of ``quorumbook.streams.StateMachine``.

    The state's methods run on the loop's thread, where they must not block.  It goes on there
    while other threads look at ``state``: a thread that needs more than one of its values at a time
    gives it a lock, or asks by a command.
    """

    def __init__(
        self,
        stream: Stream,
        state: S,
        *,
        name: str = "snapshot",
        snapshot_every: int = 0,
        truncates: bool = False,
    ) -> None:
        """Prepare; nothing is read before ``open``.  See the asyncio twin."""
        source = unwrapped(stream)
        super().__init__(
            aio_machine.StateMachine(
                source, state, name=name, snapshot_every=snapshot_every, truncates=truncates
            )
        )
        self.state = state

    def open(self) -> StateMachine[S]:
        """Restore the newest snapshot, apply the commands after it, and follow the stream."""
        self._run(self._aio.open)
        return self

    close = blocking(aio_machine.StateMachine.close)
    """Step down if it leads, and stop following."""

    def __enter__(self) -> StateMachine[S]:
        return self.open()

    is_leading = held(aio_machine.StateMachine, lambda it: it.is_leading)
    """Whether commands can be proposed here, as far as this process knows."""
    next_sequence_id = held(aio_machine.StateMachine, lambda it: it.next_sequence_id)
    """One more than the sequence id of the last command that was applied; 0 before it."""
    position = held(aio_machine.StateMachine, lambda it: it.position)
    """The position after the last command that was applied; None before the first."""
    refresh = blocking(aio_machine.StateMachine.refresh)
    """Wait until everything is applied that readers can see now."""
    wait_for = blocking(aio_machine.StateMachine.wait_for)
    """Wait until the command at a position is applied."""

    @takes(WriterOptions)
    def lead(self, **options: Any) -> None:
        """Become the leader: shut the last one out, and apply everything it has stored."""
        self._run(lambda: self._aio.lead(**options))

    propose = blocking(aio_machine.StateMachine.propose)
    """Append a command, wait until it is safe and applied, and return what ``apply`` returned."""
    step_down = blocking(aio_machine.StateMachine.step_down)
    """Wait for what was proposed, stop leading, and follow."""
    snapshot = blocking(aio_machine.StateMachine.snapshot)
    """Store the state as it is now, and delete the previous snapshot."""
