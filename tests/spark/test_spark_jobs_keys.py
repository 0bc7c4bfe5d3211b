"""``quorumbook spark compact-keys``: the latest record of each key, replaced as a whole."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from spark_helpers import in_namespace

from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.data import compact_keys as job
from quorumbook.spark.jobs.engine import Limits
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.options import CompactKeysOptions
from quorumbook.streams import Namespace
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.format.segment_text import Truncation
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.streams.tier import moving
from quorumbook.streams.tier.moving import SegmentInTier
from quorumbook.streams.transactions import (
    Application,
    CommitOptions,
    DraftOptions,
    Identity,
    Place,
)


class Keyed:
    """A namespace, and the job's command."""

    def __init__(self, cluster, tmp_path):
        self.cluster, self.tmp_path = cluster, tmp_path
        self.path = f"/keys-{uuid4().hex[:8]}"
        asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{self.path}"))

    def run(self, work):
        return in_namespace(self.cluster, self.path, work)

    def write(self, name, *records):
        async def work(namespace):
            await namespace.create_stream(name, exist_ok=True)
            async with namespace.stream(name).writer() as writer:
                for key, payload in records:
                    await writer.append(payload, key=key, headers={"h": payload})

        self.run(work)

    def read(self, name):
        async def work(namespace):
            async with namespace.stream(name).reader(tail=False) as reader:
                return [(record.key, record.payload) async for record in reader]

        return self.run(work)

    def command(self, *words, source="a", target="b"):
        report = self.tmp_path / "report.json"
        report.unlink(missing_ok=True)
        code = main(
            ["spark", "compact-keys", "--metadata", self.cluster.metadata_uri, "--namespace",
             self.path, "--from", f"stream:{source}", "--to", f"stream:{target}", "--json-report",
             str(report), "--state-dir", str(self.tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report.read_text()) if report.exists() else None


@pytest.fixture
def keyed(cluster, tmp_path):
    return Keyed(cluster, tmp_path)


def test_the_latest_of_each_key_replaces_the_result_before(spark, keyed, capsys):
    keyed.write("a", (b"x", b"1"), (b"y", b"2"), (None, b"kept"), (b"x", b"3"), (b"y", b""))
    assert keyed.command()[0] == 3  # there is no stream b
    assert keyed.command("--create-stream", "--dry-run")[1]["planned"] == [
        "records of stream:a up to 5"
    ]
    code, report = keyed.command("--create-stream", "--max-bookie-mbps", "50")
    assert (code, report["rows_written"], report["up_to_record"]) == (0, 3, 5)
    first = [(None, b"kept"), (b"x", b"3"), (b"y", b"")]
    assert keyed.read("b") == first
    # Killed before it noted that, and given again: it is there once.
    path = keyed.tmp_path / "jobs" / f"{report['job_id']}.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    code, again = keyed.command("--create-stream", "--resume", report["job_id"])
    assert (code, again["was_there"], again["rows_written"]) == (0, True, 0)
    assert keyed.read("b") == first
    # What is new replaces it, and nothing is known any more of a key that was deleted.
    keyed.write("a", (b"x", b"4"), (None, b"too"))
    assert keyed.command("--retain", "0")[0] == 0
    assert keyed.read("b") == [(None, b"kept"), (b"x", b"4"), (None, b"too")]
    # What others wrote is not replaced.
    keyed.write("others", (b"k", b"v"))
    for words, what in (
        ({"target": "others"}, "is not a result"), ({"target": "a"}, "another stream"),
        ({"source": "missing"}, "missing"),
    ):  # fmt: skip
        capsys.readouterr()
        assert keyed.command(**words)[0] == (3 if what == "missing" else 2)
        assert what in capsys.readouterr().err.splitlines()[-1]


def test_what_deletes_a_key_stays_until_it_is_old_and_then_nothing_of_the_key_does(spark):
    now = datetime.now(UTC)

    def row(seq, key, value, age_s):
        at = None if age_s is None else now - timedelta(seconds=age_s)
        return seq, key, value, [{"key": "h", "value": b"%d" % seq}], at

    rows = [
        row(0, b"old", b"1", 9000), row(1, b"old", b"", 7300),
        row(2, b"young", b"2", 9000), row(3, b"young", b"", 7000),
        row(4, None, b"", 9000), row(5, None, b"", 9000), row(6, None, b"kept", 9000),
        row(7, b"again", b"", 9000), row(8, b"again", b"3", 8000),
        row(9, b"unknown", b"", None), row(10, b"", b"", 9000), row(11, b"whole", b"4", 9000),
        row(12, b"clocks", b"", 7000), row(13, b"clocks", b"", 9000),
    ]  # fmt: skip
    # They come in any order.
    frame = spark.createDataFrame(rows[::-1], f"{job._COLUMNS}, timestamp timestamp")
    left = sorted(job.what_stays(frame, 7200.0).collect(), key=lambda each: each.seq)
    assert [each.seq for each in left] == [3, 4, 5, 6, 8, 9, 11]
    for each in left:
        seq, key, value, (header,), _ = rows[each.seq]
        assert (each.seq, each.key, each.value) == (seq, key, value)
        assert each.headers[0].value == header["value"]


class Job:
    """The job from stream a to stream b, without what Spark does of it."""

    def __init__(self, keyed):
        self.keyed = keyed
        self.options = CompactKeysOptions(source="a", target="b", retain_s=0.0)
        self.connection = Connection(
            metadata_uri=keyed.cluster.metadata_uri, namespace_path=keyed.path
        )

    async def batch(self, namespace, *parts):
        """Have the job's batch committed as the sink does, and nothing else done."""
        due = await job.look(namespace, self.options)
        place = Place(namespace.client, namespace)
        app = Application(place, due.application, Identity("batch", "run"))
        await app.prepare()
        results = []
        for number, payloads in enumerate(parts):
            attempt = app.attempt(due.end, number, 0, DraftOptions(), 1000)
            await attempt.append("b", payloads)
            results.append(await attempt.finish())
        await app.commit(due.end, results, CommitOptions(replaces=True))

    def again(self, spark=None):
        journal = JobJournal.begin(str(self.keyed.tmp_path), "compact-keys", {})
        report = job.run(spark, self.connection, self.options, journal, Limits())
        job.conclude(report)
        return report.summary["was_there"], report.summary["rows_written"]


async def merge(namespace, directory):
    del directory
    place = Place(namespace.client, namespace)
    work = Compaction(place, stream_context(namespace.stream("b")), keep_s=0.0)
    await work.run(await work.rules(target_bytes=1 << 20))


async def truncate(namespace, directory):
    """Truncate a part of the first segment, or another record of what is left."""
    del directory
    stream = namespace.stream("b")
    async with stream.reader(tail=False, on_truncated="skip") as reader:
        records = [record async for record in reader]
    await stream.truncate(records[min(1, len(records) - 1)].position)


async def each_segment(namespace, work):
    stream = namespace.stream("b")
    for each in await stream.segments():
        if each.metadata.truncation is not Truncation.TRUNCATED:
            await work(SegmentInTier(context=stream_context(stream), metadata=each.metadata))


async def tier(namespace, directory):
    async def move(segment):
        await moving.offload(segment, directory)
        assert await moving.delete_copy(segment, delay_s=0.0)

    await each_segment(namespace, move)


async def restore(namespace, directory):
    del directory

    async def move(segment):
        if await segment.nodes.read(segment.number) is not None:
            await moving.restore(segment)

    await each_segment(namespace, move)


HISTORIES = [
    *itertools.permutations((merge, truncate, tier), 1),
    *itertools.permutations((merge, truncate, tier), 2),
    *itertools.permutations((merge, truncate, tier), 3),
    (tier, restore, merge),
    (merge, tier, restore),
    (merge, tier, restore, merge, tier),
]


@pytest.mark.parametrize(
    "history", HISTORIES, ids=lambda history: "-".join(step.__name__ for step in history)
)
def test_a_result_is_known_for_one_whatever_was_done_to_its_segments(keyed, history):
    work = Job(keyed)
    directory = str(keyed.tmp_path / "files")

    async def age(namespace):
        for step in history:
            await step(namespace, directory)

    keyed.write("a", (b"x", b"1"), (b"y", b"2"))
    keyed.run(lambda ns: ns.create_stream("b"))
    keyed.run(lambda ns: work.batch(ns, [b"1", b"2"], [b"3"], [b"4"]))
    keyed.run(age)
    left = keyed.read("b")
    assert [payload for _, payload in left] in ([b"1", b"2", b"3", b"4"], [b"2", b"3", b"4"])
    # The same result again, which costs it no record.
    assert work.again() == (True, 0)
    assert keyed.read("b") == left
    # The next one, and then one without rows.
    keyed.write("a", (b"x", b"5"))
    keyed.run(lambda ns: work.batch(ns, [b"5"], [b"6"], [b"7"]))
    assert work.again() == (True, 0)
    assert [payload for _, payload in keyed.read("b")] == [b"5", b"6", b"7"]
    keyed.run(lambda ns: ns.stream("b").enforce_retention())
    keyed.run(age)
    keyed.write("a", (b"x", b""))
    keyed.run(work.batch)
    assert work.again() == (True, 0)
    assert keyed.read("b") == []


def test_a_result_of_a_source_that_has_only_files_is_made(keyed):
    work = Job(keyed)
    keyed.write("a", (b"x", b"1"))
    keyed.run(lambda ns: ns.create_stream("b"))

    async def away(namespace):
        segment = (await namespace.stream("a").segments())[0].metadata
        moved = SegmentInTier(context=stream_context(namespace.stream("a")), metadata=segment)
        await moving.offload(moved, str(keyed.tmp_path / "files"))
        await moving.delete_copy(moved, delay_s=0.0)

    before = keyed.run(lambda ns: job.look(ns, work.options))
    keyed.run(away)
    assert keyed.run(lambda ns: job.look(ns, work.options)) == before


def test_records_of_others_that_were_merged_with_a_result_are_not_replaced(keyed):
    work = Job(keyed)
    keyed.write("a", (b"x", b"1"))
    keyed.run(lambda ns: ns.create_stream("b"))
    keyed.run(lambda ns: work.batch(ns, [b"1"]))
    keyed.write("b", (b"k", b"theirs"))
    keyed.run(lambda ns: merge(ns, ""))
    with pytest.raises(ConfigError, match="is not a result"):
        keyed.run(lambda ns: job.look(ns, work.options))


def test_a_result_of_another_source_is_not_replaced(keyed):
    work = Job(keyed)
    keyed.write("a", (b"x", b"1"))
    keyed.write("c", (b"k", b"1"))
    keyed.run(lambda ns: ns.create_stream("b"))
    keyed.run(lambda ns: work.batch(ns, [b"1"], [b"2"]))
    for step in (tier, restore, merge):
        with pytest.raises(ConfigError, match="is not a result"):
            keyed.run(lambda ns: job.look(ns, CompactKeysOptions(source="c", target="b")))
        keyed.run(lambda ns, step=step: step(ns, str(keyed.tmp_path / "files")))
    with pytest.raises(ConfigError, match="is not a result"):
        keyed.run(lambda ns: job.look(ns, CompactKeysOptions(source="c", target="b")))


def test_a_result_without_rows_leaves_nothing_of_the_one_before(spark, keyed):
    work = Job(keyed)
    keyed.write("a", (b"x", b"1"), (b"y", b"2"))
    keyed.run(lambda ns: ns.create_stream("b"))
    keyed.run(lambda ns: work.batch(ns, [b"1", b"2"]))
    assert work.again() == (True, 0)
    assert keyed.read("b") == [(None, b"1"), (None, b"2")]
    # Killed between the batch and what it leaves to be done.
    keyed.write("a", (b"x", b""), (b"y", b""))
    keyed.run(work.batch)
    assert keyed.read("b") == [(None, b"1"), (None, b"2")]
    assert work.again() == (True, 0)
    assert keyed.read("b") == []
    keyed.write("a", (b"z", b"3"))
    keyed.run(lambda ns: work.batch(ns, [b"3"]))
    assert work.again() == (True, 0)
    assert keyed.read("b") == [(None, b"3")]
    keyed.write("a", (b"z", b""))

    async def begin():
        namespace = await Namespace.open(f"{keyed.cluster.metadata_uri}#{keyed.path}")
        writer = await namespace.stream("a").writer()
        await writer.append(b"4", key=b"late")  # in no segment that is completed
        return namespace, writer

    run = keyed.cluster._thread.run  # it dies between two steps
    namespace, writer = run(begin())
    try:
        assert work.again(spark) == (False, 0)
    finally:
        run(writer.close())
        run(namespace.close())
    assert keyed.read("b") == []


def test_a_batch_replaces_what_there_was_in_one_step_or_not_at_all(keyed):
    keyed.write("s", (None, b"old"), (None, b"older"))

    async def write(namespace, *, then):
        app = Application(Place(namespace.client, namespace), "app", Identity("q", "r"))
        await app.prepare()
        attempt = app.attempt(0, 0, 0, DraftOptions(), 1000)
        await attempt.append("s", [b"new"])
        result = await attempt.finish()
        nodes = stream_context(namespace.stream("s")).nodes
        seen = []
        multi = type(nodes.store).multi

        async def looking(store, operations):
            seen.append([s.truncation.name for s in await nodes.segments()])
            if not then:
                raise OSError("killed")
            return await multi(store, operations)

        namespace_store(namespace).multi = looking.__get__(namespace_store(namespace))
        await app.commit(0, [result], CommitOptions(replaces=True))
        return seen

    with pytest.raises(OSError, match="killed"):
        keyed.run(lambda ns: write(ns, then=False))
    assert [payload for _, payload in keyed.read("s")] == [b"old", b"older"]
    assert keyed.run(lambda ns: write(ns, then=True))[0] == ["ACTIVE"]
    assert [payload for _, payload in keyed.read("s")] == [b"new"]
