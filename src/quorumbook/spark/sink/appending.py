"""One task's rows appended by the usual writers of their streams: there at once, each of them once.

A row's number follows from its batch and its place in the task's rows for its stream, and its
writer's producer from application, query and partition.  So what a task appends that is run again
is known already and not stored again, as long as its rows come again in the same order.  A stream
has one writer at a time, so tasks that write the same one take turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.namespace import Namespace
from quorumbook.streams.transactions import AttemptResult, DraftOptions, Identity
from quorumbook.streams.writing.writer import StreamWriter

#: Numbers of one batch's rows.
_ROW_BITS = 32
_MAX_BATCH = 2**31 - 1
_CHUNK_ROWS = 1000
_CHUNK_BYTES = 1 << 20
_LARGE_BYTES = _CHUNK_BYTES // 2


class Appender:
    """Appends rows; see ``Attempt``, in whose place it is."""

    def __init__(
        self,
        namespace: Namespace,
        application: str,
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
        self._producer = f"{application}/{who.query}/{part[0]}"
        self._result = AttemptResult(who=who, batch=batch, partition=part[0], attempt=part[1])
        self._first_number = batch << _ROW_BITS
        self._options = options
        self._lock_wait_s = lock_wait_s
        self._rows: dict[str, int] = {}
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
            WriterBusyError: somebody else writes the stream for too long.
            StreamNotFoundError: there is no such stream.
        """
        writer = self._writers.get(stream) or await self._open(stream)
        for first, behind in _chunks(payloads):
            row = self._rows.get(stream, 0)
            number = self._first_number + row
            if behind - first == 1:
                # Alone, since what is larger than an entry is stored in chunks.
                carried = (attributes and attributes[first]) or Attributes()
                await writer.append(
                    payloads[first],
                    key=carried.key,
                    headers=dict(carried.headers),
                    event_time_ms=carried.event_time_ms,
                    txid=txids[first] if txids else None,
                    producer_seq=number,
                )
            else:
                await writer.append_batch(
                    payloads[first:behind],
                    attributes=None if attributes is None else attributes[first:behind],
                    txids=None if txids is None else txids[first:behind],
                    producer_seq=number,
                )
            self._rows[stream] = row + behind - first

    async def finish(self) -> AttemptResult:
        """Complete what was begun, and return what the driver needs."""
        for stream in list(self._writers):
            await self._writers.pop(stream).close()
        return self._result

    async def give_up(self) -> None:
        """Let go of everything; what was appended stays, and is not appended again."""
        while self._writers:
            _, writer = self._writers.popitem()
            with contextlib.suppress(QuorumbookError):
                await writer.close()

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


def _chunks(payloads: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield first and last place, exclusive, of rows that are appended together."""
    first = size = 0
    for place, payload in enumerate(payloads):
        if len(payload) > _LARGE_BYTES:
            if first < place:
                yield first, place
            yield place, place + 1
            first, size = place + 1, 0
            continue
        size += len(payload)
        if place - first + 1 >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield first, place + 1
            first, size = place + 1, 0
    if first < len(payloads):
        yield first, len(payloads)
