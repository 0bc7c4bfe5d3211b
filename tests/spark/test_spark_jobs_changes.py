"""``quorumbook spark lake-changes``: what changed in a table becomes records, each change once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from table_job import KINDS, TableJob
from test_spark_jobs_upserts import write

from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.change_options import LakeChangesOptions
from quorumbook.spark.jobs.data import lake_changes
from quorumbook.spark.jobs.data.lake_changes import LakeChanges, rows_of
from quorumbook.spark.lake import manifest, versions
from quorumbook.spark.pool import connected
from quorumbook.streams import PartitionedStream
from quorumbook.streams.errors import DataLossError


class Killed(BaseException):
    """The process is no more."""


class Back:
    """A table that ``lake-sink --upsert`` keeps, and the way back into a stream ``back``."""

    def __init__(self, cluster, tmp_path, kind):
        self.table_job = TableJob(cluster, tmp_path, kind)
        self._jobs = 0

    def put(self, *changes):
        write(self.table_job, "a", *changes)
        self._jobs += 1
        self.table_job.sink_all("a", job_id=f"job{self._jobs}", upserts=True)

    def job(self, **said):
        options = LakeChangesOptions(
            table=self.table_job.location, target="stream:back", value="value", creates_stream=True,
            **said,
        )  # fmt: skip
        if self.table_job.kind == "iceberg":
            table = versions.IcebergVersions("db.events", self.table_job.catalog)
        elif self.table_job.kind == "delta":
            table = versions.DeltaVersions(self.table_job.location)
        else:
            table = versions.ManifestVersions(self.table_job.location)
        return LakeChanges(connected(self.table_job.connection), table, options)

    def records(self, name="back"):
        async def work(namespace):
            async with namespace.stream(name).reader(tail=False) as reader:
                return [(record.key, record.payload) async for record in reader]

        return self.table_job.run(work)


@pytest.fixture(params=KINDS)
def back(request, cluster, tmp_path):
    return Back(cluster, tmp_path, request.param)


def test_each_change_comes_back_once_whatever_was_killed(back, monkeypatch):
    back.put((b"k", b"1"), (b"l", b"1"), (b"m", b"1"))
    assert back.job().step()
    first = [(b"k", b"1"), (b"l", b"1"), (b"m", b"1")]
    assert back.records() == first
    assert not back.job().step()
    # Two versions at once: what was changed and changed back is no change.
    back.put((b"k", b"2"), (b"m", b""), (b"l", b"2"))
    back.put((b"n", b"1"), (b"l", b"1"))
    # Killed before the commit, and after it.
    app = lake_changes.Application
    commit = app.commit

    async def before(*arguments):
        raise Killed

    async def after(*arguments):
        await commit(*arguments)
        raise Killed

    for killed in (before, after):
        with monkeypatch.context() as patch:
            patch.setattr(app, "commit", killed)
            with pytest.raises(Killed):
                back.job().step()
    job = back.job()
    assert not job.step()
    assert back.records() == [*first, (b"k", b"2"), (b"m", b""), (b"n", b"1")]
    # A version without a change is done, too.
    back.put((b"k", b"3"))
    back.put((b"k", b"2"))
    job = back.job()
    assert (job.step(), job.versions, job.upserts, job.deletions) == (True, 1, 0, 0)
    assert not back.job().step()
    back.put((b"k", b""))
    assert back.job().step()
    assert back.records()[-1] == (b"k", b"")


def test_keys_of_a_partitioned_stream_stay_in_their_partition(cluster, tmp_path):
    back = Back(cluster, tmp_path, "delta")
    back.table_job.run(lambda ns: PartitionedStream.create(ns, "back", partitions=2))
    back.put(*((b"%d" % n, b"1") for n in range(20)))
    back.job().step()
    back.put(*((b"%d" % n, b"") for n in range(20)))
    back.job().step()
    found = [back.records(f"back/p{number}") for number in range(2)]
    for records in found:
        assert records
        keys = [key for key, payload in records if payload]
        assert [key for key, payload in records if not payload] == keys
    assert sum(map(len, found)) == 40


def test_a_version_that_is_gone_is_an_error_unless_all_may_come_again(
    cluster, tmp_path, monkeypatch
):
    back = Back(cluster, tmp_path, "parquet")
    monkeypatch.setattr(manifest, "_KEPT_MS", -1)
    back.put((b"k", b"1"), (b"l", b"1"))
    back.job().step()
    back.put((b"k", b"2"))
    back.put((b"m", b"1"))
    with pytest.raises(DataLossError, match="--allow-data-loss goes on with all rows"):
        back.job().step()
    assert back.job(allows_loss=True).step()
    assert back.records()[2:] == [(b"k", b"2"), (b"l", b"1"), (b"m", b"1")]


def test_what_is_no_key_is_refused(cluster, tmp_path):
    back = Back(cluster, tmp_path, "parquet")
    back.put((b"k", b"1"), (b"l", b"1"))
    with pytest.raises(ConfigError, match="the table has no column id"):
        back.job(key="id").step()
    with pytest.raises(ConfigError, match="two rows have the key b'a'"):
        back.job(key="stream").step()


def test_rows_are_json_where_no_column_is_the_payload():
    row = {
        "id": 7, "name": "\N{LATIN SMALL LETTER E WITH ACUTE}", "raw": b"\x00\xff", "none": None,
        "at": datetime(2026, 1, 2, 3, tzinfo=UTC), "cost": Decimal("1.50"), "tags": ["a"],
        "rates": [1.5, float("inf")],
    }  # fmt: skip
    ((key, payload),) = rows_of(pa.Table.from_pylist([row, {**row, "id": None}]), "id", "")
    assert key == b"7"
    assert json.loads(payload) == {
        "id": 7, "name": row["name"], "raw": "AP8=", "none": None,
        "at": "2026-01-02T03:00:00+00:00", "cost": "1.50", "tags": ["a"],
        "rates": [1.5, "inf"],
    }  # fmt: skip
    assert list(rows_of(pa.table({"id": ["x"], "v": [None]}), "id", "v")) == [(b"x", b"null")]


def test_a_table_of_others_with_partitions_comes_by_the_command(cluster, tmp_path, capsys):
    import deltalake

    table_job = TableJob(cluster, tmp_path, "delta")
    table = pa.table({"id": [1, 2], "city": ["a", "b"], "total": [1.5, 2.5]})
    deltalake.write_deltalake(table_job.location, table, partition_by=["city"])
    words = ["spark", "lake-changes",
             "--metadata", cluster.metadata_uri, "--namespace", table_job.path,
             "--table", table_job.location, "--format", "delta", "--key", "id", "--to",
             "stream:cities", "--create-stream", "-o", "json"]  # fmt: skip
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {"versions": 1, "upserts": 2, "deletions": 0}
    deltalake.DeltaTable(table_job.location).delete("id = 1")
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {"versions": 1, "upserts": 0, "deletions": 1}

    async def work(namespace):
        async with namespace.stream("cities").reader(tail=False) as reader:
            return [(record.key, record.payload) async for record in reader]

    assert table_job.run(work) == [
        (b"1", b'{"id":1,"city":"a","total":1.5}'), (b"2", b'{"id":2,"city":"b","total":2.5}'),
        (b"1", b""),
    ]  # fmt: skip
    assert main([*words[:-4], "stream:none", "-o", "json"]) != 0
    assert "there is no stream none" in capsys.readouterr().err
