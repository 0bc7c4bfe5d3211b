"""Files of segments, exports and tables in a bucket of an S3 server, where nothing is renamed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from uuid import uuid4

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

import pyarrow.parquet
from inline import run_inline
from spark_helpers import in_namespace
from table_job import KINDS, TableJob

from doubles.replicas import assert_fully_replicated, copies
from quorumbook.cli.main import main
from quorumbook.errors import ConfigError, NoSuchLedgerInMetadataError
from quorumbook.spark.jobs.data import export
from quorumbook.spark.jobs.options import ExportOptions, IngestOptions, OffloadOptions
from quorumbook.spark.jobs.upkeep import tier
from quorumbook.spark.lake.manifest import ManifestTable, committed_files
from quorumbook.spark.lake.next_batch import NextBatchNode
from quorumbook.spark.lake.table import LakeConflictError
from quorumbook.streams import SequenceId
from quorumbook.streams.errors import FilesUnavailableError
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier import moving, part_file
from quorumbook.streams.tier.part_file import PartFile

STREAM = "eu/orders%é"
RECORDS = [b"record %d" % number * (number % 5 + 1) for number in range(60)]
SECRET = "s3cr3t"


class Killed(BaseException):
    """The process is no more."""


class Space:
    """A namespace of a test's own, with a stream of three segments in it."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.path = f"/store-{uuid4().hex[:8]}"
        self.ids = self.run(self._write)

    def run(self, work):
        return in_namespace(self.cluster, self.path, work, bind=True)

    async def _write(self, namespace):
        await namespace.create_stream(STREAM)
        stream = namespace.stream(STREAM)
        for number in range(3):
            async with stream.writer() as writer:
                await writer.append_batch(RECORDS[20 * number : 20 * number + 20])
        return [segment.metadata.ledger_id for segment in await stream.segments()]

    def read(self):
        async def read(namespace):
            async with namespace.stream(STREAM).reader(tail=False) as reader:
                return [record.payload async for record in reader]

        return self.run(read)

    def bytes_of_ledgers(self):
        """Return each ledger's entries as bookies have them; None: it is gone."""

        async def find(namespace):
            found = []
            for ledger_id in self.ids:
                try:
                    entries = await copies(namespace.client, ledger_id)
                except NoSuchLedgerInMetadataError:
                    found.append(None)
                else:
                    found.append({e: set(each.values()) for e, each in entries.items()})
            return found

        return self.run(find)

    def first_segment(self, work):
        async def run(namespace):
            stream = namespace.stream(STREAM)
            first = (await stream.segments())[0].metadata
            return await work(moving.SegmentInTier(context=stream_context(stream), metadata=first))

        return self.run(run)


@pytest.fixture
def space(cluster):
    return Space(cluster)


@pytest.fixture
def run(cluster, space, tmp_path):
    """Return what runs a job and gives its exit code and report."""

    def call(job, *words):
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        code = main(
            ["spark", job, "--metadata", cluster.metadata_uri, "--namespace", space.path,
             "--json-report", str(report), "--state-dir", str(tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report.read_text()) if report.exists() else None

    return call


def test_segments_go_to_a_bucket_and_come_back_byte_by_byte(spark, space, bucket, load, run):
    before = space.bytes_of_ledgers()
    to = ["--to", bucket.uri("tier")]
    assert run("offload", "--dry-run", *to)[1]["units"] == 3
    assert bucket.objects() == []
    code, report = run("offload", *to)
    assert (code, report["done"]) == (0, 3)
    keys = bucket.objects()
    assert len(keys) == 3
    assert all(key.startswith("tier/eu~2Forders~25~C3~A9/0000") for key in keys)
    code, report = run("offload", *to, "--delete-lag", "0")
    assert (code, report["bookie_copies_deleted"]) == (0, 3)
    assert space.bytes_of_ledgers() == [None] * 3
    assert space.read() == RECORDS
    rows = load(f"stream:{STREAM}", namespace=space.path).orderBy("seq").collect()
    assert [bytes(row.value) for row in rows] == RECORDS
    assert run("tier-verify")[0] == 0

    whole = [bucket.read(key) for key in keys]
    values = pyarrow.parquet.read_metadata(io.BytesIO(whole[0])).row_group(0).column(5)
    at = values.data_page_offset + values.total_compressed_size - 9
    bucket.write(keys[0], whole[0][:at] + bytes([whole[0][at] ^ 1]) + whole[0][at + 1 :])
    bucket.delete(keys[1])
    code, report = run("tier-verify")
    assert (code, report["findings"]) == (6, 2)
    assert [row["segment"] for row in report["rows"]] == [f"{STREAM}#1", f"{STREAM}#2"]
    code, report = run("restore")
    assert (code, report["done"], len(report["errors"])) == (1, 1, 2)
    for key, data in zip(keys[:2], whole, strict=False):
        bucket.write(key, data)
    assert run("restore")[0] == 0
    assert space.bytes_of_ledgers() == before
    for ledger_id in space.ids:
        space.run(lambda ns, each=ledger_id: assert_fully_replicated(ns.client, each))
    assert bucket.objects() == []
    assert bucket.uploads() == []
    assert space.read() == RECORDS


def offload(space, bucket):
    """Offload all in this process, and delete the bookies' copies."""
    for _ in range(2):
        report = run_inline(
            space.cluster,
            lambda namespace: tier.plan_offload(
                namespace, OffloadOptions(to=bucket.uri("tier"), delete_lag_s=0)
            ),
            tier.conclude,
            namespace=space.path,
        )
        assert report.errors == {}


@pytest.mark.parametrize("how", ["truncated", "deleted"])
def test_objects_go_with_their_segments(space, bucket, how):
    offload(space, bucket)
    assert len(bucket.objects()) == 3

    async def cut(namespace):
        if how == "deleted":
            await namespace.delete_stream(STREAM)
            return
        stream = namespace.stream(STREAM)
        await stream.truncate(SequenceId(45))
        await stream.enforce_retention()

    space.run(cut)
    assert len(bucket.objects()) == (0 if how == "deleted" else 1)


def test_an_interrupted_copy_leaves_nothing_in_the_bucket(space, bucket, monkeypatch):
    async def stop(*_):
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(moving, "verify", stop)
        with pytest.raises(asyncio.CancelledError):
            space.first_segment(lambda segment: moving.offload(segment, bucket.uri("tier")))
    left = bucket.objects()
    assert left
    space.first_segment(lambda segment: moving.offload(segment, bucket.uri("tier")))
    assert len(bucket.objects()) == 1
    assert not set(bucket.objects()) & set(left)


def test_what_cannot_be_read_now_is_not_taken_for_damage(space, bucket, monkeypatch):
    monkeypatch.setattr(part_file, "ROW_GROUP_BYTES", 100)
    manifest = space.first_segment(lambda each: moving.offload(each, bucket.uri("tier")))
    file = PartFile(manifest.path(manifest.parts[0]))
    (key,) = bucket.objects()
    whole = bucket.read(key)
    bucket.delete(key)
    with pytest.raises(OSError, match="GetObject"):
        file.read_group(0)
    bucket.write(key, whole)
    assert file.read_group(0)
    file.close()

    # Of a job the first is an error, and no finding.
    def away(*_):
        raise OSError("the store is away")

    monkeypatch.setattr(part_file, "file_system", away)
    report = run_inline(
        space.cluster, lambda ns: tier.plan_verify(ns, []), tier.conclude, namespace=space.path
    )
    assert report.findings == 0
    assert [FilesUnavailableError.__name__ in each for each in report.errors.values()] == [True]


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_exports_are_there_under_their_names_when_they_are_whole(space, bucket, form, monkeypatch):
    def do():
        options = ExportOptions(source="stream:*", out=bucket.uri("out"), format=form)
        return run_inline(
            space.cluster, lambda ns: export.plan_streams(ns, [], options), export.conclude,
            namespace=space.path,
        )  # fmt: skip

    add = export._FileWriter.add  # it dies between two steps

    def full(writer, rows):
        add(writer, rows)
        raise OSError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(export._FileWriter, "add", full)  # it dies between two steps
        assert len(do().errors) == 3
    assert bucket.objects() == bucket.uploads() == []
    report = do()
    assert report.errors == {}
    assert len(bucket.objects()) == 3
    place = [each["path"] for _, each in sorted(report.results.items())]
    assert [each.partition("?")[0] for each in place] == [
        f"s3://{bucket.name}/{key}" for key in bucket.objects()
    ]
    if form == "parquet":
        values = [
            value
            for each in place
            for value in pyarrow.parquet.read_table(each).column("value").to_pylist()
        ]
        assert values == RECORDS
    else:
        text = b"".join(map(bucket.read, bucket.objects()))
        assert text.count(b"record 59") == len(RECORDS[59]) // len(b"record 59")


@pytest.fixture(params=KINDS)
def table_job(request, cluster, tmp_path, bucket):
    return TableJob(cluster, tmp_path, request.param, bucket)


def payloads(rows):
    return [row["value"] for row in rows]


@pytest.mark.parametrize("table_job", ["parquet"], indirect=True)
def test_bad_records_of_a_table_in_a_bucket_go_to_a_stream_that_is_not_copied(table_job, bucket):
    table_job.write(STREAM, [b'{"n": 1}', b"bad", b'{"n": 2}'])
    for _ in range(2):  # all streams, and theirs is one of them from the second time on
        table_job.sink_all(decode="n int", bad="drop", dead_letters="bad")

    async def letters(namespace):
        async with namespace.stream("bad").reader(tail=False) as reader:
            return [record.payload async for record in reader]

    assert table_job.run(letters) == [b"bad"]
    assert [row["n"] for row in table_job.rows()] == [1, 2]
    assert bucket.uploads() == []
    with pytest.raises(ConfigError, match="without end; name another stream"):
        table_job.sink_all(STREAM, "bad", decode="n int", bad="drop", dead_letters="bad")


def test_a_table_in_a_bucket_has_each_record_once(table_job, bucket, monkeypatch):
    first, more = [b"%d" % n for n in range(25)], [b"more %d" % n for n in range(7)]
    table_job.write(STREAM, first)
    # Killed before the table knew of the files.
    sink = table_job.sink()
    table_job.units(sink.plan())
    assert table_job.rows() == []
    table_job.sink_all(job_id="second")
    assert payloads(table_job.rows()) == first
    table_job.write(STREAM, more)
    # Of two at once one is told so.
    one, two = table_job.sink(job_id="one"), table_job.sink(job_id="two")
    results = [table_job.units(each.plan()) for each in (one, two)]
    two.commit(results[1])
    if table_job.kind == "delta":
        # Its log itself refuses a version that is there.
        monkeypatch.setattr(one._table, "state", lambda names: one._before)
    with pytest.raises(LakeConflictError, match="another job"):
        one.commit(results[0])
    assert payloads(table_job.rows()) == [*first, *more]
    assert table_job.sink().plan() is None
    assert bucket.uploads() == []
    if table_job.kind == "iceberg":
        # As other engines take them.
        paths = table_job.table()._table.inspect.files().column("file_path").to_pylist()
        keys = {f"s3://{bucket.name}/{key}" for key in bucket.objects()}
        assert paths
        assert set(paths) <= keys


@pytest.mark.parametrize("before", [[], [b"before"]])
def test_of_two_that_saw_the_same_table_in_a_bucket_one_is_told_so(
    cluster, tmp_path, bucket, monkeypatch, before
):
    table_job = TableJob(cluster, tmp_path, "parquet", bucket)
    table_job.write("a", [*before, b"0"][:1])
    if before:
        table_job.sink_all()
        table_job.write("a", [b"0"])
    one, two = table_job.sink(job_id="one"), table_job.sink(job_id="two")
    results = [table_job.units(each.plan()) for each in (one, two)]
    publish = ManifestTable._publish  # it dies between two steps

    def overtaken(table, name, version):
        monkeypatch.setattr(ManifestTable, "_publish", publish)
        two.commit(results[1])
        return publish(table, name, version)

    monkeypatch.setattr(ManifestTable, "_publish", overtaken)
    with pytest.raises(LakeConflictError, match="another job"):
        one.commit(results[0])
    assert payloads(table_job.rows()) == [*before, b"0"]
    assert "-two/" in committed_files(table_job.location)[-1]
    assert not [key for key in bucket.objects() if key.endswith(".tmp")]


def test_a_batch_that_was_decided_on_becomes_visible_whoever_was_killed(
    cluster, tmp_path, bucket, monkeypatch
):
    table_job = TableJob(cluster, tmp_path, "parquet", bucket)
    table_job.write("a", [b"0"])
    sink = table_job.sink()
    results = table_job.units(sink.plan())
    take = type(sink._table._next_batch).take  # it dies between two steps

    def killed(*arguments):
        assert take(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(sink._table._next_batch), "take", killed)  # it dies between two steps
        with pytest.raises(Killed):
            sink.commit(results)
    assert committed_files(table_job.location) == []
    assert table_job.sink().plan() is None
    assert [row["value"] for row in table_job.rows()] == [b"0"]
    # A table that somebody removed is begun anew.
    for key in bucket.objects():
        bucket.delete(key)
    table_job.sink_all(job_id="anew")
    assert [row["value"] for row in table_job.rows()] == [b"0"]


@pytest.mark.parametrize("stage", ["_publish", "take", None])
def test_a_dry_run_changes_nothing_wherever_a_job_was_killed(
    cluster, tmp_path, bucket, monkeypatch, stage
):
    table_job = TableJob(cluster, tmp_path, "parquet", bucket)
    table_job.write("a", [b"before"])
    table_job.sink_all()
    table_job.write("a", [b"0", b"1"])
    sink = table_job.sink(job_id="killed")
    results = table_job.units(sink.plan())

    def killed(*arguments):
        if stage == "take":
            assert take(*arguments)
        raise Killed

    take = NextBatchNode.take
    with monkeypatch.context() as patch:
        if stage is not None:
            patch.setattr(NextBatchNode if stage == "take" else ManifestTable, stage, killed)
        with pytest.raises(Killed) if stage else contextlib.nullcontext():
            sink.commit(results)
    is_decided = stage != "_publish"
    before = {key: bucket.read(key) for key in bucket.objects()}
    files = committed_files(table_job.location)
    report = tmp_path / "report.json"
    words = [*table_job.words(), "--from", "stream:a", "--json-report", str(report)]
    assert main([*words, "--dry-run"]) == 0
    assert json.loads(report.read_text())["units"] == (0 if is_decided else 1)
    assert {key: bucket.read(key) for key in bucket.objects()} == before
    assert committed_files(table_job.location) == files
    # The next job makes the batch visible, or writes it.
    table_job.sink_all(job_id="next")
    assert payloads(table_job.rows()) == [b"before", b"0", b"1"]


def test_the_command_writes_a_table_that_spark_workers_reach(spark, space, bucket, run):
    table = bucket.uri("lake")
    code, report = run("lake-sink", "--from", f"stream:{STREAM}", "--table", table)
    assert (code, report["rows_written"]) == (0, 60)
    found = [pyarrow.parquet.read_table(file) for file in committed_files(table)]
    rows = [row for each in found for row in each.to_pylist()]
    assert [row["value"] for row in sorted(rows, key=lambda row: row["seq"])] == RECORDS
    # As Hadoop spells it, for Spark's own reader.
    assert all(
        file.startswith(f"s3a://{bucket.name}/lake/data/")
        for file in committed_files(bucket.uri("lake", scheme="s3a"))
    )


JOBS = {
    "offload": ["offload", "--to"],
    "export": ["export", "--from", "stream:*", "--out"],
    **{
        kind: ["lake-sink", "--from", "stream:*", "--format", kind, "--table"]
        for kind in ("parquet", "delta")
    },
}


@pytest.mark.parametrize("job", JOBS)
def test_a_place_that_is_none_is_told_before_any_task(space, bucket, run, job, capsys, monkeypatch):
    monkeypatch.setattr("quorumbook.cli.spark.run.open_session", None)
    elsewhere = bucket.uri("dir").replace(bucket.name, "nobodys-bucket")
    for uri, told in (
        (elsewhere, "no bucket nobodys-bucket"),
        (f"{bucket.uri('dir')}&nonsense=1", "nonsense"),
        ("s9://bucket/dir", "s9://bucket/dir is not a place for files"),
    ):
        assert run(*JOBS[job], uri) == (2, None)
        assert told in capsys.readouterr().err.splitlines()[-1]


MORE_JOBS = {
    **JOBS,
    "ingest": ["ingest", "--format", "csv", "--to", "stream:x", "--src"],
    "analytics": [
        "analytics", "--from", "stream:x", "--schema", "n int", "--time", "n", "--window", "1 hour",
        "--to",
    ],
}  # fmt: skip


@pytest.mark.parametrize("job", MORE_JOBS)
@pytest.mark.parametrize("how", ["s3://key:{}@{}/dir", "s3://{}@{}/d", "s3://k:{}/x@{}/d"])
def test_credentials_in_a_uri_are_refused_and_neither_kept_nor_shown(
    space, bucket, run, tmp_path, job, how, capsys
):
    assert run(*MORE_JOBS[job], how.format(SECRET, bucket.name))[0] == 2
    said = capsys.readouterr()
    assert "credentials in it" in said.err.splitlines()[-1]
    assert SECRET not in said.out + said.err
    kept = [file.read_text() for file in tmp_path.rglob("*.jsonl")]
    assert not [text for text in kept if SECRET in text]


def test_what_spark_itself_would_write_says_what_it_needs(spark, space, bucket, run, capsys):
    words = [*MORE_JOBS["analytics"], f"s3a://{bucket.name}/out"]
    words[words.index("n int")] = "n timestamp"
    words[words.index("stream:x")] = f"stream:{STREAM}"
    assert run(*words)[0] == 1
    assert "hadoop-aws" in capsys.readouterr().err.splitlines()[-1]


def test_jobs_keep_no_passwords_of_databases():
    options = IngestOptions(
        source="", format="jdbc", target="stream:x",
        reader_options={
            "dbtable": "t", "Password": SECRET, "url": f"jdbc:pg://h/d?user=u&password={SECRET}"
        },
    )  # fmt: skip
    assert options.arguments()["option"] == {
        "dbtable": "t", "Password": "***", "url": "***",
    }  # fmt: skip
    assert options.reader_options["Password"] == SECRET


def test_a_job_keeps_what_it_did_on_this_machine(space, bucket, run, capsys):
    code, _ = run("offload", "--to", bucket.uri("tier"), "--state-dir", "s3://bucket/jobs")
    assert code == 2
    assert "--state-dir" in capsys.readouterr().err.splitlines()[-1]
