"""One task's rows appended by the usual writers of their streams: there at once, each of them once.

A row's number follows from its batch and its place in the task's rows for its stream, and its
writer's producer from application, query and partition.  So what a task appends that is run again
is known already and not stored again, as long as its rows come again in the same order: they are
held against what was taken down of them (``streams.transactions.appended_rows``).  A stream has one
writer at a time, so tasks that write the same one take turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.namespace import Namespace
from quorumbook.streams.transactions import (
    AppendedPart,
    Application,
    AttemptResult,
    DraftOptions,
    Identity,
    StreamRows,
)
from quorumbook.streams.writing.writer import StreamWriter

#: Numbers of one batch's rows.
_ROW_BITS = 32
_MAX_BATCH = 2**31 - 1
#: Rows that are taken down together, and then appended together.
_CHUNK_ROWS = 5000
_CHUNK_BYTES = 4 << 20
_LARGE_BYTES = 1 << 19


class Appender:
    """Appends rows; see ``Attempt``, in whose place it is."""

    def __init__(
        self,
        namespace: Namespace,
        application: Application,
        who: Identity,
        batch: int,
        part: tuple[int, int],
        options: DraftOptions,
        lock_wait_s: float,
    ) -> None:
        """Prepare; nothing is opened before the first row.

        Args:
            namespace: Where the streams are.
            application: Whose rows they are.
            who: Who works on the batch.
            batch: Its number.
            part: The partition, and the attempt at it.
            options: How rows are written.
            lock_wait_s: How long other tasks may keep a stream's lock.

        Raises:
            ConfigError: the batch's number is too large.
        """
        if batch > _MAX_BATCH:
            raise ConfigError(f"with delivery=append batches are numbered up to {_MAX_BATCH}")
        self._namespace = namespace
        self._application = application
        self._producer = f"{application.name}/{who.query}/{part[0]}"
        self._result = AttemptResult(who=who, batch=batch, partition=part[0], attempt=part[1])
        self._first_number = batch << _ROW_BITS
        self._options = options
        self._lock_wait_s = lock_wait_s
        self._appended: AppendedPart | None = None
        self._writers: dict[str, StreamWriter] = {}

    async def append(
        self,
        stream: str,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
    ) -> None:
        """Append rows, in order; returns when they are safe.

        Raises:
            RowsDifferError: an earlier attempt has appended others.
            WriterBusyError: somebody else writes the stream for too long, or another attempt
                at the task does.
            StreamNotFoundError: there is no such stream.
        """
        part = await self._part()
        for rows in _chunks(StreamRows(payloads, txids, attributes)):
            first = 0
            while (behind := min(first + part.rows.room(stream), len(rows.payloads))) > first:
                known = part.rows.known(stream, rows.part(first, behind))
                number = part.rows.count(stream) - sum(len(each.payloads) for each in known)
                for each in known:
                    await self._store(stream, number, each)
                    number += len(each.payloads)
                first = behind
            if first < len(rows.payloads):
                new, number = rows.part(first, len(rows.payloads)), part.rows.count(stream)
                await part.take_down(part.rows.new(stream, new))
                await self._store(stream, number, new)

    async def finish(self) -> AttemptResult:
        """Complete what was begun, and return what the driver needs.

        Raises:
            RowsDifferError: an earlier attempt has appended more.
        """
        part = await self._part()
        for stream in list(self._writers):
            await self._writers.pop(stream).close()
        marks = part.rows.end()
        if marks is not None:
            await part.take_down(marks)
        return self._result

    async def give_up(self) -> None:
        """Let go of everything; what was appended stays, and is not appended again."""
        while self._writers:
            _, writer = self._writers.popitem()
            with contextlib.suppress(QuorumbookError):
                await writer.close()

    async def _part(self) -> AppendedPart:
        if self._appended is None:
            result = self._result
            self._appended = await self._application.appended(result.batch, result.partition)
        return self._appended

    async def _store(self, stream: str, place: int, rows: StreamRows) -> None:
        """Append rows that begin at a place in the task's rows for a stream."""
        writer = self._writers.get(stream) or await self._open(stream)
        payloads, txids, attributes = rows
        number = self._first_number + place
        if len(payloads) > 1:
            await writer.append_batch(
                payloads, attributes=attributes, txids=txids, producer_seq=number
            )
            return
        # Alone, since what is larger than an entry is stored in chunks.
        carried = (attributes and attributes[0]) or Attributes()
        await writer.append(
            payloads[0],
            key=carried.key,
            headers=dict(carried.headers),
            event_time_ms=carried.event_time_ms,
            txid=txids[0] if txids else None,
            producer_seq=number,
        )

    async def _open(self, stream: str) -> StreamWriter:
        # Locks are taken in the order of names, or two tasks might wait for each other.
        for later in [name for name in self._writers if name > stream]:
            await self._writers.pop(later).close()
        if self._options.creates_streams:
            await self._namespace.create_stream(stream, exist_ok=True)
        self._writers[stream] = writer = await self._namespace.stream(stream).writer(
            wait_for_lock_s=self._lock_wait_s,
            producer=self._producer,
            batch_bytes=self._options.entry_bytes,
            max_pending_bytes=self._options.max_pending_bytes,
            retention_interval_s=0,
        )
        return writer


def _chunks(rows: StreamRows) -> Iterator[StreamRows]:
    """Yield the rows that are appended together."""
    first = size = 0
    for place, payload in enumerate(rows.payloads):
        if len(payload) > _LARGE_BYTES:
            if first < place:
                yield rows.part(first, place)
            yield rows.part(place, place + 1)
            first, size = place + 1, 0
            continue
        size += len(payload)
        if place - first + 1 >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield rows.part(first, place + 1)
            first, size = place + 1, 0
    if first < len(rows.payloads):
        yield rows.part(first, len(rows.payloads))
