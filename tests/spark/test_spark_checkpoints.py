"""Queries whose checkpoint the cluster itself keeps, cut off at changes of it, and gone on."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import Streams

from doubles.file_server import file_server
from quorumbook.admin.files.tree import FileTree
from quorumbook.spark.connection import Connection
from quorumbook.spark.pool import connected
from quorumbook.spark.sink.checkpoint import batch_digest
from quorumbook.testing import LocalCluster

_STATE = "org.apache.spark.sql.execution.streaming.state"
#: In each batch some values that were there before.
BATCHES = [[b"%d" % (n % 9) for n in range(7 * first, 7 * first + 12)] for first in range(3)]


@pytest.fixture(scope="module")
def files(cluster: LocalCluster) -> Iterator[str]:
    with file_server(cluster.metadata_uri) as address:
        yield address


class CutError(OSError):
    """The server is gone."""


class Cuts:
    """Has changes of files fail, each before or after it was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: list[int]) -> None:
        self.at, self.count, self.made = at, 0, 0
        for name in "write", "rename", "delete":
            monkeypatch.setattr(FileTree, name, self._cut(getattr(FileTree, name)))

    def _cut(self, change: Any) -> Any:
        async def changed(tree: FileTree, *given: Any, **options: Any) -> Any:
            self.count += 1
            number, is_due = self.count, self.count in self.at
            if is_due and number % 2:
                self.made += 1
                raise CutError(5, "gone", "before")
            result = await change(tree, *given, **options)
            if is_due:
                self.made += 1
                raise CutError(5, "gone", "after")
            return result

        return changed


@pytest.mark.parametrize("provider", ["RocksDB", "HDFSBacked"])
def test_a_stateful_query_that_is_cut_off_at_changes_of_its_checkpoint_is_exact(
    spark: Any, cluster: LocalCluster, streams: Streams, files: str,
    monkeypatch: pytest.MonkeyPatch, provider: str,
) -> None:  # fmt: skip
    name = f"counts_{uuid4().hex[:8]}"
    streams.write(name, *BATCHES)
    settings = {
        "spark.sql.streaming.stateStore.providerClass": f"{_STATE}.{provider}StateStoreProvider",
        "spark.sql.shuffle.partitions": "1",
    }
    usual = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)

    def run() -> str:
        """Go on until something fails; return what did."""
        source = spark.readStream.format("quorumbook").schema("value binary")
        source = source.option("metadataServiceUri", cluster.metadata_uri)
        source = source.options(startingOffsets="earliest", maxEntriesPerTrigger=1)
        counts = source.load(f"stream:{name}").groupBy("value").count()
        sink = counts.writeStream.format("memory").outputMode("complete").queryName(name)
        sink = sink.option("checkpointLocation", f"{files}/{name}").trigger(availableNow=True)
        try:
            sink.start().awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    # The offsets of the first batch have their name then, but nobody was told; a state has none.
    cuts = Cuts(monkeypatch, [4, 13])
    runs = 0
    try:
        while failure := run():
            runs += 1
            assert cuts.made == runs, failure
    finally:
        for key, value in usual.items():
            spark.conf.set(key, value)
    assert runs == 2
    found = {row["value"]: row["count"] for row in spark.table(name).collect()}
    assert found == Counter(value for batch in BATCHES for value in batch)


def test_the_sink_reads_the_offsets_of_a_checkpoint_in_the_cluster(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path="/streams")
    known = connected(connection)
    tree = FileTree(known.client)
    path = f"/{uuid4().hex}"
    (tmp_path / "offsets").mkdir()

    async def write(batch: int, content: bytes) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield content

        await tree.write(f"{path}/offsets/{batch}", pieces(), replaces=False)

    for batch, content in enumerate((b"v1\n{}\n0", b"v1\n{}\n1")):
        known.run(partial(write, batch, content))
        (tmp_path / "offsets" / str(batch)).write_bytes(content)
    for batch in range(2):
        digest = batch_digest(str(tmp_path), batch)
        assert len(digest) == 32
        for address in f"webhdfs://h:80{path}", f"swebhdfs://h:80{path}/":
            assert batch_digest(address, batch, known) == digest
    assert batch_digest(f"webhdfs://h:80{path}", 2, known) == ""
    assert batch_digest(f"webhdfs://h:80{path}", 0) == ""
