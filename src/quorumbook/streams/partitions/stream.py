"""Partitioned streams: several streams under one name; ``partition_node`` says how many.

There is an order within a partition and none across them.
Each partition has one writer at a time, as each stream does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from quorumbook.client.waiting.opening import Opening
from quorumbook.errors import (
    ConfigError,
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import create_with_parents, delete_tree
from quorumbook.metadata.store import ANY_VERSION, MetadataStore, Set, Watch
from quorumbook.options import takes
from quorumbook.streams.cursors.cursor import Cursor, find_cursor
from quorumbook.streams.cursors.state import check_cursor_name
from quorumbook.streams.errors import (
    CorruptRecordsError,
    CursorConflictError,
    StreamError,
    StreamExistsError,
    StreamNotFoundError,
    StreamSealedError,
    UnsupportedFormatError,
)
from quorumbook.streams.frames.parts import FramePart
from quorumbook.streams.frames.tabular import Tabular
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.namespace import Namespace
from quorumbook.streams.partitions.consumer import Consumer, join_group
from quorumbook.streams.partitions.group_nodes import GroupNodes, delete_group_nodes, group_names
from quorumbook.streams.partitions.group_state import GroupState
from quorumbook.streams.partitions.options import (
    ConsumerOptions,
    PartitionedReaderOptions,
    PartitionedWriterOptions,
)
from quorumbook.streams.partitions.partition_node import encoded, node_of, read_partition_count
from quorumbook.streams.partitions.partitioning import StreamCut, partition_name, partition_of
from quorumbook.streams.partitions.reader import PartitionedReader
from quorumbook.streams.partitions.redelivery import DeadLetters
from quorumbook.streams.partitions.writer import PartitionedWriter
from quorumbook.streams.reading.options import check_plain
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.seek import Start, Time, end_position, place
from quorumbook.streams.retention.truncation import Cut, TruncatedSegment
from quorumbook.streams.schemas.having import HasSchemas
from quorumbook.streams.schemas.registering import SchemaNodes, schema_nodes
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import StreamContext, stream_context
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.writer import StreamWriter

C = TypeVar("C")

MAX_PARTITIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo(Generic[C]):
    """What is known of a consumer group, with its cursors: the blocking twin has its own."""

    name: str
    generation: int
    #: Who lives, and which partitions are to be whose.
    members: dict[str, tuple[int, ...]]
    #: Who hands out which partition now.
    claims: dict[int, str]
    #: How far it is in each partition; None where it never was.  One may be damaged.
    cursors: dict[int, C | None]
    #: Why its node cannot be read: then nothing is known of its generation.  Delete it.
    damage: StreamError | None = None


class PartitionedStream(Tabular, HasSchemas):
    """Streams under one name; made by ``create`` and ``open``."""

    def __init__(self, namespace: Namespace, name: str, partition_count: int) -> None:
        """Take what ``create`` or ``open`` found."""
        self.namespace = namespace
        self._name = name
        self._partitions: tuple[Stream, ...] = ()
        self._take(partition_count)

    def _table_parts(self) -> list[FramePart]:
        """Return what is in a table of it: its partitions, in order."""
        return [
            FramePart(stream_context(each), self._name, number)
            for number, each in enumerate(self._partitions)
        ]

    async def _schema_nodes(self) -> tuple[StreamContext, SchemaNodes]:
        """Return where its schemas are: one list for all partitions."""
        context = stream_context(self.partitions[0])
        return context, await schema_nodes(context)

    @classmethod
    async def create(
        cls,
        namespace: Namespace,
        name: str,
        *,
        partitions: int,
        policy: StreamPolicy | None = None,
        exist_ok: bool = False,
    ) -> PartitionedStream:
        """Create a partitioned stream.

        Args:
            namespace: Where.
            name: Its name; its partitions are the streams ``name/p0``, ``name/p1``, …
            partitions: How many; ``grow`` adds more.
            policy: What each partition says for itself.
            exist_ok: If it exists already with this number of partitions, take it and complete
                it, instead of raising an error.

        Raises:
            StreamExistsError: there is one, or a stream of this name.
        """
        if not 0 < partitions <= MAX_PARTITIONS:
            raise ConfigError(
                f"a stream must have 1 to {MAX_PARTITIONS} partitions, not {partitions}"
            )
        plain = namespace.stream(name)
        context = stream_context(plain)
        context.check_writable()
        if await context.nodes.exists():
            raise StreamExistsError(f"stream {plain.name} exists already, without partitions")
        try:
            await create_with_parents(context.store, node_of(plain), encoded(partitions))
        except NodeExistsError:
            found, _ = await read_partition_count(plain)
            if not exist_ok or found != partitions:
                raise StreamExistsError(
                    f"stream {plain.name} exists already, with {found} partitions"
                ) from None
        made = cls(namespace, plain.name, partitions)
        for part in made.partitions:
            await namespace.create_stream(part.name, policy=policy, exist_ok=True)
        return made

    @classmethod
    async def open(cls, namespace: Namespace, name: str) -> PartitionedStream:
        """Return a partitioned stream that is there.

        Raises:
            StreamNotFoundError: there is none of this name.
        """
        plain = namespace.stream(name)
        return cls(namespace, plain.name, (await read_partition_count(plain))[0])

    async def refresh(self) -> tuple[Stream, ...]:
        """Notice partitions that were added, and return all."""
        return await self._find(None)

    async def _find(self, watch: Watch | None) -> tuple[Stream, ...]:
        count, _ = await read_partition_count(self.namespace.stream(self.name), watch)
        return self._take(count)

    async def grow(self, partitions: int, *, policy: StreamPolicy | None = None) -> None:
        """Add empty partitions after the existing ones.

        From then on, the records of a key may go to another partition than before.  Writers and
        readers know the new partitions when they are opened next; groups notice them, and begin
        with their first records.

        Args:
            partitions: How many there are then.
            policy: The policy of each new partition; by default that of the first partition.

        Raises:
            ConfigError: there are more already, or it would be too many.
        """
        plain = self.namespace.stream(self.name)
        stream_context(plain).check_writable()
        while True:
            count, revision = await read_partition_count(plain)
            if not count <= partitions <= MAX_PARTITIONS:
                raise ConfigError(
                    f"stream {self.name} has {count} partitions: their number can grow up to "
                    f"{MAX_PARTITIONS}, and not become {partitions}"
                )
            await self._make(range(count, partitions), policy)
            data = encoded(partitions)

            async def was_set(data: bytes = data) -> bool:
                return (await self._store.get(self.node)).data == data

            # Otherwise somebody else let it grow, or began a group.
            with contextlib.suppress(MetadataVersionConflict):
                operations = [Set(self.node, data, *revision)]
                await stream_context(plain).nodes.change(operations, was_set, "adding partitions")
                self._take(partitions)
                return

    async def _make(self, numbers: Iterable[int], policy: StreamPolicy | None) -> None:
        policy = policy or await self.partitions[0].policy()
        groups = await group_names(self._store, self.node)
        for number in numbers:
            name = partition_name(self.name, number)
            await self.namespace.create_stream(name, policy=policy, exist_ok=True)
            for group in groups:  # one that begins with the latest must not miss the first ones
                await self.namespace.stream(name).cursor(group)

    async def delete(self, *, forget_files: bool = False) -> list[str]:
        """Delete it with all its records, and what is known of its groups.

        Returns:
            Where files may have stayed; see ``Namespace.delete_stream``.

        Raises:
            WriterBusyError: somebody writes a partition.
            FilesUnavailableError: files of a partition are out of reach; the rest stays.
        """
        with contextlib.suppress(StreamError):  # what cannot be read can be deleted
            await self.refresh()
        left: list[str] = []
        for part in self.partitions:
            left += await self.namespace.delete_stream(
                part.name, missing_ok=True, forget_files=forget_files
            )
        context = stream_context(self.namespace.stream(self.name))
        await delete_tree(context.store, self.node)
        with contextlib.suppress(NoSuchNodeError):
            await context.store.delete(context.nodes.paths.stream, ANY_VERSION)
        return left

    @property
    def name(self) -> str:
        """The name that the partitions share."""
        return self._name

    @property
    def partitions(self) -> tuple[Stream, ...]:
        """The partitions that this process knows; ``refresh`` asks the metadata store again."""
        return self._partitions

    @property
    def node(self) -> str:
        """The metadata node that says how many partitions there are."""
        return node_of(self.namespace.stream(self.name))

    def partition_of(self, key: bytes) -> int:
        """Return the partition that a key's records are in."""
        return partition_of(key, len(self.partitions))

    @takes(PartitionedWriterOptions)
    def writer(self, **options: Any) -> Opening[PartitionedWriter]:
        """Become the writer of partitions: ``async with orders.writer() as writer``.

        Args:
            options: Those of ``PartitionedWriterOptions``.

        Raises:
            WriterBusyError: somebody writes one of them; none is held then.
            ConfigError: there is no such option, or its value is out of bounds.
        """
        numbers = self._chosen(PartitionedWriterOptions.of(options).partitions)
        options.pop("partitions", None)

        return Opening(lambda: self._open_writer(numbers, options))

    async def _open_writer(
        self, numbers: Collection[int], options: dict[str, Any], *, skips_sealed: bool = False
    ) -> PartitionedWriter:
        opened: dict[int, StreamWriter] = {}
        try:
            for number in numbers:
                try:
                    opened[number] = await self.partitions[number].writer(**options)
                except StreamSealedError:
                    if not skips_sealed:
                        raise
        except BaseException:
            await asyncio.gather(
                *(each.close() for each in opened.values()), return_exceptions=True
            )
            raise
        return PartitionedWriter(self.name, len(self.partitions), opened)

    @takes(WriterOptions)
    async def seal(self, **options: Any) -> None:
        """End all partitions permanently; those that are sealed already stay so.

        Nothing is sealed while somebody writes one of them.

        Args:
            options: Those of ``Stream.writer``, for each.

        Raises:
            WriterBusyError: somebody writes a partition; none was sealed now.
            PartlySealedError: some could not be sealed; all others are.
        """
        numbers = range(len(await self.refresh()))
        async with await self._open_writer(numbers, options, skips_sealed=True) as writer:
            await writer.seal()

    @takes(PartitionedReaderOptions)
    def reader(
        self, start: StreamCut | Time | Literal["earliest", "latest"] = "earliest", **options: Any
    ) -> Opening[PartitionedReader]:
        """Read partitions at the same time: ``async with orders.reader() as reader``.

        Args:
            start: For all of them, or a StreamCut that says it for each.
            options: Others of ``PartitionedReaderOptions``.

        Raises:
            ConfigError: there is no such option, or its value is out of bounds.
        """
        check_plain("a reader of partitions", options)
        own = PartitionedReaderOptions.of({"start": start} | options)
        numbers, end = self._chosen(own.partitions), own.end
        each = {name: options[name] for name in options.keys() - {"partitions", "end"}}

        async def open_reader() -> PartitionedReader:
            opened: dict[int, StreamReader] = {}
            try:
                for number in numbers:
                    begin: Start = "earliest"
                    if not isinstance(start, StreamCut):
                        begin = start
                    elif number in start:
                        begin = start[number]
                    stop = None if end is None else end.get(number)
                    opened[number] = await self.partitions[number].reader(begin, end=stop, **each)
            except BaseException:
                await asyncio.gather(*(reader.close() for reader in opened.values()))
                raise
            return PartitionedReader(opened)

        return Opening(open_reader)

    @takes(ConsumerOptions)
    def consumer(self, group: str, **options: Any) -> Opening[Consumer]:
        """Join a group that consumes the stream: ``async with orders.consumer("billing") as …``.

        One member at a time hands out the records of a partition. Cursors with the group's name
        store how far the group has come.

        Args:
            group: Its name; it is made if there is none.
            options: Others of ``ConsumerOptions``.

        Raises:
            InvalidStreamNameError: no group is called that.
            ConfigError: there is no such option, its value is out of bounds, or a stream of dead
                letters is named, and when a record is dead is not.
        """
        check_cursor_name(group)
        check_plain("a consumer", options)
        own = ConsumerOptions.of({"group": group} | options)

        async def join() -> Consumer:
            stream = None
            if own.dead_letter is not None:
                await self.namespace.create_stream(own.dead_letter, exist_ok=True)
                stream = self.namespace.stream(own.dead_letter)
            letters = DeadLetters(group, own.max_deliveries, stream)
            nodes = self._group_nodes(group)
            return await join_group(Consumer(self._find, nodes, own, letters))

        return Opening(join)

    async def groups(self) -> list[GroupInfo[Cursor]]:
        """Return the groups that consume the stream, by name.

        A group whose node is damaged is listed with its ``damage``.
        """
        names = await group_names(self._store, self.node)
        return [await self.group(name) for name in names]

    async def group(self, name: str) -> GroupInfo[Cursor]:
        """Return what is known of a group.

        Raises:
            StreamNotFoundError: there is none of this name.
        """
        nodes = self._group_nodes(name)
        state, damage = GroupState(), None
        try:
            live = await nodes.members()
            state = (await nodes.look()).state
        except NoSuchNodeError as error:
            raise StreamNotFoundError(f"stream {self.name} has no group {name}") from error
        except (CorruptRecordsError, UnsupportedFormatError) as error:
            damage = error
        found = await asyncio.gather(*(find_cursor(each, name) for each in self._contexts()))
        return GroupInfo(
            name=name,
            generation=state.generation,
            members={member: state.members.get(member, ()) for member in sorted(live)},
            claims=await nodes.claims(),
            cursors=dict(enumerate(found)),
            damage=damage,
        )

    async def delete_group(self, name: str) -> None:
        """Forget a group and its cursors.

        Raises:
            StreamNotFoundError: there is none of this name.
            GroupInUseError: it has members.
        """
        info = await self.group(name)
        await delete_group_nodes(self._group_nodes(name))
        for cursor in info.cursors.values():
            if cursor is not None:
                await cursor.delete()

    def _take(self, count: int) -> tuple[Stream, ...]:
        """Know of so many partitions; the number never shrinks."""
        known = len(self._partitions)
        self._partitions += tuple(
            self.namespace.stream(partition_name(self._name, number))
            for number in range(known, count)
        )
        return self._partitions

    def _contexts(self) -> list[StreamContext]:
        return [stream_context(part) for part in self.partitions]

    def _group_nodes(self, group: str) -> GroupNodes:
        return GroupNodes(self._store, self.node, group)

    @property
    def _store(self) -> MetadataStore:
        return stream_context(self.partitions[0]).store

    async def end(self) -> StreamCut:
        """Return where each partition ends now, as far as readers see it."""
        ends = await asyncio.gather(*(end_position(each) for each in self._contexts()))
        return StreamCut(enumerate(ends))

    async def truncate(
        self, before: StreamCut | Time, *, dry_run: bool = False
    ) -> dict[int, list[TruncatedSegment]]:
        """Remove records before a cut, in the partitions that it names, or before a time, in all.

        If it is interrupted, repeat it.

        Args:
            before: The first record that stays of each partition, or when it was appended.
            dry_run: Say what would be done, and do nothing.

        Returns:
            The segments that changed, by partition.
        """
        cuts: dict[int, Cut] = {}
        if isinstance(before, StreamCut):
            cuts.update(before)
        else:
            cuts = dict.fromkeys(range(len(await self.refresh())), before)
        return {
            number: await self.partitions[number].truncate(cut, dry_run=dry_run)
            for number, cut in cuts.items()
        }

    def _chosen(self, partitions: Iterable[int] | None) -> Collection[int]:
        numbers = range(len(self.partitions)) if partitions is None else sorted(set(partitions))
        for number in numbers:
            if not 0 <= number < len(self.partitions):
                raise LocalProtocolError(
                    f"stream {self.name} has no partition {number}; the last is "
                    f"{len(self.partitions) - 1}"
                )
        return numbers

    def __repr__(self) -> str:
        return f"<PartitionedStream {self.name}, {len(self.partitions)} partitions>"


async def reset_group(stream: PartitionedStream, group: str, start: Start) -> None:
    """Have a group go on elsewhere in all partitions, also while members commit.

    Raises:
        StreamNotFoundError: there is no such group.
    """
    await stream.group(group)
    for part in stream.partitions:
        cursor = await part.cursor(group, start=start)
        position = await place(stream_context(part), start)
        while True:
            try:
                await cursor.reset(position)
                break
            except CursorConflictError:  # a member moved it just now
                await cursor.refresh()
