"""``quorumbook spark xcluster``: copies hold each record once, and are found out if they don't."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest
from inline import do_units, follow
from spark_helpers import let_go

from quorumbook.cli.main import main
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.batches import Due
from quorumbook.spark.jobs.data import xcluster_verify
from quorumbook.spark.jobs.data.xcluster import CrossCluster, _Copier, _Planned
from quorumbook.spark.jobs.frame import Report
from quorumbook.spark.pool import connected
from quorumbook.streams import Namespace, Position, SequenceId
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import DataLossError, TransactionLostError
from quorumbook.streams.format.control import (
    Chunk,
    EntryNote,
    encode_chunk_field,
    encode_time_note,
)
from quorumbook.streams.format.envelope import decode_entry, encode_entry
from quorumbook.streams.format.records import CONTROL, decode_records, encode_record
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import (
    Application,
    DraftOptions,
    Identity,
    Place,
    collect_orphans,
)
from quorumbook.streams.transactions.grafting import Draft, as_copied
from quorumbook.streams.writing.takeover import StreamTail
from quorumbook.testing import LocalCluster


@pytest.fixture(scope="module")
def elsewhere():
    """Another cluster."""
    with LocalCluster(bookies=3) as running:
        yield running
        let_go(running)


class Pair:
    """A namespace of the same name on both sides, and the job without Spark around it."""

    def __init__(self, here, there, tmp_path):
        self.sides = {"here": here, "there": there}
        self.tmp_path = tmp_path
        self.path = f"/copied-{uuid4().hex[:8]}"
        self.connections = {}
        for name, cluster in self.sides.items():
            asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{self.path}"))
            self.connections[name] = Connection(
                metadata_uri=cluster.metadata_uri, namespace_path=self.path
            )

    def run(self, side, work):
        async def run():
            address = f"{self.sides[side].metadata_uri}#{self.path}"
            async with Namespace.open(address) as namespace:
                return await work(namespace)

        return asyncio.run(run())

    def write(self, name, payloads, side="here", **extra):
        async def work(namespace):
            await namespace.create_stream(name, exist_ok=True)
            async with namespace.stream(name).writer() as writer:
                for payload in payloads:
                    await writer.append(payload, **extra)

        self.run(side, work)

    def records(self, name, side):
        async def work(namespace):
            async with namespace.stream(name).reader(tail=False) as reader:
                return [
                    (r.sequence_id, r.txid, r.payload, r.key, r.headers, r.event_time_ms,
                     r.appended_at_ms)
                    async for r in reader
                ]  # fmt: skip

        return self.run(side, work)

    def facts(self, name, side):
        """Return what segments say of their records."""

        async def work(namespace):
            return [
                (s.number, s.first_txid, s.last_txid, s.record_count, s.start_sequence_id,
                 s.last_entry, s.last_slot)
                for s in await stream_context(namespace.stream(name)).nodes.segments()
            ]  # fmt: skip

        return self.run(side, work)

    def job(self, *names, job_id="one", max_bytes=1 << 30):
        here, there = (connected(self.connections[side]) for side in ("here", "there"))
        return CrossCluster(here, there, names, job_id=job_id, max_bytes=max_bytes)

    def units(self, plan):
        """Do a plan's units as a task does."""
        results, errors = do_units(self.connections["here"], plan)
        assert errors == {}
        return results

    def copy(self, *names, **options):
        return follow(self.connections["here"], self.job(*names, **options))

    def verify(self, *names):
        here, there = (connected(self.connections[side]) for side in ("here", "there"))
        plan = here.run(lambda: xcluster_verify.plan_verify(here, there, names))
        report = Report("xcluster", "", results=self.units(plan))
        xcluster_verify.conclude(report)
        return report


@pytest.fixture
def pair(cluster, elsewhere, tmp_path):
    return Pair(cluster, elsewhere, tmp_path)


class Killed(BaseException):
    """The process is no more."""


def test_copies_have_everything_and_go_on_at_the_very_record(pair):
    pair.write("a", [b"%d" % n for n in range(20)], key=b"k", headers={"h": b"v"},
                event_time_ms=5)  # fmt: skip
    pair.write("b/c", [b"other"])
    job = pair.copy()
    assert (job.records, job.batches) == (21, 1)
    for name in "a", "b/c":
        assert pair.records(name, "there") == pair.records(name, "here")
        assert pair.facts(name, "there") == pair.facts(name, "here")
    assert pair.job().plan() is None
    # A record in chunks, over several entries, and what follows it.
    pair.write("a", [bytes(2_500_000), b"after"])
    pair.copy(job_id="two")
    assert pair.records("a", "there") == pair.records("a", "here")
    assert pair.facts("a", "there") == pair.facts("a", "here")
    assert pair.verify().findings == 0


def test_copies_in_chunks_are_where_their_chunks_say(pair, monkeypatch):
    monkeypatch.setattr("quorumbook.streams.writing.pending.MAX_PAYLOAD_SIZE_BYTES", 1000)
    monkeypatch.setattr("quorumbook.streams.writing.pending.CHUNK_SIZE_BYTES", 400)
    monkeypatch.setattr("quorumbook.spark.jobs.batches._SPLIT_BYTES", 700)
    large = [bytes([n]) * 1300 for n in range(4)]
    pair.write("a", [b"%d" % n for n in range(30)])
    pair.write("a", [b"before", large[0], b"between", large[1], large[2], b"behind"])

    def places(side):
        """Return where readers say that records are, and what they find there."""

        async def work(namespace):
            stream = namespace.stream("a")
            async with stream.reader(tail=False) as reader:
                told = [(r.position, r.sequence_id, r.payload) async for r in reader]
            for position, sequence_id, payload in told[-7:]:
                async with stream.reader(position, tail=False) as reader:
                    (found,) = await reader.read(1)
                assert (found.position, found.sequence_id) == (position, sequence_id)
                assert found.payload == payload
            return [position for position, *_ in told]

        return pair.run(side, work)

    assert pair.copy().segments > 4  # so numbers and entries are others than those of the source
    assert pair.records("a", "there") == pair.records("a", "here")
    assert places("there") != places("here")
    pair.write("a", [large[3], b"last"])
    pair.copy(job_id="two")
    assert pair.records("a", "there") == pair.records("a", "here")
    places("there")

    async def merge(namespace):
        for number in range(4):
            async with namespace.stream("a").writer() as writer:
                await writer.append(b"%d" % number)
        place, context = Place(namespace.client, namespace), stream_context(namespace.stream("a"))
        work = Compaction(place, context, keep_s=0.0)
        await work.run(await work.rules(target_bytes=1 << 20))

    # Small segments are merged, but none with chunks is given another number for it.
    pair.run("there", merge)
    assert [row[2] for row in pair.records("a", "there")][36:38] == [large[3], b"last"]
    places("there")


def test_a_copy_in_chunks_is_no_other_segment_than_its_chunks_say():
    tail = StreamTail(
        state=SimpleNamespace(), next_number=7, next_sequence_id=40, last_txid=-1,
        completed_at_ms=1, epoch=1, segment_count=6,
    )  # fmt: skip
    draft = Draft(
        stream="a", ledger_id=1, record_count=3, size_bytes=9, last_entry=0, number=7,
        first_sequence_id=40,
    )  # fmt: skip
    behind = replace(draft, number=8, first_sequence_id=43)
    assert as_copied("a", [draft, behind], tail) == tail
    assert as_copied("a", [draft, replace(behind, number=None)], tail) == tail
    for wrong in (
        [draft, replace(behind, number=7)], [draft, replace(behind, number=9)],
        [replace(draft, number=6)], [draft, replace(behind, first_sequence_id=44)],
    ):  # fmt: skip
        with pytest.raises(TransactionLostError, match="goes on with segment"):
            as_copied("a", wrong, tail)


def test_chunks_behind_a_part_without_records_are_left_for_the_next_batch():
    taken = []
    # What it is told to run is the commit of one stream's parts.
    target = SimpleNamespace(instance_id="b", run=lambda work: taken.append(work.args[1:]))
    source = SimpleNamespace(instance_id="a", connection=None)
    job = CrossCluster(source, target, ["s"], job_id="j", max_bytes=1)
    splits = [SimpleNamespace(segment=1, first_entry=n, last_entry=n) for n in range(3)]
    planned = _Planned(Due("s", 1, 10, splits), "app", "query", False, 7)
    job._planned = [planned]  # one step of the job, with another's plan
    parts = [
        {"rows": 5, "first": 10, "behind": 15}, {"rows": 0, "first": 15, "behind": 15},
        {"rows": 2, "first": 15, "behind": 17},
    ]  # fmt: skip
    for has_chunks in (False, True):
        parts[2] |= {"has_chunks": has_chunks}
        # One step of the job, with another's plan.
        assert job.commit({job._key(planned, n): part for n, part in enumerate(parts)})
    # Chunks tell numbers of segments, of which the part without records gets none.
    assert taken == [(parts, 17), (parts[:1], 15)]


def chunk_at(first):
    """An entry with one chunk of a record that begins there."""
    note = encode_time_note(5) + encode_chunk_field(Chunk(1, 3, first))
    rows = [(CONTROL, 0, 1, note), (0, 1, 1, b"payload")]
    return encode_entry(b"".join(encode_record(*row) for row in rows))


def test_chunks_tell_where_in_the_copy_their_record_begins():
    split = SimpleNamespace(segment=7, first_entry=5, segment_sequence_id=100)
    copier = _Copier(split, [[7, 0, 4, 20], [7, 5, 9, 21], [8, 0, 3, 22]])
    for given, told in (
        (Position(7, 4, 1), Position(20, 4, 1)),
        (Position(7, 5, 0), Position(21, 0, 0)),
        (Position(7, 9, 2), Position(21, 4, 2)),
        (Position(8, 3, 0), Position(22, 3, 0)),
        (Position(6, 2, 0), Position(6, 2, 0)),  # what it begins with is not in this batch
    ):
        entry = copier.copied(chunk_at(given))
        (note, _) = decode_records(decode_entry(entry))
        assert EntryNote.decode(note.payload) == EntryNote(5, chunk=Chunk(1, 3, told))
    draft = copier.draft("a", 1, 9)
    assert (draft.number, draft.first_sequence_id) == (21, 100)


def test_each_record_is_copied_once_whatever_was_killed(pair, monkeypatch):
    monkeypatch.setattr("quorumbook.spark.jobs.batches._SPLIT_BYTES", 400)
    pair.write("a", [b"%03d" % n * 20 for n in range(60)])
    # Killed when the ledgers were written, and before the step.
    pair.units(pair.job(max_bytes=1000).plan())
    # Killed after the step, and before the job noted it.
    job = pair.job(job_id="two", max_bytes=1000)
    results = pair.units(job.plan())
    commit = Application.commit

    async def killed(*arguments):
        await commit(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Application, "commit", killed)
        with contextlib.suppress(Killed):
            job.commit(results)
    copied = pair.records("a", "there")
    assert 0 < len(copied) < 60
    # Two at once: one of them is told so.
    one, two = pair.job(job_id="three"), pair.job(job_id="four")
    plans = one.plan(), two.plan()
    done = [pair.units(plan) for plan in plans]
    assert two.commit(done[1])
    with pytest.raises(TransactionLostError):
        one.commit(done[0])
    pair.copy(job_id="five")
    assert pair.records("a", "there") == pair.records("a", "here")
    segments = pair.run("there", lambda ns: stream_context(ns.stream("a")).nodes.segments())
    named = {segment.ledger_id for segment in segments}

    async def orphans(namespace):
        await collect_orphans(Place(namespace.client, namespace, attempt_ttl_s=0.0))
        return {
            ledger.ledger_id
            async for ledger in namespace.client.list_ledgers(
                custom_metadata={"namespace": namespace.path.encode()}
            )
        }

    assert pair.run("there", orphans) == named


def test_how_far_copies_are_is_asked_once_for_a_batch_and_of_all_together(pair, monkeypatch):
    names = [f"s{number}" for number in range(8)]
    for name in names:
        pair.write(name, [b"first"])
    pair.copy()
    for name in names:
        pair.write(name, [b"second"])
    asked, together, head = [], asyncio.Barrier(len(names)), Application.head

    async def counted(app):
        asked.append(app.name)
        async with asyncio.timeout(60):
            await together.wait()
        return await head(app)

    monkeypatch.setattr(Application, "head", counted)
    job = pair.job(job_id="two")
    plan = job.plan()
    assert len(plan.units) == len(asked) == len({*asked}) == len(names)
    assert job.commit(pair.units(plan))
    for name in names:
        assert pair.records(name, "there") == pair.records(name, "here")


def test_a_stream_is_copied_while_somebody_writes_it(pair):
    async def write(namespace):
        await namespace.create_stream("a")
        async with namespace.stream("a").writer() as writer:
            for number in range(5):
                await writer.append(b"%d" % number)
                await asyncio.to_thread(pair.copy, job_id=f"copy {number}")
        # A writer that is fenced out goes on in another segment.
        assert len(await namespace.stream("a").segments()) == 1

    pair.run("here", write)
    pair.copy()
    assert [row[2] for row in pair.records("a", "there")] == [b"%d" % n for n in range(5)]
    assert pair.records("a", "there") == pair.records("a", "here")


def test_what_is_being_copied_is_nobodys_orphan(pair):
    pair.write("a", [b"1"])
    pair.copy()
    pair.write("a", [b"2"])
    job = pair.job(job_id="two")
    results = pair.units(job.plan())
    assert pair.run("there", lambda ns: collect_orphans(Place(ns.client, ns))) == []
    assert job.commit(results)
    assert pair.records("a", "there") == pair.records("a", "here")


@pytest.mark.parametrize(
    "name", ["txid", "payload", "key", "headers", "event_time_ms", "appended_at_ms"]
)
def test_verify_compares_all_that_a_record_has(name):
    values = {
        "position": Position(1, 0, 0), "sequence_id": SequenceId(7), "txid": 3, "payload": b"p",
        "key": b"k", "headers": {"h": b"v"}, "event_time_ms": 5, "appended_at_ms": 6,
    }  # fmt: skip
    found = xcluster_verify._Differing("a")  # one step of the job, with another's plan
    found.compare(SimpleNamespace(**values), SimpleNamespace(**values | {"position": None}))
    assert found.as_values() == {"findings": 0, "rows": []}
    found.compare(SimpleNamespace(**values), SimpleNamespace(**values | {name: None}))
    found.compare(SimpleNamespace(**values), SimpleNamespace(**values | {"sequence_id": 8}))
    found.compare(SimpleNamespace(**values), None)
    assert [row["what"] for row in found.as_values()["rows"]] == [
        f"its {name} is another one", "record 8 stands in its place", "it is not in the copy",
    ]  # fmt: skip
    for _ in range(30):
        found.compare(SimpleNamespace(**values), None)
    assert (found.as_values()["findings"], len(found.as_values()["rows"])) == (33, 20)


def test_verify_finds_what_is_missing_differs_or_is_too_much(pair):
    pair.write("a", [b"%d" % n for n in range(10)])
    pair.copy()
    pair.write("a", [b"not copied yet"])
    report = pair.verify()
    assert (report.findings, report.summary["lag_records"]) == (0, {"a": 1})
    # Somebody writes into the copy: what comes next is refused, and it is found.
    pair.write("a", [b"foreign"], side="there")
    with pytest.raises(TransactionLostError, match="somebody else wrote it"):
        pair.copy(job_id="two")
    report = pair.verify("a")
    assert report.findings == 1
    assert "ends before record 11" in report.summary["rows"][0]["what"]
    # Other records under the same sequence ids.
    pair.write("b", [b"1", b"2", b"3"])
    pair.copy("b", job_id="three")

    async def forge(namespace):
        await namespace.delete_stream("b")

    pair.run("here", forge)
    pair.write("b", [b"1", b"two", b"3"])
    with pytest.raises(DataLossError, match="made again"):
        pair.job("b").plan()
    rows = pair.verify("b").summary["rows"]
    assert {(row["seq"], row["what"]) for row in rows} >= {(1, "its payload is another one")}


def test_a_copy_that_was_deleted_is_made_anew_and_what_is_gone_is_an_error(pair):
    pair.write("a", [b"%d" % n for n in range(10)])
    pair.copy()
    pair.run("there", lambda ns: ns.delete_stream("a"))
    pair.copy(job_id="two")
    assert pair.records("a", "there") == pair.records("a", "here")
    pair.write("a", [b"lost", b"left"])
    pair.run("here", lambda ns: ns.stream("a").truncate(SequenceId(11)))
    with pytest.raises(DataLossError, match="delete the copy"):
        pair.job().plan()
    pair.run("there", lambda ns: ns.delete_stream("a"))
    pair.copy(job_id="three")
    assert [row[:3:2] for row in pair.records("a", "there")][-1] == (11, b"left")
    # A stream that a sink writes is a copy's source as well.

    async def sink(namespace):
        await namespace.create_stream("s")
        app = Application(Place(namespace.client, namespace), "app", Identity("q", "r"))
        await app.prepare()
        for batch in range(3):
            attempt = app.attempt(batch, 0, 0, DraftOptions(), 1000 + batch)
            await attempt.append("s", [b"%d" % batch])
            await app.commit(batch, [await attempt.finish()])

    pair.run("here", sink)
    pair.copy("s", job_id="four")
    assert pair.records("s", "there") == pair.records("s", "here")


def test_the_command_copies_verifies_and_says_what_is_wrong(spark, pair, tmp_path, capsys):
    pair.write("a", [b"%d" % n for n in range(30)])
    report_path = tmp_path / "report.json"

    def run(*words):
        report_path.unlink(missing_ok=True)
        code = main(
            ["spark", "xcluster", "--metadata", pair.sides["here"].metadata_uri, "--namespace",
             pair.path, "--from", "stream:a", "--to-metadata", pair.sides["there"].metadata_uri,
             "--json-report", str(report_path), "--state-dir", str(tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report_path.read_text()) if report_path.exists() else None

    assert run("--dry-run")[1]["planned"] == ["a from record 0 on"]
    code, report = run("--max-bookie-mbps", "50")
    assert (code, report["records_copied"], report["segments_made"]) == (0, 30, 1)
    code, again = run("--resume", report["job_id"])
    assert (code, again["records_copied"]) == (0, 0)
    code, report = run("--verify")
    assert (code, report["records_compared"], report["lag_records"]) == (0, 30, {"a": 0})
    pair.write("a", [b"foreign"], side="there")
    assert run("--verify")[0] == 6
    for words, what in (
        (["--to-metadata", pair.sides["here"].metadata_uri], "give another one"),
        (["--from", "ledger:1"], "--from"),
        (["--verify", "--follow"], "one of them"),
        (["--from", "stream:missing"], "missing"),
    ):
        capsys.readouterr()
        assert run(*words)[0] == (3 if what == "missing" else 2)
        assert what in capsys.readouterr().err.splitlines()[-1]
