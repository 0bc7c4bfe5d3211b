"""``lake-sink``: streams into a table of a lake, each record once.

A unit is a split of a stream, which the task that reads it writes as one Parquet file.  The table
takes a batch's files and how far the streams were read in one step (``spark.lake``).  A file that
no batch has is of no meaning; a job that is resumed writes the same files anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from quorumbook.client.context import client_context
from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.batches import Due, check_dense, what_is_due
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.jobs.streams import chosen
from quorumbook.spark.lake import dead_letters
from quorumbook.spark.lake.dead_letters import BadRecord, BadRecordStream
from quorumbook.spark.lake.rows import BadRecords, LakeRows
from quorumbook.spark.lake.table import LakeFile, LakeState, LakeTable
from quorumbook.spark.lake.upserts import changes_in, delete_files
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.offsets import Reached
from quorumbook.spark.rows.decoding import decoder_of
from quorumbook.streams import Record, Split
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.tier.places import below, file_system, make_directory, safe_name
from quorumbook.streams.tier.worker import FileWorker

_ROWS, _ROW_BYTES = 10_000, 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What is decoded of records, and what becomes of those that cannot be."""

    #: Fields of the records' JSON, as ``rows.schema_of`` takes them.
    fields: str = ""
    #: The stream whose schema decodes in their place, and as which version; empty: none.
    stream: str = ""
    version: int = 0
    bad_records: BadRecords = "keep"
    #: Whether rows are changes of the latest record of each key.
    upserts: bool = False

    async def rows(self, cluster: ClusterClient) -> LakeRows:
        """Return what makes rows.

        Raises:
            SchemaNotFoundError: the stream has no schema, or no such version.
        """
        decoder = None
        if self.stream:
            decoder = await decoder_of(cluster, self.stream, self.version)
        return LakeRows(self.fields, decoder, self.bad_records, upserts=self.upserts)


class LakeSink:
    """The job, on the driver; one of ``batches.Batches``."""

    job = "lake-sink"

    def __init__(
        self,
        cluster: ClusterClient,
        table: LakeTable,
        names: Sequence[str],
        *,
        job_id: str,
        decode: Decoding,
        max_bytes: int,
        allows_loss: bool,
        dead_letters: BadRecordStream | None = None,
        upserts: bool = False,
    ) -> None:
        """Take what is copied where.

        Args:
            cluster: Of the streams.
            table: The table.
            names: Which streams; none: all.
            job_id: Directories of files are named after it.
            decode: What is decoded.
            max_bytes: Of one batch.
            allows_loss: See ``what_is_due``.
            dead_letters: Where records go that cannot be decoded; None: nowhere.  It is not copied
                itself, or its records would come back to it without end.
            upserts: The table has the latest record of each key.

        Raises:
            ConfigError: the stream of dead letters is named among those that are copied.
        """
        if dead_letters is not None and dead_letters.name in names:
            raise ConfigError(
                f"--dead-letters {dead_letters.name} is one of the streams that are copied: what "
                "is bad there would come back to it without end; name another stream"
            )
        self._cluster = cluster
        self._table = table
        self._names = names
        self._job_id = job_id
        self._decode = decode
        self._max_bytes = max_bytes
        self._allows_loss = allows_loss
        self._dead_letters = dead_letters
        self._upserts = upserts
        self._before = LakeState()
        self._due: list[Due] = []
        self.rows = self.files = self.file_bytes = self.undecoded = self.batches = 0

    def plan(self) -> JobPlan | None:
        """Return the next batch; None: nothing is due.

        Raises:
            ConfigError: the table has records of another cluster.
            DataLossError: something that is due is gone.
        """
        cluster = self._cluster
        namespace = cluster.namespace()
        letters = self._dead_letters
        streams = {
            each.name: each
            for each in cluster.run(lambda: chosen(namespace, self._names))
            if letters is None or letters.name not in (each.name, each.title)
        }
        names = list(streams)
        before = self._before = self._table.state(names)
        if before.cluster not in ("", cluster.instance_id):
            raise ConfigError(
                f"the table has records of cluster {before.cluster}, the metadata URI leads to "
                f"cluster {cluster.instance_id}: correct the URI, or give another table"
            )
        if before.batch >= 0 and before.upserts != self._upserts:
            raise ConfigError(
                "the table has the latest record of each key: give --upsert"
                if before.upserts
                else "the table has all records of each key: give another table, or no --upsert"
            )
        self._due = cluster.run(
            lambda: what_is_due(
                namespace,
                names,
                before.streams,
                max_bytes=self._max_bytes,
                allows_loss=self._allows_loss,
                remedy="--allow-data-loss goes on with what is there",
            )
        )
        batch = before.batch + 1
        out = below(self._table.data_directory, f"{batch:010d}-{self._job_id}")
        units = []
        for due in self._due:
            for index, split in enumerate(due.splits):
                arguments = {
                    "stream": due.stream,
                    "title": streams[due.stream].title,
                    "partition": streams[due.stream].partition,
                    "split": split.to_json(),
                    "out": out,
                    "decode": asdict(self._decode),
                    "dead_letters": self._dead_letters is not None,
                }
                units.append(Unit(self._key(due, index), split.size_bytes, arguments))
        return JobPlan(self.job, units, work) if units else None

    def _key(self, due: Due, index: int) -> str:
        split = due.splits[index]
        place = f"{split.segment}:{split.first_entry}-{split.last_entry}@{split.ledger_id}"
        # What was decoded as another version, by the job that is resumed, is decoded anew.
        version = f"/v{self._decode.version}" if self._decode.stream else ""
        return f"{self._before.batch + 1}/{due.stream}#{place}{version}"

    def commit(self, results: Mapping[str, Values]) -> bool:
        """Have the table take the batch in; False: there are no records in it.

        Raises:
            LakeConflictError: somebody else writes the table.
            DataLossError: records are missing.
            WriterBusyError: somebody else writes the stream of dead letters.
        """
        streams = dict(self._before.streams)
        files: list[LakeFile] = []
        for due in self._due:
            parts = [results[self._key(due, index)] for index in range(len(due.splits))]
            behind = check_dense(due, parts)
            if behind is not None:
                streams[due.stream] = Reached(due.birth, behind)
            self._append_dead(due, [part["dead_letters"] for part in parts])
            files += [
                LakeFile(
                    path=part["path"],
                    stream=due.stream,
                    rows=part["rows_written"],
                    size_bytes=part["file_bytes"],
                    first=part["first"],
                    last=part["behind"] - 1,
                )
                for part in parts
                if part["rows"]
            ]
            self.undecoded += sum(part["undecoded"] for part in parts)
        if not files:
            return False
        state = LakeState(
            batch=self._before.batch + 1,
            cluster=self._cluster.instance_id,
            streams=streams,
            upserts=self._upserts,
        )
        if self._upserts:
            paths = [file.path for file in files]
            self._table.merge(self._before, state, changes_in(paths))
            delete_files(paths)
        else:
            self._table.commit(self._before, state, files)
        self.batches += 1
        self.rows += sum(file.rows for file in files)
        self.files += len(files)
        self.file_bytes += sum(file.size_bytes for file in files)
        return True

    def _append_dead(self, due: Due, paths: Sequence[str]) -> None:
        # Before the table takes the batch in: a job that is killed between finds them again, and
        # they are known there.
        found = [path for path in paths if path]
        if self._dead_letters is not None and found:
            letters = self._dead_letters
            self._cluster.run(lambda: letters.append(due.stream, due.birth, found))

    def conclude(self, report: Report) -> None:
        """Sum up what was written; records that are not of the columns' kinds are findings."""
        report.summary.update(
            batches=self.batches,
            rows_written=self.rows,
            files=self.files,
            file_bytes=self.file_bytes,
            undecoded=self.undecoded,
        )
        report.findings = self.undecoded


# On executors ------------------------------------------------------------------------------------


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Write the records of one split as a file.

    Raises:
        FilesUnavailableError: it cannot be written.
        DataLossError: something of the split is gone.
    """
    namespace = await cluster.opened_namespace()
    split = Split.from_json(arguments["split"])
    stream, title, partition = (arguments[key] for key in ("stream", "title", "partition"))
    rows = await Decoding(**arguments["decode"]).rows(cluster)
    worker = FileWorker(client_context(cluster.client).env)
    files = await _begun(worker, rows, arguments)
    first = behind = -1
    count = size = 0
    held: list[Record] = []

    async def flush() -> None:
        nonlocal held
        taken, held = held, []
        await worker.run(lambda: files.add(rows.table(title, partition, taken)))

    try:
        held_bytes = 0
        async with contextlib.aclosing(namespace.stream(stream).read_split(split)) as batches:
            async for batch in batches:
                await pace.take(batch.size_bytes)
                found = batch.first_sequence_id
                if found < 0:
                    raise ConfigError(
                        f"stream {stream} has records without sequence ids, of old writers: "
                        "`quorumbook spark export` writes them into files"
                    )
                if count == 0:
                    first = found
                elif found != behind:
                    raise DataLossError(
                        f"records {behind} to {found - 1} of stream {stream} are missing"
                    )
                behind = batch.next_sequence_id
                count += len(batch)
                held += batch
                held_bytes += batch.size_bytes
                if len(held) >= _ROWS or held_bytes >= _ROW_BYTES:
                    await flush()
                    held_bytes = 0
        if held:
            await flush()
        size = await worker.run(files.finish if count else files.abandon)
    except BaseException:
        await worker.run(files.abandon)
        raise
    finally:
        worker.stop()
    return {
        "rows": count,
        "first": first,
        "behind": behind,
        "path": files.path,
        "file_bytes": size,
        "rows_written": files.rows,
        "undecoded": rows.undecoded,
        "dead_letters": files.letters_path,
    }


async def _begun(worker: FileWorker, rows: LakeRows, arguments: Values) -> _SplitFiles:
    try:
        return await worker.run(partial(_SplitFiles, rows.schema, arguments))
    except BaseException:
        worker.stop()
        raise


class _SplitFiles:
    """What a split becomes: a file of the table, and one of bad records if they go on; blocks."""

    def __init__(self, schema: pa.Schema, arguments: Values) -> None:
        split = Split.from_json(arguments["split"])
        place = f"{split.segment:018d}-{split.first_entry:012d}"
        self._out = arguments["out"]
        self._stem = f"{safe_name(arguments['stream'])}-{place}"
        self._keeps_letters = arguments["dead_letters"]
        # Where it is may have a query behind its path.
        self.path = below(self._out, f"{self._stem}.parquet")
        self._rows = _File(self.path, schema)
        self._letters: _File | None = None
        #: Of bad records; empty: there are none.
        self.letters_path = ""
        #: How many are in the table's.
        self.rows = 0

    def add(self, made: tuple[pa.Table, Sequence[BadRecord]]) -> None:
        table, bad = made
        self._rows.add(table)
        self.rows += table.num_rows
        if bad and self._keeps_letters:
            if self._letters is None:
                self.letters_path = below(self._out, f"{self._stem}.dead-letters.parquet")
                self._letters = _File(self.letters_path, dead_letters.SCHEMA)
            self._letters.add(dead_letters.table_of(bad))

    def finish(self) -> int:
        if self._letters is not None:
            self._letters.finish()
        return self._rows.finish()

    def abandon(self) -> int:
        if self._letters is not None:
            self._letters.abandon()
        return self._rows.abandon()


class _File:
    """A file that has its name when it is whole; blocks."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._system, self._path = file_system(path)
        make_directory(self._system, self._path.rpartition("/")[0])
        self._temporary = f"{self._path}.tmp"
        self._out: Any = self._system.open_output_stream(self._temporary)
        self._writer: Any = pyarrow.parquet.ParquetWriter(
            self._out, schema, compression="zstd", compression_level=1
        )

    def add(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def finish(self) -> int:
        self._writer.close()
        self._out.close()
        self._system.move(self._temporary, self._path)
        return int(self._system.get_file_info(self._path).size)

    def abandon(self) -> int:
        # What is not closed now is closed when it is forgotten, and then there.
        for each in self._writer, self._out:
            with contextlib.suppress(Exception):
                each.close()
        with contextlib.suppress(OSError):
            self._system.delete_file(self._temporary)
        return 0
