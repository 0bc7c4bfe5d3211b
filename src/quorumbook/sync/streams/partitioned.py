"""The blocking partitioned stream, its writer, its reader and the members of its groups."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, ClassVar, Unpack, cast

from quorumbook.errors import BackpressureError, QuorumbookError
from quorumbook.loop_thread import run_once
from quorumbook.options import takes
from quorumbook.streams.cursors.cursor import Cursor as AioCursor
from quorumbook.streams.errors import StreamSealedError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.partitions import stream as aio
from quorumbook.streams.partitions.consumer import Consumer as AioConsumer
from quorumbook.streams.partitions.consumer import Delivery
from quorumbook.streams.partitions.options import (
    ConsumerOptions,
    PartitionedWriterOptions,
)
from quorumbook.streams.partitions.partitioning import (
    PartitionAppended,
    Partitioner,
    StreamCut,
    check_sealed,
    chosen,
    in_order,
    keyed,
)
from quorumbook.streams.partitions.reader import PartitionedReader as AioReader
from quorumbook.streams.partitions.reader import PartitionRecord
from quorumbook.streams.partitions.stream import GroupInfo
from quorumbook.streams.partitions.writer import PartitionedWriter as AioWriter
from quorumbook.streams.stream import Stream as AioStream
from quorumbook.streams.writing.appended import Appended, AppendedBatch
from quorumbook.streams.writing.options import RecordKeywords, WriterOptions
from quorumbook.sync.declared import blocking, deriving, held
from quorumbook.sync.streams.cursors import Cursor
from quorumbook.sync.streams.namespace import Namespace
from quorumbook.sync.streams.reader import Taking
from quorumbook.sync.streams.stream import Stream
from quorumbook.sync.streams.tabular import Tabular
from quorumbook.sync.streams.writer import StreamWriter
from quorumbook.sync.twin import ClosingQuietly, Twin, unwrapped


def _info(info: GroupInfo[AioCursor]) -> GroupInfo[Cursor]:
    cursors = {n: None if each is None else Cursor(each) for n, each in info.cursors.items()}
    return replace(cast("GroupInfo[Any]", info), cursors=cursors)


def _infos(infos: list[GroupInfo[AioCursor]]) -> list[GroupInfo[Cursor]]:
    return list(map(_info, infos))


def _streams(streams: tuple[AioStream, ...]) -> tuple[Stream, ...]:
    return tuple(map(Stream, streams))


def _reader(reader: AioReader) -> PartitionedReader:
    return PartitionedReader(reader)


class PartitionedStream(Tabular, Twin[aio.PartitionedStream]):
    """The blocking twin of ``quorumbook.streams.PartitionedStream``."""

    _bounded: ClassVar = "partition"

    @classmethod
    def create(
        cls,
        namespace: Namespace,
        name: str,
        *,
        partitions: int,
        policy: StreamPolicy | None = None,
        exist_ok: bool = False,
    ) -> PartitionedStream:
        """Create a partitioned stream; see ``quorumbook.streams.PartitionedStream``."""
        return cls(
            run_once(
                lambda: aio.PartitionedStream.create(
                    unwrapped(namespace),
                    name,
                    partitions=partitions,
                    policy=policy,
                    exist_ok=exist_ok,
                )
            )
        )

    @classmethod
    def open(cls, namespace: Namespace, name: str) -> PartitionedStream:
        """Return a partitioned stream that is there."""
        return cls(run_once(lambda: aio.PartitionedStream.open(unwrapped(namespace), name)))

    refresh = blocking(aio.PartitionedStream.refresh, _streams)
    """Notice partitions that were added, and return all."""
    schemas = blocking(aio.PartitionedStream.schemas)
    """Return all versions of the schema, and the rule that a new one keeps to."""
    schema = blocking(aio.PartitionedStream.schema)
    """Return one version of the schema; None: the last."""
    set_schema = blocking(aio.PartitionedStream.set_schema)
    """Add a version to the schema, change the rule that new versions keep to, or both."""
    decoder = blocking(aio.PartitionedStream.decoder)
    """Return what decodes records, and encodes them."""
    grow = blocking(aio.PartitionedStream.grow)
    """Add empty partitions after the existing ones."""
    delete = blocking(aio.PartitionedStream.delete)
    """Delete it with all its records, and what is known of its groups."""
    name = held(aio.PartitionedStream, lambda it: it.name)
    """The name that the partitions share."""
    partitions = held(aio.PartitionedStream, lambda it: _streams(it.partitions))
    """The partitions that this process knows; ``refresh`` asks the metadata store again."""
    node = held(aio.PartitionedStream, lambda it: it.node)
    """The metadata node that says how many partitions there are."""

    partition_of = deriving(aio.PartitionedStream.partition_of, int)
    """Return the partition that a key's records are in."""

    @takes(PartitionedWriterOptions)
    def writer(self, **options: Any) -> PartitionedWriter:
        """Become the writer of partitions; see the asyncio twin."""
        own = PartitionedWriterOptions.of(options)
        opened = self._run(lambda: self._aio.writer(**options))
        return PartitionedWriter(self.name, len(self.partitions), opened, own)

    reader = blocking(aio.PartitionedStream.reader, _reader)
    """Read partitions at the same time: ``with orders.reader() as reader``."""

    @takes(ConsumerOptions)
    def consumer(self, group: str, **options: Any) -> Consumer:
        """Join a group that consumes the stream; see the asyncio twin.

        ``on_assigned`` and ``on_revoked`` are plain functions here, called on threads of their own.
        """
        for name in "on_assigned", "on_revoked":
            if options.get(name) is not None:
                options[name] = _on_thread(options[name])
        return Consumer(self._run(lambda: self._aio.consumer(group, **options)))

    groups = blocking(aio.PartitionedStream.groups, _infos)
    """Return the groups that consume the stream, by name."""
    group = blocking(aio.PartitionedStream.group, _info)
    """Return what is known of a group."""
    delete_group = blocking(aio.PartitionedStream.delete_group)
    """Forget a group and its cursors."""
    end = blocking(aio.PartitionedStream.end)
    """Return where each partition ends now, as far as readers see it."""

    seal = blocking(aio.PartitionedStream.seal)
    """End all partitions permanently; those that are sealed already stay so."""
    truncate = blocking(aio.PartitionedStream.truncate)
    """Cut off what lies before a cut in the partitions that it names, or before a time."""


class PartitionedWriter(ClosingQuietly[AioWriter]):
    """The blocking twin of ``quorumbook.streams.PartitionedWriter``."""

    def __init__(
        self, name: str, partition_count: int, writer: AioWriter, options: WriterOptions
    ) -> None:
        """Wrap a writer that was opened on the loop thread."""
        super().__init__(writer)
        self._name = name
        self._writers = {
            number: StreamWriter(each, options) for number, each in writer.writers.items()
        }
        self._partitioner = Partitioner(name, partition_count, self._writers)

    @property
    def writers(self) -> dict[int, StreamWriter]:
        """The writers of single partitions."""
        return self._writers

    def append(
        self, payload: bytes, *, key: bytes | None = None, partition: int | None = None,
        **options: Unpack[RecordKeywords],
    ) -> PartitionAppended:  # fmt: skip
        """Append a record and wait until it is safe; see the asyncio twin."""
        number = self._partitioner.choose(key, partition)
        return PartitionAppended(number, self._writers[number].append(payload, key=key, **options))

    def append_nowait(
        self, payload: bytes, *, key: bytes | None = None, partition: int | None = None,
        **options: Unpack[RecordKeywords],
    ) -> Future[PartitionAppended]:  # fmt: skip
        """Append a record and return a future of where it is.

        Raises:
            BackpressureError: too much is pending; call ``drain`` and try again.
        """
        number = self._partitioner.choose(key, partition)
        future: Future[PartitionAppended] = Future()
        future.set_running_or_notify_cancel()

        def finish(done: Future[Appended]) -> None:
            if (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(PartitionAppended(number, done.result()))

        stored = self._writers[number].append_nowait(payload, key=key, **options)
        stored.add_done_callback(finish)
        return future

    def append_batch(
        self,
        payloads: Iterable[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        txids: Sequence[int] | None = None,
    ) -> list[PartitionAppended]:
        """Append many records and wait until all are safe; see the asyncio twin."""
        kept = list(payloads)
        carried = attributes if keys is None else [keyed(key) for key in keys]
        parts = self._partitioner.parts(len(kept), carried)
        futures = {
            number: _appended(
                self._writers[number],
                chosen(kept, indexes),
                carried and chosen(carried, indexes),
                txids and chosen(txids, indexes),
            )
            for number, indexes in parts.items()
        }
        return in_order(parts, {number: each.result() for number, each in futures.items()})

    def drain(self) -> None:
        """Wait until there is room for the append that was refused last."""
        self._each(StreamWriter.drain)

    def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        self._each(StreamWriter.flush)

    def seal(self) -> None:
        """End the partitions permanently; see the asyncio twin."""
        failed: dict[int, QuorumbookError] = {}
        for number, writer in self._writers.items():
            try:
                with contextlib.suppress(StreamSealedError):
                    writer.seal()
            except QuorumbookError as error:
                failed[number] = error
        check_sealed(self._name, len(self._writers), failed)

    def close(self) -> None:
        """Wait for what is pending and let go of all partitions."""
        self._each(StreamWriter.close)

    def _each(self, do: Callable[[StreamWriter], None]) -> None:
        """Do something with all writers, also behind one that fails."""
        with contextlib.ExitStack() as stack:
            for writer in reversed(self._writers.values()):
                stack.callback(do, writer)


def _appended(
    writer: StreamWriter,
    payloads: list[bytes],
    attributes: Sequence[Attributes | None] | None,
    txids: Sequence[int] | None,
) -> Future[AppendedBatch]:
    while True:
        try:
            return writer.append_batch_nowait(payloads, attributes=attributes, txids=txids)
        except BackpressureError:
            writer.drain()


class PartitionedReader(Taking[AioReader, PartitionRecord]):
    """The blocking twin of ``quorumbook.streams.PartitionedReader``."""

    _at_once = 1000

    @property
    def position(self) -> StreamCut:
        """For each partition, the position of the next record, or a position before it."""
        cut = self._aio.position
        for number, record in reversed(self._fetched):
            cut[number] = record.position
        return cut

    close = blocking(AioReader.close)
    """Let go of everything."""


class Consumer(Taking[AioConsumer, Delivery]):
    """The blocking twin of ``quorumbook.streams.Consumer``."""

    group = held(AioConsumer, lambda it: it.group)
    """The group's name, which its cursors have too."""
    member = held(AioConsumer, lambda it: it.member)
    """By which name this member is known in the group."""
    generation = held(AioConsumer, lambda it: it.generation)
    """The generation of the group that this member knows of."""
    assignment = held(AioConsumer, lambda it: it.assignment)
    """The partitions whose records this member hands out now."""

    commit = blocking(AioConsumer.commit)
    """Store that a record and all before it in its partition are done."""
    nack = blocking(AioConsumer.nack)
    """Refuse records that are in hand: they are handed out again."""
    ack = blocking(AioConsumer.ack)
    """Store that single records are done, in any order."""

    def cursor(self, partition: int) -> Cursor:
        """Return the group's cursor in a partition that this member has."""
        return Cursor(self._aio.cursor(partition))

    close = blocking(AioConsumer.close)
    """Leave the group, and let the others have the partitions."""

    def _end_block(self, error: BaseException | None) -> None:
        self.close(is_done=error is None)


def _on_thread(function: Callable[[int], None]) -> Callable[[int], Awaitable[None]]:
    """Have a function of a blocking application called where it may block."""

    async def call(partition: int) -> None:
        await asyncio.to_thread(function, partition)

    return call
