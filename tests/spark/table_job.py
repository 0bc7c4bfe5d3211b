"""What tests of ``lake-sink`` do again and again."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet
from inline import do_units, follow
from spark_helpers import in_namespace

from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.data.lake_sink import Decoding, LakeSink
from quorumbook.spark.lake.dead_letters import BadRecordStream
from quorumbook.spark.lake.delta import DeltaTable
from quorumbook.spark.lake.iceberg import IcebergTable
from quorumbook.spark.lake.manifest import ManifestTable, committed_files
from quorumbook.spark.lake.next_batch import NextBatchNode
from quorumbook.spark.lake.rows import schema_of
from quorumbook.spark.pool import connected
from quorumbook.spark.rows.decoding import decoder_of
from quorumbook.streams import Namespace
from quorumbook.streams.stream_context import stream_context

KINDS = ["parquet", "iceberg", "delta"]


class TableJob:
    """A namespace, a table of one kind here or in a bucket, and the job without Spark around."""

    def __init__(self, cluster, tmp_path, kind, bucket=None):
        self.cluster, self.kind, self.tmp_path = cluster, kind, tmp_path
        self.path = f"/lake-{uuid4().hex[:8]}"
        asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{self.path}"))
        self.connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path=self.path)
        self.catalog = {
            "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
        }  # fmt: skip
        self.location = str(tmp_path / "table")
        self._decoded = ("", None)
        if bucket is not None:
            self.location = bucket.uri("lake/table")
            self.catalog |= {
                "warehouse": f"s3://{bucket.name}/warehouse", "s3.endpoint": bucket.server.endpoint,
                "s3.region": "us-east-1",
            }  # fmt: skip

    def run(self, work):
        return in_namespace(self.cluster, self.path, work)

    def write(self, name, payloads, **extra):
        async def work(namespace):
            if not await stream_context(namespace.stream(name)).nodes.exists():
                await namespace.create_stream(name)
            async with namespace.stream(name).writer() as writer:
                for start in range(0, len(payloads), 10):
                    await writer.append_batch(payloads[start : start + 10])
                if extra:
                    await writer.append(b"{}", **extra)

        self.run(work)

    def table(self, decode="", decoder=None):
        schema = schema_of(decode, decoder)
        if self.kind == "iceberg":
            return IcebergTable("db.events", self.catalog, schema, makes=True)
        if self.kind == "delta":
            instance_id = connected(self.connection).instance_id
            return DeltaTable(self.location, instance_id, schema, makes=True)
        turns = NextBatchNode(connected(self.connection), self.location)
        return ManifestTable(self.location, turns, makes=True)

    def rows(self):
        """Return what a reader of the table gets, in order."""
        if self.kind == "iceberg":
            # What other programs find in the table.
            found = self.table(*self._decoded)._table.scan().to_arrow()
        elif self.kind == "delta":
            # What other programs find in the table.
            found = self.table(*self._decoded)._table.to_pyarrow_dataset().to_table()
        else:
            files = committed_files(self.location)
            tables = [pyarrow.parquet.read_table(file) for file in files]
            found = pa.concat_tables(tables) if tables else schema_of("").empty_table()
        rows = found.to_pylist()
        return sorted(rows, key=lambda row: (row["stream"], row["seq"]))

    def sink(
        self, *names, job_id="job", max_bytes=1 << 30, allows_loss=False, decode="",
        schema_of_stream="", bad="keep", dead_letters="", upserts=False,
    ):  # fmt: skip
        """Return the job; with ``schema_of_stream`` it decodes by the schema of that stream."""
        cluster = connected(self.connection)
        decoding, decoder = Decoding(fields=decode, bad_records=bad, upserts=upserts), None
        if schema_of_stream:
            decoder = cluster.run(lambda: decoder_of(cluster, schema_of_stream))
            decoding = Decoding(
                stream=schema_of_stream, version=decoder.version, bad_records=bad, upserts=upserts
            )
        self._decoded = decode, decoder
        letters = BadRecordStream(cluster, dead_letters, self.location) if dead_letters else None
        self.target = self.table(decode, decoder)
        return LakeSink(
            cluster, self.target, names, job_id=job_id, decode=decoding,
            max_bytes=max_bytes, allows_loss=allows_loss, dead_letters=letters, upserts=upserts,
        )  # fmt: skip

    def units(self, plan):
        """Do a plan's units as a task does."""
        results, errors = do_units(self.connection, plan)
        assert errors == {}, errors
        return results

    def sink_all(self, *names, **options):
        return follow(self.connection, self.sink(*names, **options))

    def words(self, table=""):
        """Return the command's words, all but those that say what is copied and how."""
        return [
            "spark", "lake-sink", "--metadata", self.cluster.metadata_uri,
            "--namespace", self.path, "--table", table or self.location,
        ]  # fmt: skip
