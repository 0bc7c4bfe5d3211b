"""``export``: ledgers and streams into files that anything reads, one file for each unit.

Files are named by what is in them, so a job that is resumed, or given again, writes the same ones
anew.  A file that is being written ends in ``.tmp`` until it is whole.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from quorumbook.autorecovery.audits.copies import closed_fragments
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context, client_store
from quorumbook.errors import ConfigError, MetadataFormatError
from quorumbook.ids import LedgerId
from quorumbook.metadata.nodes import raise_damaged
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.options import ExportOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.jobs.streams import chosen
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams import Namespace, Record, Split
from quorumbook.streams.tier.places import (
    below,
    check_place,
    file_system,
    make_directory,
    safe_name,
)
from quorumbook.streams.tier.worker import FileWorker, in_worker

_UNIT_BYTES = 128 * 1024 * 1024
_ROWS, _ROW_BYTES = 10_000, 8 * 1024 * 1024
Rows = list[Mapping[str, Any]]

_TIME = pa.timestamp("ms", tz="UTC")
STREAM_SCHEMA = pa.schema(
    [
        ("stream", pa.string()), ("partition", pa.int32()), ("seq", pa.int64()),
        ("segment", pa.int64()),
        ("entry_id", pa.int64()), ("slot", pa.int32()), ("txid", pa.int64()),
        ("timestamp", _TIME), ("event_time", _TIME), ("key", pa.binary()), ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)  # fmt: skip
LEDGER_SCHEMA = pa.schema(
    [("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("value", pa.binary())]
)


async def plan_streams(
    namespace: Namespace, streams: Sequence[str], options: ExportOptions
) -> JobPlan:
    """Return the parts of streams, as they are now.

    Raises:
        ConfigError: files cannot be put where they should.
    """
    await in_worker(client_store(namespace.client).env, lambda: check_place(options.out))
    units = []
    for name, title, partition in await chosen(namespace, streams):
        snapshot = await namespace.stream(name).snapshot()
        for split in snapshot.splits(_UNIT_BYTES):
            key = f"{name}#{split.segment}:{split.first_entry}-{split.last_entry}"
            arguments = {
                "stream": name, "title": title, "partition": partition,
                "split": split.to_json(), **options.of_unit(),
            }  # fmt: skip
            units.append(Unit(key, split.size_bytes, arguments))
    return JobPlan("export", units, work)


async def plan_ledgers(
    client: BookKeeper, ranges: Sequence[tuple[LedgerId, LedgerId]], options: ExportOptions
) -> JobPlan:
    """Return the parts of ledgers: all of those that are closed, and what is settled of others.

    Raises:
        ConfigError: files cannot be put where they should.
        MetadataFormatError: nobody knows what one of them has: its metadata is damaged.
    """
    await in_worker(client_store(client).env, lambda: check_place(options.out))
    units = []
    damaged: list[MetadataFormatError] = []
    async for metadata in client.list_ledgers(damaged=damaged):
        if not any(first <= metadata.ledger_id <= last for first, last in ranges):
            continue
        settled = list(closed_fragments(metadata))
        if not settled:
            continue
        end = settled[-1].last_entry_id
        first, last = options.first, end if options.last is None else min(end, options.last)
        entry_bytes = max(1, metadata.length // (end + 1)) if metadata.is_closed else 1024
        step = max(1, _UNIT_BYTES // entry_bytes)
        for start in range(first, last + 1, step):
            stop = min(last, start + step - 1)
            arguments = {
                "ledger_id": metadata.ledger_id, "from": start, "to": stop, **options.of_unit()
            }  # fmt: skip
            size = (stop - start + 1) * entry_bytes
            units.append(Unit(f"{metadata.ledger_id}:{start}-{stop}", size, arguments))
    raise_damaged(
        [e for e in damaged if any(first <= (e.ledger_id or 0) <= last for first, last in ranges)]
    )
    return JobPlan("export", units, work)


# On executors ------------------------------------------------------------------------------------


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Write one file.

    Raises:
        ConfigError: what is no text was to be written as such.
        FilesUnavailableError: the file cannot be written.
    """
    if "stream" in arguments:
        name = safe_name(arguments["stream"])
        split = Split.from_json(arguments["split"])
        stem = f"{name}-{split.segment:018d}-{split.first_entry:012d}"
        schema, rows = STREAM_SCHEMA, _records(cluster, pace, arguments, split)
    else:
        stem = f"ledger-{arguments['ledger_id']}-{arguments['from']:012d}"
        schema, rows = LEDGER_SCHEMA, _entries(cluster, pace, arguments)
    worker = FileWorker(client_context(cluster.client).env)
    count = size = 0
    path = below(arguments["out"], f"{stem}.{arguments['format']}")
    try:
        writer = await worker.run(
            partial(_FileWriter, path, schema, arguments["format"], arguments["encoding"])
        )
        try:
            async with contextlib.aclosing(rows) as chunks:
                async for chunk in chunks:
                    await worker.run(partial(writer.add, chunk))
                    count += len(chunk)
            size = await worker.run(writer.finish)
        except BaseException:
            await worker.run(writer.abandon)
            raise
    finally:
        worker.stop()
    return {"rows": count, "file_bytes": size, "path": path}


async def _records(
    cluster: ClusterClient, pace: Pace, arguments: Values, split: Split
) -> AsyncGenerator[Rows, None]:
    namespace = await cluster.opened_namespace()
    name = arguments["stream"]
    title, partition = arguments["title"], arguments["partition"]
    is_wanted = _wanted(arguments)
    rows: Rows = []
    held_bytes = 0
    async with contextlib.aclosing(namespace.stream(name).read_split(split)) as batches:
        async for batch in batches:
            await pace.take(batch.size_bytes)
            found = [_row(title, partition, record) for record in batch if is_wanted(record)]
            rows += found
            held_bytes += batch.size_bytes if found else 0
            if len(rows) >= _ROWS or held_bytes >= _ROW_BYTES:
                yield rows
                rows, held_bytes = [], 0
    if rows:
        yield rows


def _wanted(arguments: Values) -> Callable[[Record], bool]:
    first, last = arguments["first"], arguments["last"]
    since, until = arguments["since_ms"], arguments["until_ms"]

    def is_wanted(record: Record) -> bool:
        if record.sequence_id < first or (last is not None and record.sequence_id > last):
            return False
        if since is None and until is None:
            return True
        time_ms = record.appended_at_ms
        return (
            time_ms is not None and (since or 0) <= time_ms and (until is None or time_ms < until)
        )

    return is_wanted


def _row(title: str, partition: int, record: Record) -> Mapping[str, Any]:
    segment, entry_id, slot = record.position
    return {
        "stream": title,
        "partition": None if partition < 0 else partition,
        "seq": record.sequence_id if record.sequence_id >= 0 else None,
        "segment": segment,
        "entry_id": entry_id,
        "slot": slot,
        "txid": record.txid,
        "timestamp": record.appended_at_ms,
        "event_time": record.event_time_ms,
        "key": record.key,
        "value": record.payload,
        "headers": [
            {"key": name, "value": value} for name, value in record.attributes.headers
        ] or None,
    }  # fmt: skip


async def _entries(
    cluster: ClusterClient, pace: Pace, arguments: Values
) -> AsyncGenerator[Rows, None]:
    ledger_id = arguments["ledger_id"]
    metadata = await cluster.client.ledger_metadata(ledger_id)
    reader = await cluster.client.open_ledger(
        ledger_id, password=metadata.password or b"", recover=False
    )
    async with reader:
        if reader.last_add_confirmed < arguments["to"]:
            await reader.read_last_add_confirmed()
        batches = reader.read_batches(arguments["from"], arguments["to"])
        async with contextlib.aclosing(batches):
            async for batch in batches:
                await pace.take(batch.size_bytes)
                for start in range(0, len(batch), _ROWS):
                    yield [
                        {"ledger_id": ledger_id, "entry_id": entry_id, "value": payload}
                        for entry_id, payload in zip(
                            batch.entry_ids[start : start + _ROWS],
                            batch.payloads[start : start + _ROWS],
                            strict=True,
                        )
                    ]


class _FileWriter:
    """One file; blocks."""

    def __init__(self, path: str, schema: pa.Schema, form: str, encoding: str) -> None:
        self._system, self._path = file_system(path)
        make_directory(self._system, self._path.rpartition("/")[0])
        self._schema, self._form, self._encoding = schema, form, encoding
        self._temporary = f"{self._path}.tmp"
        self._out: Any = self._system.open_output_stream(self._temporary)
        self._writer: Any = None
        if form == "parquet":
            self._writer = pa.parquet.ParquetWriter(
                self._out, schema, compression="zstd", compression_level=1
            )
        elif form == "csv":
            self._writer = pa.csv.CSVWriter(self._out, self._texts())

    def _texts(self) -> pa.Schema:
        """Return the columns of CSV, in which headers are JSON."""
        plain = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_string)
        return pa.schema(
            [
                field if any(is_plain(field.type) for is_plain in plain)
                else pa.field(field.name, pa.string())
                for field in self._schema
            ]
        )  # fmt: skip

    def add(self, rows: Rows) -> None:
        """Write rows."""
        if self._form == "parquet":
            self._writer.write_table(pa.Table.from_pylist(rows, self._schema))
            return
        texts = [dict(self._as_texts(row)) for row in rows]
        if self._form == "csv":
            self._writer.write_table(pa.Table.from_pylist(texts, self._texts()))
            return
        lines = (json.dumps(text, ensure_ascii=False) for text in texts)
        self._out.write("".join(line + "\n" for line in lines).encode())

    def _as_texts(self, row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in row.items():
            if isinstance(value, bytes):
                yield name, self._text_of(name, value)
            elif isinstance(value, list):
                headers = [
                    {"key": each["key"], "value": self._text_of(name, each["value"])}
                    for each in value
                ]
                is_csv = self._form == "csv"
                yield name, json.dumps(headers, ensure_ascii=False) if is_csv else headers
            else:
                yield name, value

    def _text_of(self, name: str, value: bytes) -> str:
        if self._encoding == "base64":
            return base64.b64encode(value).decode()
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"column {name} has bytes that are no UTF-8 text: give --encoding base64, "
                "or --format parquet"
            ) from error

    def finish(self) -> int:
        """Make it the file that it is to be; return its bytes."""
        if self._writer is not None:
            self._writer.close()
        self._out.close()
        self._system.move(self._temporary, self._path)
        return int(self._system.get_file_info(self._path).size)

    def abandon(self) -> None:
        """Leave nothing behind."""
        # What is not closed now is closed when it is forgotten, and then there.
        for each in self._writer, self._out:
            with contextlib.suppress(Exception):
                if each is not None:
                    each.close()
        with contextlib.suppress(OSError):
            self._system.delete_file(self._temporary)


def conclude(report: Report) -> None:
    """Sum the results up."""
    report.summary["rows_written"] = sum(result["rows"] for result in report.results.values())
    report.summary["files"] = len(report.results)
    report.summary["file_bytes"] = sum(result["file_bytes"] for result in report.results.values())
