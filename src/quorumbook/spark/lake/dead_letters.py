"""Records that could not be decoded, as records of a stream of their own: each once.

A task writes its bad records into a file beside the table's; the driver appends them before the
table takes the batch in.  A record's number there is its place in its stream, and the producer
follows from the table and that stream, so what a killed job had appended is not stored again, also
where the batch that comes next has other bounds.

    payload, key, event time   as they were
    headers                    as they were, and
      dead-letter-stream       where the record is: the stream, or the partition
      dead-letter-position     … and its position in it
      dead-letter-reason       why it cannot be decoded
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from quorumbook.client.context import client_context
from quorumbook.errors import BackpressureError
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams import Appended, Record, StreamWriter
from quorumbook.streams.format.attributes import MAX_ATTRIBUTES_SIZE_BYTES
from quorumbook.streams.tier.places import file_system
from quorumbook.streams.tier.worker import FileWorker

STREAM_HEADER, POSITION_HEADER, REASON_HEADER = (
    f"dead-letter-{what}" for what in ("stream", "position", "reason")
)
SCHEMA = pa.schema(
    [
        ("seq", pa.int64()), ("position", pa.string()), ("reason", pa.string()),
        ("key", pa.binary()), ("value", pa.binary()), ("event_time_ms", pa.int64()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)  # fmt: skip
_ROWS = 1000
_MAX_REASON_BYTES = 1000
_LOCK_WAIT_S = 60.0


class BadRecord(NamedTuple):
    """A record that cannot be decoded, and why."""

    record: Record
    reason: str


def table_of(bad: Sequence[BadRecord]) -> pa.Table:
    """Return bad records as they lie in a file."""
    return pa.Table.from_pylist(
        [
            {
                "seq": record.sequence_id,
                "position": str(record.position),
                "reason": reason,
                "key": record.key,
                "value": record.payload,
                "event_time_ms": record.event_time_ms,
                "headers": [
                    {"key": name, "value": value} for name, value in record.attributes.headers
                ],
            }
            for record, reason in bad
        ],
        SCHEMA,
    )


class BadRecordStream:
    """The stream of them."""

    def __init__(self, cluster: ClusterClient, name: str, table: str) -> None:
        """Take its name, and what the table is called whose job appends to it."""
        self._cluster = cluster
        self.name = name
        self._table = table

    async def append(self, stream: str, birth: int, paths: Sequence[str]) -> None:
        """Append what files hold of one stream, in order; nothing that is there already.

        Args:
            stream: Whose records they are.
            birth: Which stream of that name it is.
            paths: The files.

        Raises:
            WriterBusyError: somebody else writes the stream of dead letters for too long.
        """
        namespace = await self._cluster.opened_namespace()
        await namespace.create_stream(self.name, exist_ok=True)
        source = hashlib.sha256("\0".join((self._table, stream, str(birth))).encode())
        async with (
            namespace.stream(self.name).writer(
                wait_for_lock_s=_LOCK_WAIT_S, producer=f"dead-letters/{source.hexdigest()[:32]}"
            ) as writer,
            contextlib.aclosing(self._rows(paths)) as found,
        ):
            async for rows in found:
                await asyncio.gather(*[await _begun(writer, stream, row) for row in rows])

    async def _rows(self, paths: Sequence[str]) -> AsyncGenerator[list[dict[str, Any]]]:
        worker = FileWorker(client_context(self._cluster.client).env)
        try:
            for path in paths:
                batches = await worker.run(partial(_batches, path))
                while (rows := await worker.run(partial(next, batches, None))) is not None:
                    yield rows
        finally:
            worker.stop()


def _batches(path: str) -> Iterator[list[dict[str, Any]]]:
    system, below = file_system(path)
    found = pyarrow.parquet.ParquetFile(system.open_input_file(below))
    return (batch.to_pylist() for batch in found.iter_batches(_ROWS))


async def _begun(
    writer: StreamWriter, stream: str, row: dict[str, Any]
) -> asyncio.Future[Appended]:
    while True:
        try:
            return writer.append_nowait(**_letter(stream, row))
        except BackpressureError:
            await writer.drain()


def _letter(stream: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return what ``append`` takes of a bad record."""
    reason = row["reason"].encode(errors="backslashreplace")[:_MAX_REASON_BYTES]
    ours = {
        STREAM_HEADER: stream.encode(),
        POSITION_HEADER: row["position"].encode(),
        REASON_HEADER: reason.decode(errors="ignore").encode(),
    }
    carried = {each["key"]: each["value"] for each in row["headers"]} | ours
    size = len(row["key"] or b"") + sum(
        len(name.encode()) + len(value) + 6 for name, value in carried.items()
    )
    if size + 32 > MAX_ATTRIBUTES_SIZE_BYTES:
        # What the record carried leaves no room for why it is here; its position leads to it.
        return {"payload": row["value"], "headers": ours, "producer_seq": row["seq"]}
    return {
        "payload": row["value"],
        "key": row["key"],
        "headers": carried,
        "event_time_ms": row["event_time_ms"],
        "producer_seq": row["seq"],
    }
