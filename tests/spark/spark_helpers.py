"""What tests of Spark do again and again: write streams and ledgers, read without a session."""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from typing import Any

from quorumbook.spark import pool
from quorumbook.streams import Namespace
from quorumbook.streams.stream_context import stream_context
from quorumbook.testing import LocalCluster


class Streams:
    """Writes streams of a cluster from a test without an event loop."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.namespace: Any = None

    def __enter__(self) -> Streams:
        address = f"{self._cluster.metadata_uri}#/streams"

        async def opened() -> Namespace:
            return await Namespace.open(address, bind=True)

        self.namespace = self.run(opened())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.namespace.close())

    def run(self, work: Any) -> Any:
        """Run a coroutine on the cluster's loop."""
        # The loop that the cluster lives on, and the clients of this process.
        return self._cluster._thread.run(work)

    def write(self, name: str, *batches: list[bytes], **options: Any) -> None:
        """Append batches, each of which is an entry, in a segment of their own."""

        async def work() -> None:
            await self.namespace.create_stream(name, exist_ok=True)
            async with self.namespace.stream(name).writer(**options) as writer:
                for batch in batches:
                    await writer.append_batch(batch)

        self.run(work())

    def writer(self, name: str) -> Any:
        """Return an open writer; ``append(writer, records)`` and ``close(writer)`` use it."""

        async def work() -> Any:
            await self.namespace.create_stream(name, exist_ok=True)
            return await self.namespace.stream(name).writer()

        return self.run(work())

    def append(self, writer: Any, *batches: list[bytes]) -> None:
        async def work() -> None:
            for batch in batches:
                await writer.append_batch(batch)

        self.run(work())

    def close(self, writer: Any) -> None:
        self.run(writer.close())

    def segments(self, name: str) -> Any:
        return self.run(stream_context(self.namespace.stream(name)).nodes.segments())

    def truncate(self, name: str, before: Any) -> None:
        self.run(self.namespace.stream(name).truncate(before))

    def delete(self, name: str) -> None:
        self.run(self.namespace.delete_stream(name))


def let_go(cluster: LocalCluster) -> None:
    """Close this process's clients of a cluster that is about to end."""
    # The loop that the cluster lives on, and the clients of this process.
    for connection, known in list(pool._clusters.items()):
        if connection.metadata_uri == cluster.metadata_uri:
            known.run(known.client.close)
            # The loop that the cluster lives on, and the clients of this process.
            del pool._clusters[connection]


def write_ledger(cluster: LocalCluster, payloads: list[bytes], **options: Any) -> int:
    """Make a closed ledger, and return its id."""
    with cluster.connect() as client, client.create_ledger(**options) as writer:
        for payload in payloads:
            writer.append_nowait(payload)
        return writer.id


def read_tasks(
    cluster: LocalCluster, path: str | None, columns: Any = None, **options: Any
) -> list[list[dict[str, Any]]]:
    """Return the rows of each task, read in this process."""
    from quorumbook.spark.data_source import Source
    from quorumbook.spark.request.read_options import ReadOptions
    from quorumbook.spark.rows.schema import struct_of
    from quorumbook.spark.source.kinds import kind_of

    given = {"metadataServiceUri": cluster.metadata_uri}
    if path is not None:
        given["path"] = path
    given |= {name: str(value) for name, value in options.items()}
    source = Source(given)
    schema = source.schema()
    if columns is not None:
        schema = struct_of(kind_of(ReadOptions.of(given)).columns, tuple(columns))
    reader = pickle.loads(pickle.dumps(source.reader(schema)))
    return [
        [row for batch in reader.read(task) for row in batch.to_pylist()]
        for task in pickle.loads(pickle.dumps(reader.partitions()))
    ]


def records(*numbers: int) -> list[bytes]:
    """Return payloads that tell their numbers."""
    return [b"record %d" % n for n in numbers]


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    """Return what records of a stream hold."""
    return [row["value"] for row in rows]


class Query:
    """What Spark's engine does with a reader, with JSON between as in a checkpoint."""

    def __init__(
        self, cluster: LocalCluster, path: str | None = None, *, checkpoint: Any = None,
        now: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        from quorumbook.spark.data_source import Source

        given = {"metadataServiceUri": cluster.metadata_uri}
        if path is not None:
            given["path"] = path
        given |= {name: str(value) for name, value in options.items()}
        source = Source(given)
        schema = source.schema()
        self.reader = source.stream_reader(schema)
        self._tasks_reader = pickle.loads(pickle.dumps(source.stream_reader(schema)))
        self.rows: list[dict[str, Any]] = []
        self.batches: list[list[dict[str, Any]]] = []
        if now:
            self.reader.prepareForTriggerAvailableNow()
        self.limit = self.reader.getDefaultReadLimit()
        self.checkpoint = list(checkpoint or ()) or [json.dumps(self.reader.initialOffset())]
        self.report: Any = None

    def step(self, limit: Any = None) -> list[dict[str, Any]] | None:
        """Run one batch; return its rows, or None if there is nothing new."""
        start = json.loads(self.checkpoint[-1])
        end = json.dumps(self.reader.latestOffset(start, limit or self.limit))
        self.report = self.reader.reportLatestOffset()
        if end == self.checkpoint[-1]:
            return None
        if len(self.checkpoint) > 1:
            self.reader.commit(start)
        rows = self.rows_between(self.checkpoint[-1], end)
        self.checkpoint.append(end)
        self.batches.append(rows)
        self.rows += rows
        return rows

    def rows_between(self, start: str, end: str) -> list[dict[str, Any]]:
        return [row for task in self.tasks_between(start, end) for row in task]

    def tasks_between(self, start: str, end: str) -> list[list[dict[str, Any]]]:
        """Return the rows of each task."""
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        return [
            [row for batch in self._tasks_reader.read(task) for row in batch.to_pylist()]
            for task in pickle.loads(pickle.dumps(tasks))
        ]

    def until(self, count: int) -> list[dict[str, Any]]:
        """Run batches until there are so many rows: what is new is heard of a moment later."""
        end = time.monotonic() + 60
        while len(self.rows) < count:
            assert time.monotonic() < end, self.rows
            self.step()
        return self.rows

    def drain(self) -> list[dict[str, Any]]:
        """Run batches until there is nothing new."""
        while self.step() is not None:
            assert len(self.checkpoint) < 1000
        return self.rows


def in_namespace(cluster: LocalCluster, path: str, work: Any, *, bind: bool = False) -> Any:
    """Run a coroutine with the namespace at a path."""

    async def run() -> Any:
        address = f"{cluster.metadata_uri}#{path}"
        async with Namespace.open(address, bind=bind) as namespace:
            return await work(namespace)

    return asyncio.run(run())
