"""Cursors: named positions in a stream that outlive their readers, DistributedLog's subscriptions.

``state`` is what is stored of one, in two nodes.  Here both change in one step, and only as they
were read.  ``retention`` asks who holds what.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from quorumbook.errors import (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchEntryError,
    NoSuchNodeError,
)
from quorumbook.metadata.store import Create, Delete, Operation, Set
from quorumbook.streams.cursors.acks import AckedRange, Acks
from quorumbook.streams.cursors.lag import Lag, acks_at, first_record, measure_lag, sequence_id_at
from quorumbook.streams.cursors.state import (
    MAX_STATE_SIZE_BYTES,
    REST_NAME,
    CursorState,
    check_cursor_name,
)
from quorumbook.streams.cursors.stored import StoredCursor, look, read, read_as_changed
from quorumbook.streams.errors import (
    CursorConflictError,
    StreamError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record
from quorumbook.streams.reading.seek import Start, place
from quorumbook.streams.stream_context import StreamContext


class _Waiting:
    """Acknowledgements that are written together."""

    __slots__ = ("acked", "is_written")

    def __init__(self) -> None:
        self.acked: list[AckedRange] = []
        self.is_written = False


class Cursor:
    """A cursor as this object last read or changed it; made by ``Stream.cursor``."""

    def __init__(self, context: StreamContext, name: str, stored: StoredCursor) -> None:
        """Take what was read; see ``open_cursor``."""
        self._context = context
        self._name = name
        self._stored, self._revision, self._rest_revision = stored
        #: What it was changed to last, as long as nobody told whether that happened.
        self._unsure: CursorState | None = None
        #: One change at a time; acknowledgements that wait for their turn are written together.
        self._turn = asyncio.Lock()
        self._waiting = _Waiting()

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def position(self) -> Position:
        """Where ``stream.reader(cursor)`` goes on, even if retention deleted the segment."""
        return self._stored.position

    @property
    def state(self) -> bytes | None:
        """The state stored with the position; None if none was, or Java moved the cursor."""
        return self._stored.state

    @property
    def holds_retention(self) -> bool:
        """Whether retention keeps the records that the cursor has not passed."""
        return self._stored.holds_retention

    @property
    def is_overrun(self) -> bool:
        """Whether a hard limit of retention deleted records that it had not passed."""
        return self._stored.is_overrun

    @property
    def acks(self) -> Acks | None:
        """Records after the position that were acknowledged one by one; None if there are none."""
        return self._stored.acks

    @property
    def owner(self) -> str:
        """The member of a group that moves the cursor; empty if none does."""
        return self._stored.owner

    async def refresh(self) -> None:
        """Read it again, after a CursorConflictError say.

        Raises:
            StreamNotFoundError: it was deleted.
        """
        async with self._turn:
            found = await read(self._context, self.name)
            if found is None:
                raise self._missing()
            self._stored, self._revision, self._rest_revision = found
            self._unsure = None

    async def commit(
        self, last_processed: Position | Record, *, state: bytes | None = None
    ) -> None:
        """Store how far the application has come, and a state of its own, in one step.

        Args:
            last_processed: The last record that is done; reading goes on after it.
            state: At most ``MAX_STATE_SIZE_BYTES``.

        Raises:
            CursorConflictError: somebody else moved the cursor since it was read here.
            LocalProtocolError: the cursor is already further on; ``reset`` moves it back.
            StreamNotFoundError: it was deleted.
        """
        if isinstance(last_processed, Record):
            place = last_processed.position, last_processed.sequence_id
        else:
            place = last_processed, -1
        await self._commit(*place, state, is_done=True)

    async def _commit(
        self, position: Position, sequence_id: int, state: bytes | None, *, is_done: bool
    ) -> None:
        async with self._in_turn():
            if position.next < self.position:
                raise LocalProtocolError(
                    f"cursor {self.name} is at {self.position} already; reset takes it back"
                )
            position, acks = position.next, self.acks
            floor: int | None = sequence_id + 1
            if sequence_id < 0:
                floor = await sequence_id_at(self._context, position)
            if floor is None:
                acks = None  # the next single one finds out where they begin
            else:
                acks = acks or Acks(0)
                if is_done:
                    acks = acks.without_refusal(floor - 1)
                acks, moved = acks.passed(floor, position)
                position = moved or self.position
            await self._change(replace(self._stored, position=position, state=state, acks=acks))

    async def ack(self, *records: Position | Record) -> None:
        """Store that single records are done, in any order; readers of the cursor leave them out.

        The cursor moves past records when all records before them are done; a state that was
        committed with its old position is dropped then.  Many calls at a time are written together.

        Args:
            records: The records as they were read, or their positions; records are looked up by
                positions.

        Raises:
            AckLimitError: there would be more holes between them than a cursor keeps.
            UnsupportedFormatError: the segment's writer was too old for single records.
            CursorConflictError: somebody else moved the cursor since it was read here.
        """
        waiting = self._waiting
        waiting.acked += [
            AckedRange(sequence_id, sequence_id, position.next)
            for position, sequence_id in await asyncio.gather(*map(self._place, records))
        ]
        await self._ack(waiting)

    async def nack(self, *records: Position | Record) -> None:
        """Take acknowledgements back: the next reader of the cursor gets those records again.

        Raises:
            LocalProtocolError: the cursor passed a record; ``reset`` takes it back.
            CursorConflictError: somebody else moved the cursor since it was read here.
        """
        places = await asyncio.gather(*map(self._place, records))
        async with self._in_turn():
            acks = self.acks
            for position, sequence_id in places:
                if position < self.position:
                    raise LocalProtocolError(
                        f"cursor {self.name} passed {position}; reset takes it back"
                    )
                acks = acks and acks.without(sequence_id, position)
            if acks != self.acks:
                await self._change(replace(self._stored, acks=acks))

    async def refuse(self, *records: Position | Record, delay_s: float = 0) -> None:
        """Make a group's members hand out records again, and count the failed attempt.

        The cursor does not pass them until they are done, even if later records are committed.

        Args:
            records: The records as they were read, or their positions; records are looked up by
                positions.
            delay_s: How long they wait at least.

        Raises:
            AckLimitError: more would wait than a cursor keeps.
            LocalProtocolError: the cursor passed a record; ``reset`` takes it back.
            CursorConflictError: somebody else moved the cursor since it was read here.
        """
        places = await asyncio.gather(*map(self._place, records))
        due_ms = self._context.store.env.clock.wall_ms() + int(delay_s * 1000)
        async with self._in_turn():
            acks = self.acks
            if acks is None:
                first = await first_record(self._context, self.position)
                acks = Acks(first.first_sequence_id) if first is not None else Acks(2**63)
            for position, sequence_id in places:
                if sequence_id < acks.floor:
                    raise LocalProtocolError(
                        f"cursor {self.name} passed {position}; reset takes it back"
                    )
                acks = acks.with_refused(sequence_id, position, due_ms)
            await self._change(replace(self._stored, acks=acks))

    async def _place(self, record: Position | Record) -> tuple[Position, int]:
        if isinstance(record, Position):
            found = await first_record(self._context, record)
            if found is None or found.first_position != record:
                raise NoSuchEntryError(f"stream {self._context.name} has no record at {record}")
            place = record, found.first_sequence_id
        else:
            place = record.position, record.sequence_id
        if place[1] < 0:
            raise UnsupportedFormatError(
                f"the record at {place[0]} of stream {self._context.name} has no sequence id: its "
                "writer is too old for single acknowledgements; commit positions"
            )
        return place

    async def _ack_gone(self, gone: AckedRange) -> None:
        self._waiting.acked.append(gone)
        await self._ack(self._waiting)

    async def _ack(self, waiting: _Waiting) -> None:
        async with self._in_turn():
            if waiting.is_written:
                return
            if waiting is self._waiting:
                self._waiting = _Waiting()
            acks = self.acks
            if acks is None:
                first = await first_record(self._context, self.position)
                if first is None:
                    return  # it is at the end: they are passed
                acks = Acks(first.first_sequence_id)
            acks, position = acks.with_acked(waiting.acked)
            if acks != self.acks:
                new = replace(self._stored, acks=acks)
                if position is not None:
                    new = replace(new, position=position, state=None)
                await self._change(new)
            waiting.is_written = True

    async def reset(self, position: Position, *, state: bytes | None = None) -> None:
        """Move the cursor to a position, back or forth, without acknowledgements after it.

        Raises as ``commit``.
        """
        async with self._in_turn():
            acks = await acks_at(self._context, position)
            await self._change(
                replace(self._stored, position=position, state=state, is_overrun=False, acks=acks)
            )

    async def hold_retention(self, *, holds: bool) -> None:
        """Say whether retention keeps what the cursor has not passed; raises as ``commit``."""
        async with self._in_turn():
            await self._change(replace(self._stored, holds_retention=holds))

    async def delete(self) -> None:
        """Forget the cursor; nothing holds retention for it any more.

        Raises:
            CursorConflictError: somebody else moved it since it was read here, or reads by it.
        """
        self._context.check_writable()
        async with self._in_turn():
            pass  # it is known how it is stored
        path, rest = self._paths()
        operations: list[Operation] = [Delete(path, *self._revision)]
        if self._rest_revision is not None:
            operations.insert(0, Delete(rest, *self._rest_revision))
        store = self._context.store
        lock = self._context.nodes.paths.subscriber_lock(self.name)
        if await store.exists(lock) is not None:
            operations.insert(0, Delete(lock))

        async def was_deleted() -> bool:
            return await store.exists(path) is None

        with self._conflicts():
            await self._context.nodes.change(operations, was_deleted, "deleting a cursor")

    @property
    def damage(self) -> StreamError | None:
        """Why the cursor cannot be used, if ``Stream.cursors`` found it damaged: delete it."""
        return self._stored.damage

    async def lag(self) -> Lag:
        """Return what is still before it."""
        return await measure_lag(self._context, self.position, self.acks)

    @contextlib.asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Let nobody change it meanwhile; what nobody heard of is its own change if it is there."""
        async with self._turn:
            if self._unsure is not None:
                found = await read_as_changed(
                    self._context, self.name, self._unsure, self._revision
                )
                if found is not None:
                    self._stored, self._revision, self._rest_revision = found
                self._unsure = None
            yield

    async def _take_over(self, owner: str) -> None:
        while True:
            try:
                async with self._in_turn():
                    await self._change(replace(self._stored, owner=owner))
            except CursorConflictError:
                await self.refresh()
            else:
                return

    async def _mark_overrun(self) -> None:
        async with self._in_turn():
            await self._change(replace(self._stored, is_overrun=True))

    async def _change(self, new: CursorState) -> None:
        self._context.check_writable()
        if len(new.state or b"") > MAX_STATE_SIZE_BYTES:
            raise LocalProtocolError(
                f"a cursor's state has at most {MAX_STATE_SIZE_BYTES} bytes, not "
                f"{len(new.state or b'')}"
            )
        path, rest = self._paths()
        data, rest_data = new.position.to_text().encode(), new.encode_rest()
        second: Operation = Create(rest, rest_data)
        if self._rest_revision is not None:
            second = Set(rest, rest_data, *self._rest_revision)

        async def was_changed() -> bool:
            found = await read_as_changed(self._context, self.name, new, self._revision)
            return found is not None

        operations = [Set(path, data, *self._revision), second]
        if new.keeps_more_than(self._stored):
            operations.append(self._context.nodes.news_for_retention())
        self._unsure = new
        try:
            with self._conflicts():
                await self._context.nodes.change(operations, was_changed, "moving a cursor")
        except StreamError:
            self._unsure = None
            raise
        rest_revision = self._rest_revision and self._rest_revision.next
        if rest_revision is None and (made := await self._context.store.exists(rest)) is not None:
            rest_revision = made.revision
        self._stored, self._revision, self._rest_revision = new, self._revision.next, rest_revision
        self._unsure = None

    @contextlib.contextmanager
    def _conflicts(self) -> Iterator[None]:
        try:
            yield
        except NoSuchNodeError as error:
            raise self._missing() from error
        except NodeNotEmptyError as error:
            raise CursorConflictError(
                f"another reader of stream {self._context.name} has cursor {self.name} for itself"
            ) from error
        except (MetadataVersionConflict, NodeExistsError) as error:
            raise CursorConflictError(
                f"somebody else moved cursor {self.name} of stream {self._context.name} since it "
                "was read here; refresh it"
            ) from error

    def _paths(self) -> tuple[str, str]:
        path = self._context.nodes.paths.subscriber(self.name)
        return path, f"{path}/{REST_NAME}"

    def _missing(self) -> StreamNotFoundError:
        return StreamNotFoundError(f"stream {self._context.name} has no cursor {self.name}")

    def __repr__(self) -> str:
        return f"<Cursor {self.name} of {self._context.name} at {self.position}>"


async def open_cursor(
    context: StreamContext,
    name: str,
    start: Start,
    *,
    holds_retention: bool | None,
) -> Cursor:
    """Return a cursor, made where it should start if there is none; see ``Stream.cursor``."""
    check_cursor_name(name)
    found = await read_cursor(context, name)
    if found is None:
        context.check_writable()
        paths, store = context.nodes.paths, context.store
        await context.nodes.max_txid()  # says so if there is no such stream
        position = await place(context, start)
        stored = CursorState(
            position=position,
            holds_retention=bool(holds_retention),
            acks=None if start == "earliest" else await acks_at(context, position),
        )
        await context.nodes.prepare_cursors()
        path, rest = paths.subscriber(name), f"{paths.subscriber(name)}/{REST_NAME}"

        async def was_created() -> bool:
            node = await store.exists(rest)
            return node is not None and (node.version, node.data) == (0, stored.encode_rest())

        with contextlib.suppress(NodeExistsError):  # somebody else was faster
            await context.nodes.change(
                [Create(path, stored.position.to_text().encode()),
                 Create(rest, stored.encode_rest()),
                 context.nodes.news_for_retention()],
                was_created, "making a cursor",
            )  # fmt: skip
        found = await read_cursor(context, name)
        if found is None:
            raise CursorConflictError(f"cursor {name} of stream {context.name} was just deleted")
    if holds_retention is not None and found.holds_retention != holds_retention:
        await found.hold_retention(holds=holds_retention)
    return found


async def read_cursor(context: StreamContext, name: str) -> Cursor | None:
    """Return a cursor, also one that the peer made; None if there is none.

    Raises:
        CorruptRecordsError: its second node is damaged.
        UnsupportedFormatError: a newer release made it.
    """
    found = await read(context, name)
    return None if found is None else Cursor(context, name, found)


async def find_cursor(context: StreamContext, name: str) -> Cursor | None:
    """Return the same; one that is damaged has its ``damage``, and is not to be read by."""
    found = await look(context, name)
    return None if found is None else Cursor(context, name, found)


async def list_cursors(context: StreamContext) -> list[Cursor]:
    """Return all cursors by name, the peer's subscriptions and damaged ones included."""
    try:
        names = await context.store.children(context.nodes.paths.subscribers)
    except NoSuchNodeError:
        await context.nodes.max_txid()  # says so if there is no such stream
        return []
    found = await asyncio.gather(*(find_cursor(context, name) for name in sorted(names)))
    return [cursor for cursor in found if cursor is not None]


# What readers, groups and retention do with a cursor, and programs do not.


async def commit_place(
    cursor: Cursor, position: Position, sequence_id: int, state: bytes | None = None
) -> None:
    """Do what ``commit`` does, but leave a last record that was refused to be handed out again.

    A sequence id below 0 is not known.
    """
    await cursor._commit(position, sequence_id, state, is_done=False)  # noqa: SLF001 - of this module


async def ack_gone(cursor: Cursor, first: int, last: int, end: Position) -> None:
    """Count as done what no reader gets: truncated records, later chunks; raises as ``ack``."""
    await cursor._ack_gone(AckedRange(first, last, end))  # noqa: SLF001 - of this module


async def take_over(cursor: Cursor, owner: str) -> None:
    """Shut others out: who read the cursor before gets CursorConflictError from now on."""
    await cursor._take_over(owner)  # noqa: SLF001 - of this module


async def mark_overrun(cursor: Cursor) -> None:
    """Remember that records were deleted that it had not passed; raises as ``commit``."""
    await cursor._mark_overrun()  # noqa: SLF001 - of this module
