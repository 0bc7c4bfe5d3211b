"""Writes partitions: a record goes to its key's, one without a key to the next in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Unpack

from quorumbook.client.waiting.closing import ClosingQuietly
from quorumbook.errors import QuorumbookError
from quorumbook.streams.errors import StreamSealedError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.partitions.partitioning import (
    PartitionAppended,
    Partitioner,
    check_sealed,
    chosen,
    in_order,
    keyed,
)
from quorumbook.streams.writing.appended import Appended, AppendedBatch
from quorumbook.streams.writing.options import RecordKeywords
from quorumbook.streams.writing.writer import StreamWriter


class PartitionedWriter(ClosingQuietly):
    """Appends to partitions; made by ``PartitionedStream.writer``."""

    def __init__(self, name: str, partition_count: int, writers: dict[int, StreamWriter]) -> None:
        """Take the partitions' writers, opened."""
        self._name = name
        self._writers = writers
        self._partitioner = Partitioner(name, partition_count, writers)

    @property
    def writers(self) -> dict[int, StreamWriter]:
        """The writers of single partitions."""
        return self._writers

    async def append(
        self, payload: bytes, *, key: bytes | None = None, partition: int | None = None,
        **options: Unpack[RecordKeywords],
    ) -> PartitionAppended:  # fmt: skip
        """Append a record and wait until it is safe.

        Args:
            payload: The record.
            key: Records of one key are in one partition, in the order they were appended; readers
                get it too.
            partition: The partition itself, in place of a key.
            options: Others of ``StreamWriter.append``.  A producer's numbers ascend within each
                partition; they may be numbered across all partitions.

        Raises:
            LocalProtocolError: the partition is not held by this writer.
        """
        number = self._partitioner.choose(key, partition)
        appended = await self._writers[number].append(payload, key=key, **options)
        return PartitionAppended(number, appended)

    def append_nowait(
        self, payload: bytes, *, key: bytes | None = None, partition: int | None = None,
        **options: Unpack[RecordKeywords],
    ) -> asyncio.Future[PartitionAppended]:  # fmt: skip
        """Append a record and return a future of where it is; see ``append``.

        Raises:
            BackpressureError: too much is pending; ``await drain()`` and try again.
        """
        number = self._partitioner.choose(key, partition)
        stored = self._writers[number].append_nowait(payload, key=key, **options)
        future: asyncio.Future[PartitionAppended] = asyncio.get_running_loop().create_future()

        def finish(done: asyncio.Future[Appended]) -> None:
            if future.done():
                done.exception()
            elif (error := done.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(PartitionAppended(number, done.result()))

        stored.add_done_callback(finish)
        return future

    async def append_batch(
        self,
        payloads: Iterable[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        txids: Sequence[int] | None = None,
    ) -> list[PartitionAppended]:
        """Append many records and wait until all are safe.

        Args:
            payloads: The records.
            keys: A key for each, or None; without any key all go to one partition, the next in
                turn.
            attributes: Key, headers and event time of each, in place of keys.
            txids: Their transaction ids, which ascend in each partition.

        Returns:
            Where each record is, in the order given.
        """
        kept = list(payloads)
        carried = attributes if keys is None else [keyed(key) for key in keys]
        parts = self._partitioner.parts(len(kept), carried)
        stored = await asyncio.gather(
            *(
                self._writers[number].append_batch(
                    chosen(kept, indexes),
                    attributes=carried and chosen(carried, indexes),
                    txids=txids and chosen(txids, indexes),
                )
                for number, indexes in parts.items()
            ),
            return_exceptions=True,
        )
        found: dict[int, AppendedBatch] = {}
        for number, batch in zip(parts, stored, strict=True):
            if isinstance(batch, BaseException):
                raise batch
            found[number] = batch
        return in_order(parts, found)

    async def drain(self) -> None:
        """Wait until there is room for the append that was refused last."""
        await asyncio.gather(*(writer.drain() for writer in self._writers.values()))

    async def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        await asyncio.gather(*(writer.flush() for writer in self._writers.values()))

    async def seal(self) -> None:
        """End the partitions permanently; a stream whose partitions are all sealed has an end.

        Raises:
            PartlySealedError: some could not be sealed; all others are.
        """
        failed: dict[int, QuorumbookError] = {}
        for number, writer in self._writers.items():
            try:
                with contextlib.suppress(StreamSealedError):
                    await writer.seal()
            except QuorumbookError as error:
                failed[number] = error
        check_sealed(self._name, len(self._writers), failed)

    async def close(self) -> None:
        """Wait for what is pending and let go of all partitions.

        Raises:
            StreamError: something that was appended is not safe.
        """
        outcomes = await asyncio.gather(
            *(writer.close() for writer in self._writers.values()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
