"""Jobs know partitioned streams by their bare name, and each record comes with all it carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from inline import run_inline
from spark_helpers import in_namespace
from table_job import TableJob

from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.data import compact_keys, export
from quorumbook.spark.jobs.options import (
    CompactKeysOptions,
    CompactOptions,
    ExportOptions,
    OffloadOptions,
)
from quorumbook.spark.jobs.streams import Chosen, chosen, chosen_streams
from quorumbook.spark.jobs.upkeep import compact_segments, tier
from quorumbook.streams import Namespace, PartitionedStream
from quorumbook.streams.errors import StreamNotFoundError

PARTITIONS = 3


class Flown:
    """A namespace with one partitioned stream, ``flights``, and one without, ``plain``."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.path = cluster, f"/jobs-{uuid4().hex[:8]}"
        in_namespace(cluster, self.path, self._make, bind=True)

    def run(self, work: Any) -> Any:
        return in_namespace(self.cluster, self.path, work)

    async def _make(self, namespace: Namespace) -> None:
        flights = await PartitionedStream.create(namespace, "flights", partitions=PARTITIONS)
        for lap in range(2):
            async with flights.writer() as writer:
                for n in range(30):
                    payload = b"%d.%d" % (lap, n)
                    await writer.append(payload, key=b"k%d" % n, headers={"h": payload})
        await namespace.create_stream("plain")
        async with namespace.stream("plain").writer() as writer:
            await writer.append(b"plain")

    def job(self, plan: Any, conclude: Any) -> Any:
        return run_inline(self.cluster, plan, conclude, namespace=self.path)


@pytest.fixture
def flown(cluster: Any) -> Flown:
    return Flown(cluster)


ROWS = sorted((b"k%d" % n, b"%d.%d" % (lap, n)) for lap in range(2) for n in range(30))


def test_a_bare_name_stands_for_all_partitions(flown: Flown) -> None:
    parts = [Chosen(f"flights/p{n}", "flights", n) for n in range(PARTITIONS)]
    plain = Chosen("plain", "plain")
    assert flown.run(lambda ns: chosen(ns, ["flights", "plain"])) == [*parts, plain]
    assert sorted(flown.run(lambda ns: chosen(ns, []))) == sorted([*parts, plain])
    assert flown.run(lambda ns: chosen(ns, ["flights/p1"])) == [Chosen("flights/p1", "flights/p1")]
    assert flown.run(lambda ns: chosen_streams(ns, ["flights"])) == [each.name for each in parts]
    with pytest.raises(StreamNotFoundError, match="no stream nowhere"):
        flown.run(lambda ns: chosen(ns, ["nowhere"]))


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_export_has_partition_and_headers(flown: Flown, tmp_path: Path, form: str) -> None:
    options = ExportOptions(source="stream:*", out=str(tmp_path / "out"), format=form)
    report = flown.job(lambda ns: export.plan_streams(ns, ["flights"], options), export.conclude)
    assert report.summary["rows_written"] == 60
    files = sorted((tmp_path / "out").iterdir())
    if form == "parquet":
        rows = pq.read_table([str(each) for each in files]).to_pylist()
        assert sorted((row["key"], row["value"]) for row in rows) == ROWS
        assert {row["stream"] for row in rows} == {"flights"}
        assert {row["partition"] for row in rows} == set(range(PARTITIONS))
        assert all(row["headers"] == [{"key": "h", "value": row["value"]}] for row in rows)
    else:
        text = "".join(each.read_text() for each in files)
        quoted = '[{"key": "h", "value": "1.7"}]'
        assert (quoted if form == "jsonl" else quoted.replace('"', '""')) in text


def test_tables_have_partition_and_headers(cluster: Any, flown: Flown, tmp_path: Path) -> None:
    for kind in "parquet", "iceberg", "delta":
        (tmp_path / kind).mkdir()
        lake = TableJob(cluster, tmp_path / kind, kind)
        lake.path = flown.path
        lake.connection = lake.connection.__class__(
            metadata_uri=cluster.metadata_uri, namespace_path=flown.path
        )
        lake.sink_all("flights")
        rows = lake.rows()
        assert sorted((row["key"], row["value"]) for row in rows) == ROWS, kind
        assert {row["partition"] for row in rows} == set(range(PARTITIONS))
        assert {row["stream"] for row in rows} == {"flights"}
        assert all(row["headers"] == [{"key": "h", "value": row["value"]}] for row in rows)


def test_upkeep_takes_the_bare_name(flown: Flown, tmp_path: Path) -> None:
    report = flown.job(
        lambda ns: compact_segments.plan(
            ns,
            CompactOptions(streams=("flights",), target_bytes=1 << 20, older_than_s=0, keep_s=0),
        ),
        compact_segments.conclude,
    )
    assert report.summary["segments_made"] == PARTITIONS
    report = flown.job(
        lambda ns: tier.plan_offload(
            ns, OffloadOptions(streams=("flights",), to=str(tmp_path / "tier"), delete_lag_s=0)
        ),
        tier.conclude,
    )
    assert (report.errors, report.summary["files"]) == ({}, PARTITIONS)
    report = flown.job(lambda ns: tier.plan_verify(ns, ["flights"]), tier.conclude)
    assert (report.findings, report.summary["files"]) == (0, PARTITIONS)


def test_keys_are_compacted_partition_by_partition(
    spark: Any, cluster: Any, flown: Flown, tmp_path: Path
) -> None:
    words = [
        "spark", "compact-keys", "--metadata", cluster.metadata_uri, "--namespace", flown.path,
        "--from", "stream:flights", "--to", "stream:latest", "--create-stream",
        "--state-dir", str(tmp_path),
    ]  # fmt: skip
    for _ in range(2):
        assert main(words) == 0

    async def read(namespace: Namespace) -> list[tuple[bytes | None, bytes]]:
        stream = await PartitionedStream.open(namespace, "latest")
        async with stream.reader(tail=False) as reader:
            return [(each.record.key, each.record.payload) async for each in reader]

    assert sorted(flown.run(read)) == [row for row in ROWS if row[1].startswith(b"1.")]
    options = CompactKeysOptions(source="flights", target="plain")
    with pytest.raises(ConfigError, match="3 partitions, and stream plain no partitions"):
        flown.run(lambda ns: compact_keys.parts_of(ns, options))
