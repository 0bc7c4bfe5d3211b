"""``quorumbook spark offload``, ``tier-verify`` and ``restore`` on a whole cluster."""

from __future__ import annotations

import asyncio
import json
import os
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inline import run_inline
from spark_helpers import in_namespace

from doubles.replicas import assert_fully_replicated
from quorumbook.cli.main import main
from quorumbook.errors import MetadataUnavailableError, NoSuchLedgerInMetadataError
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.spark.jobs.options import OffloadOptions
from quorumbook.spark.jobs.upkeep import tier as job
from quorumbook.streams import Namespace, PartitionedStream, Schema, SchemaKind

RECORDS = [b"record %d" % number for number in range(60)]


def in_tiered(cluster, work):
    return in_namespace(cluster, "/tiered", work, bind=True)


async def write(namespace):
    await namespace.create_stream("s")
    for number in range(3):
        async with namespace.stream("s").writer() as writer:
            await writer.append_batch(RECORDS[20 * number : 20 * number + 20])
    return [s.metadata.ledger_id for s in await namespace.stream("s").segments()]


async def read(namespace):
    async with namespace.stream("s").reader(tail=False) as reader:
        return [record.payload async for record in reader]


def ledgers(cluster, ids):
    async def find(namespace):
        found = []
        for ledger_id in ids:
            try:
                found.append(await namespace.client.ledger_metadata(ledger_id))
            except NoSuchLedgerInMetadataError:
                found.append(None)
        return found

    return in_tiered(cluster, find)


@pytest.fixture
def run(cluster, tmp_path):
    """Return what runs a job and gives its exit code and report."""

    def call(job, *words):
        report = tmp_path / "report.json"
        code = main(
            ["spark", job, "--metadata", cluster.metadata_uri, "--namespace", "/tiered",
             "--json-report", str(report), "--state-dir", str(tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report.read_text())

    return call


def test_offloaded_segments_are_read_verified_and_restored(spark, cluster, tmp_path, load, run):
    ids = in_tiered(cluster, write)
    before = ledgers(cluster, ids)
    to = ["--to", str(tmp_path / "files")]
    assert run("offload", "--dry-run", *to)[1]["units"] == 3
    code, report = run("offload", *to)
    assert (code, report["done"], report["bookie_copies_deleted"]) == (0, 3, 0)
    assert ledgers(cluster, ids) == before
    assert run("offload", *to)[1]["units"] == 0
    code, report = run("offload", *to, "--delete-lag", "0")
    assert (code, report["bookie_copies_deleted"]) == (0, 3)
    assert ledgers(cluster, ids) == [None] * 3
    assert in_tiered(cluster, read) == RECORDS
    rows = load("stream:s", namespace="/tiered").orderBy("seq").collect()
    assert [bytes(row.value) for row in rows] == RECORDS

    code, report = run("tier-verify")
    assert (code, report["findings"], report["files"]) == (0, 0, 3)
    path = min(
        os.path.join(found, name)
        for found, _, names in os.walk(tmp_path / "files")
        for name in names
    )
    with open(path, "r+b") as file:
        whole = file.read()
        file.truncate(len(whole) // 2)
    code, report = run("tier-verify")
    assert (code, report["findings"]) == (6, 1)
    assert report["rows"][0]["segment"] == "s#1"
    # The damaged one stays as it is, the others come back; then it does as well.
    code, report = run("restore")
    assert (code, report["done"], list(report["errors"])) == (1, 2, ["s#1"])
    with open(path, "wb") as file:
        file.write(whole)
    code, report = run("restore", "--resume", report["job_id"])
    assert (code, report["done"], report["resumed"]) == (0, 3, 2)
    check_restored(cluster, ids, before)


def test_a_flipped_bit_in_what_says_a_files_version_is_a_finding(cluster, tmp_path):
    path = f"/versions-{uuid4().hex[:8]}"
    asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{path}"))

    def run(make_plan, options):
        return run_inline(cluster, lambda ns: make_plan(ns, options), job.conclude, namespace=path)

    async def work():
        async with Namespace.open(f"{cluster.metadata_uri}#{path}") as namespace:
            await write(namespace)

    asyncio.run(work())
    run(job.plan_offload, OffloadOptions(to=str(tmp_path / "files"), delete_lag_s=3600.0))
    file = min((tmp_path / "files").rglob("*.parquet"))
    whole = file.read_bytes()
    key = b"quorumbook.format_version"
    found = whole.rindex(key)
    value = found + len(key) + 2  # behind its number and its size
    assert whole[value : value + 1] == b"1"
    for at, bit in ((found, 0), (found + 11, 1), (value, 0), (value, 1), (value, 3), (value, 7)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        file.write_bytes(damaged)
        report = run(job.plan_verify, ())
        assert (report.exit_code, report.errors, report.findings) == (6, {}, 1), (at, bit)
        (row,) = report.summary["rows"]
        assert (row["segment"], str(file) in row["problem"]) == ("s#1", True)
    file.write_bytes(whole)
    assert run(job.plan_verify, ()).exit_code == 0


def test_a_copy_that_an_interrupted_deletion_left_goes_the_next_time(
    cluster, tmp_path, monkeypatch
):
    path = f"/interrupted-{uuid4().hex[:8]}"
    ids = in_namespace(cluster, path, write, bind=True)
    options = OffloadOptions(to=str(tmp_path / "files"), delete_lag_s=0.0)

    def offload():
        return run_inline(
            cluster, lambda ns: job.plan_offload(ns, options), job.conclude, namespace=path
        )

    async def fail(ledgers, ledger_id, *known):
        raise MetadataUnavailableError("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerManager, "delete", fail)
        assert len(offload().errors) == len(ids)
    assert None not in ledgers(cluster, ids)
    report = offload()
    assert (report.exit_code, report.summary["bookie_copies_deleted"]) == (0, len(ids))
    assert ledgers(cluster, ids) == [None] * len(ids)
    assert offload().results == {}


def check_restored(cluster, ids, before):
    """Every copy of every entry is there, the metadata is what it was, and the stream as well."""

    async def check(namespace):
        for ledger_id in ids:
            await assert_fully_replicated(namespace.client, ledger_id)

    in_tiered(cluster, check)
    for old, new in zip(before, ledgers(cluster, ids), strict=True):
        assert (old.last_entry_id, old.length, old.custom_metadata, old.ctime_ms) == (
            new.last_entry_id, new.length, new.custom_metadata, new.ctime_ms,
        )  # fmt: skip
    assert in_tiered(cluster, read) == RECORDS


ORDERS = [b'{"customer": "a", "total": 3}', b"not JSON", b'{"customer": "b", "total": 4}']
SCHEMA = (
    '{"type": "object", "properties": {"customer": {"type": "string"}, '
    '"total": {"type": "integer"}}}'
)


def test_records_lie_beside_the_entries_with_the_fields_of_their_schema(cluster, tmp_path):
    async def write_orders(namespace):
        for name in "plain", "orders":
            await namespace.create_stream(name)
        await namespace.stream("orders").set_schema(Schema(SchemaKind.JSON, SCHEMA))
        for name in "plain", "orders":
            for _ in range(2):
                async with namespace.stream(name).writer() as writer:
                    for each in ORDERS:
                        await writer.append(each, key=b"k")

    path = f"/decoded{uuid4().hex}"
    in_namespace(cluster, path, write_orders, bind=True)

    def offload(**options):
        return run_inline(
            cluster,
            lambda namespace: job.plan_offload(
                namespace, OffloadOptions(to=str(tmp_path), delete_lag_s=3600.0, **options)
            ),
            job.conclude,
            namespace=path,
        )

    report = offload(decodes=True)
    assert (report.exit_code, report.summary["undecoded"]) == (0, 2)
    assert not [*tmp_path.glob("plain/*/records*")]
    files = sorted(tmp_path.glob("orders/*/records.parquet"))
    assert len(files) == 2
    assert not [*tmp_path.glob("orders/*/*.unfinished")]
    table = pa.concat_tables(pq.read_table(file) for file in files).sort_by("seq")
    assert table.column("customer").to_pylist() == ["a", None, "b"] * 2
    assert table.column("total").to_pylist() == [3, None, 4] * 2
    assert table.column("value").to_pylist() == [None, b"not JSON", None] * 2
    assert [error is None for error in table.column("_error").to_pylist()] == [
        True,
        False,
        True,
    ] * 2
    assert table.column("seq").to_pylist() == [*range(6)]
    assert table.column("key").to_pylist() == [b"k"] * 6
    assert pq.read_metadata(files[0]).metadata[b"quorumbook.schema_version"] == b"1"

    async def read_back(namespace):
        async with namespace.stream("orders").reader(tail=False) as reader:
            found = [record.payload async for record in reader]
        await namespace.delete_stream("orders")
        return found

    assert in_namespace(cluster, path, read_back) == ORDERS * 2
    # What lies beside goes with the segment's files.
    assert not [*tmp_path.glob("orders/*/*")]


def test_records_of_a_partition_are_those_of_its_stream(cluster, tmp_path):
    async def write_parts(namespace):
        parts = await PartitionedStream.create(namespace, "parts", partitions=2)
        await parts.set_schema(Schema(SchemaKind.JSON, SCHEMA))
        async with parts.writer() as writer:
            for number in range(8):
                await writer.append(b'{"total": %d}' % number, key=b"%d" % number)

    path = f"/decoded{uuid4().hex}"
    in_namespace(cluster, path, write_parts, bind=True)
    options = OffloadOptions(to=str(tmp_path), delete_lag_s=3600.0, decodes=True)
    run_inline(
        cluster, lambda namespace: job.plan_offload(namespace, options), job.conclude,
        namespace=path,
    )  # fmt: skip
    rows = pa.concat_tables(map(pq.read_table, tmp_path.glob("*/*/records.parquet"))).to_pylist()
    assert {row["stream"] for row in rows} == {"parts"}
    assert {row["partition"] for row in rows} == {0, 1}
    assert sorted(row["total"] for row in rows) == [*range(8)]
