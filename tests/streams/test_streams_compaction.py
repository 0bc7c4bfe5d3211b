"""Small segments become large ones in one step; readers and cursors go on at the very record."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import pytest

from quorumbook.errors import MetadataVersionConflict, NoSuchLedgerInMetadataError
from quorumbook.metadata.store import Delete, MetadataStore
from quorumbook.streams import Namespace, Position
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import PositionTruncatedError, WriterBusyError
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.streams.tier import moving
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.transactions import Application, DraftOptions, Identity, Place
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.testing import LocalCluster

TARGET = 1 << 20
#: Small is what has less than 500 bytes.
SMALL_TARGET = 4000


async def write(ns: Namespace, name: str, batches: int, *, first: int = 0) -> list[bytes]:
    """Write batches as the sink does, each a segment; return all payloads."""
    app = Application(Place(ns.client, ns), f"app-{name}", Identity("q", "r"))
    await app.prepare()
    written = []
    for batch in range(first, first + batches):
        rows = [b"%d-%d" % (batch, n) for n in range(3)]
        attempt = app.attempt(batch, 0, 0, DraftOptions(entry_bytes=8), 1000 + batch)
        await attempt.append(name, rows)
        await app.commit(batch, [await attempt.finish()])
        written += rows
    return written


def compaction(ns: Namespace, name: str, *, keep_s: float = 0.0) -> Compaction:
    return Compaction(Place(ns.client, ns), stream_context(ns.stream(name)), keep_s=keep_s)


async def merge(ns: Namespace, name: str, *, keep_s: float = 0.0, **rules):
    work = compaction(ns, name, keep_s=keep_s)
    return await work.run(await work.rules(**{"target_bytes": TARGET, **rules}))


async def records(ns: Namespace, name: str):
    async with ns.stream(name).reader(tail=False) as reader:
        return [
            (r.sequence_id, r.txid, r.payload, r.appended_at_ms, r.key, r.headers)
            async for r in reader
        ]


async def numbers_of(ns: Namespace, name: str) -> list[int]:
    return [s.number for s in await stream_context(ns.stream(name)).nodes.segments()]


async def test_merged_segments_hold_the_same_records_and_old_ledgers_go(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 6)
    before = await records(ns, "s")
    ledgers = [s.ledger_id for s in await stream_context(ns.stream("s")).nodes.segments()]
    first = await merge(ns, "s", keep_s=3600.0)
    assert [(m.segments, m.number, m.records) for m in first] == [(6, 6, 18)]
    assert await numbers_of(other, "s") == [6]
    assert await records(other, "s") == before
    assert [row[2] for row in before] == payloads
    # Readers that are under way may still be at the old ones; then they go.
    for ledger_id in ledgers:
        await ns.client.ledger_metadata(ledger_id)
    await write(ns, "s", 4, first=6)
    grown = await records(ns, "s")
    assert [m.segments for m in await merge(ns, "s")] == [5]
    assert await records(other, "s") == grown
    with pytest.raises(NoSuchLedgerInMetadataError):
        await ns.client.ledger_metadata(first[0].ledger_id)
    # A writer goes on behind it.
    async with other.stream("s").writer() as writer:
        assert (await writer.append(b"after")).sequence_id == 30
    assert (await records(ns, "s"))[-1][2] == b"after"


async def test_what_writers_wrote_is_merged_with_keys_headers_and_times(ns: Namespace) -> None:
    await ns.create_stream("s")
    for number in range(4):
        async with ns.stream("s").writer() as writer:
            await writer.append(b"%d" % number, key=b"k", headers={"h": b"v"})
    before = await records(ns, "s")
    assert [m.segments for m in await merge(ns, "s")] == [4]
    assert await records(ns, "s") == before
    assert before[0][4:] == (b"k", {"h": b"v"}) or before[0][4] == b"k"


async def test_a_reader_under_way_sees_every_record_once(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 4)
    await merge(ns, "s")
    payloads += await write(ns, "s", 5, first=4)
    for at in range(0, len(payloads) + 1, 4):
        async with other.stream("s").reader(tail=False, read_ahead_bytes=1) as reader:
            found = [r.payload for r in await reader.read(at)] if at else []
            await merge(ns, "s")
            found += [record.payload async for record in reader]
        assert found == payloads, at
        payloads += await write(ns, "s", 3, first=9 + at)


async def test_an_old_position_never_finds_a_later_record(ns: Namespace) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 3)
    async with ns.stream("s").reader(tail=False) as reader:
        old = [(r.position, r.payload) async for r in reader]
    await merge(ns, "s")
    await write(ns, "s", 2, first=3)
    for position, payload in old:
        try:
            async with ns.stream("s").reader(position, tail=False) as reader:
                found = [record.payload async for record in reader]
        except PositionTruncatedError:
            continue  # it says so
        assert payload in found
    assert payloads[0] == old[0][1]


async def test_nothing_is_merged_that_a_cursor_has_not_passed(ns: Namespace) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 6)
    cursor = await ns.stream("s").cursor("c")
    await cursor.reset(Position(4, 0, 0))
    assert [(m.segments, m.number) for m in await merge(ns, "s")] == [(3, 3)]
    assert await numbers_of(ns, "s") == [3, 4, 5, 6]
    async with ns.stream("s").reader((await ns.stream("s").cursor("c")).position, tail=False) as r:
        assert [record.payload async for record in r] == payloads[9:]


async def test_a_cursor_that_stands_still_holds_nothing_up_and_goes_on_at_the_very_record(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 6)
    async with ns.stream("s").reader(tail=False) as reader:
        records = await reader.read(len(payloads))
    for place in range(1, 19):
        await (await ns.stream("s").cursor(f"c{place}")).commit(records[place - 1])
    work = compaction(ns, "s")
    assert await work.plan(await work.rules(target_bytes=TARGET)) is None  # they moved right now
    rules = await work.rules(target_bytes=TARGET, idle_cursor_s=0)
    await work.run(rules)
    assert await numbers_of(ns, "s") == [6]
    payloads += await write(ns, "s", 2, first=6)
    for place in range(1, 19):
        cursor = await other.stream("s").cursor(f"c{place}")
        assert (await cursor.lag()).records == 24 - place
        async with other.stream("s").reader(cursor, tail=False) as reader:
            found = [record async for record in reader]
        assert [record.payload for record in found] == payloads[place:], place
        async with other.stream("s").reader(cursor=cursor.name, tail=False) as reader:
            assert [record.payload async for record in reader] == payloads[place:], place
        await cursor.refresh()
        await cursor.reset(found[0].position)
        await cursor.commit(found[0])
        async with other.stream("s").reader(cursor, tail=False) as reader:
            assert [record.payload async for record in reader] == payloads[place + 1 :], place


async def test_a_cursor_that_only_knows_a_position_holds_merging_up_for_ever(ns: Namespace) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 6)
    cursor = await ns.stream("s").cursor("c")
    await cursor.reset(Position(4, 0, 0))
    path = stream_context(ns.stream("s")).nodes.paths.subscriber("c")
    await namespace_store(ns).set(path, Position(3, 0, 0).to_text().encode())  # as the peer does
    work = compaction(ns, "s")
    assert (await work.rules(target_bytes=TARGET, idle_cursor_s=0)).end == 3


@pytest.mark.parametrize("when", ["while it is copied", "right before the step"])
async def test_a_stream_that_changes_meanwhile_is_left_as_it_is(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 4)
    work = compaction(ns, "s")
    rules = await work.rules(target_bytes=TARGET)
    copy, multi = work._copy, namespace_store(ns).multi  # somebody else comes between two steps

    async def copying(*arguments):
        found = await copy(*arguments)
        await other.stream("s").truncate(Position(1, 1, 0))
        return found

    async def stepping(operations):
        if isinstance(operations[0], Delete):
            await other.stream("s").truncate(Position(1, 1, 0))
        return await multi(operations)

    if when == "while it is copied":
        monkeypatch.setattr(work, "_copy", copying)
    else:
        monkeypatch.setattr(namespace_store(ns), "multi", stepping)
    before = {ledger async for ledger in ns.client.list_ledger_ids()}
    with pytest.raises(MetadataVersionConflict):
        await work.run(rules)
    assert {ledger async for ledger in ns.client.list_ledger_ids()} == before
    assert [row[2] for row in await records(ns, "s")] == payloads[1:]
    monkeypatch.undo()
    # Merged then, it stays truncated where it was.
    assert [m.segments for m in await merge(ns, "s")] == [4]
    assert [row[2] for row in await records(ns, "s")] == payloads[1:]


@pytest.fixture
async def standing(standing_cluster: LocalCluster) -> AsyncIterator[Namespace]:
    """A namespace on a cluster that other tests use as well."""
    address = f"{standing_cluster.metadata_uri}#/messaging/{uuid4().hex}"
    async with Namespace.open(address, bind=True) as made:
        yield made


@pytest.fixture
async def other_standing(
    standing_cluster: LocalCluster, standing: Namespace
) -> AsyncIterator[Namespace]:
    """The same as another process sees it."""
    address = f"{standing_cluster.metadata_uri}#{standing.path}"
    async with Namespace.open(address) as made:
        yield made


async def with_moved_segments(ns: Namespace, name: str) -> list[bytes]:
    """Two segments that are too large to be merged, and two small ones; return all payloads."""
    await ns.create_stream(name)
    large = [[b"%d-%d" % (batch, n) * 50 for n in range(20)] for batch in range(2)]
    app = Application(Place(ns.client, ns), f"app-{name}", Identity("q", "r"))
    await app.prepare()
    for batch, rows in enumerate(large):
        attempt = app.attempt(batch, 0, 0, DraftOptions(entry_bytes=500), 1000 + batch)
        await attempt.append(name, rows)
        await app.commit(batch, [await attempt.finish()])
    return [*large[0], *large[1], *(await write(ns, name, 2, first=2))]


async def cut(other: Namespace, name: str, number: int, directory: object) -> None:
    nodes = stream_context(other.stream(name)).nodes
    found = await nodes.segment(number, is_in_progress=False)
    assert found is not None
    assert await nodes.replace_segment(found[0], found[0].truncated(Position(number, 1, 0)))


async def give_files(other: Namespace, name: str, number: int, directory: object) -> None:
    pytest.importorskip("pyarrow.parquet", reason="pip install 'quorumbook[spark]'")
    context = stream_context(other.stream(name))
    (segment,) = [s for s in await context.nodes.segments() if s.number == number]
    await moving.offload(moving.SegmentInTier(context=context, metadata=segment), str(directory))


class Meanwhile:
    """Has something happen once while a stream's segments are merged."""

    def __init__(self, work: Compaction, happen: Callable[[], Awaitable[None]]) -> None:
        self._work, self._happen = work, happen

    def arrange(self, patch: pytest.MonkeyPatch, store: MetadataStore, when: str) -> None:
        # Somebody else comes between two steps.
        copy, numbers, multi = self._work._copy, TierNodes.numbers, store.multi

        async def copying(*arguments):
            found = await copy(*arguments)
            await self._happen()
            return found

        async def looking(nodes):
            found = await numbers(nodes)
            await self._happen()
            return found

        async def stepping(operations):
            if isinstance(operations[0], Delete):
                await self._happen()
            return await multi(operations)

        async def planned(_, plan=self._work.plan):
            found = await plan(_)
            patch.setattr(TierNodes, "numbers", looking)
            return found

        if when == "as it is looked at":
            patch.setattr(self._work, "plan", planned)
        elif when == "while it is copied":
            patch.setattr(self._work, "_copy", copying)
        else:
            patch.setattr(store, "multi", stepping)


@pytest.mark.parametrize("change", [cut, give_files])
async def test_where_a_segment_changes_meanwhile_none_moves_and_nothing_is_left_behind(
    standing: Namespace, other_standing: Namespace, monkeypatch, tmp_path, change
) -> None:
    ns, other = standing, other_standing
    whens = ("while it is copied", "as it is looked at", "right before the step")
    # One that only moves, and one that is merged.
    for number, when in itertools.product((1, 3), whens):
        name = f"{change.__name__}-{whens.index(when)}-{number}"
        payloads = await with_moved_segments(ns, name)
        nodes = stream_context(ns.stream(name)).nodes
        work = compaction(ns, name)
        rules = await work.rules(target_bytes=SMALL_TARGET)
        plan = await work.plan(rules)
        assert plan is not None
        assert [[s.number for s in part] for part in (plan.before, plan.run)] == [[1, 2], [3, 4]]
        changed = []

        async def happen(name=name, number=number, nodes=nodes, changed=changed):
            await change(other, name, number, tmp_path)
            changed.append(await nodes.segments())

        before = {ledger async for ledger in ns.client.list_ledger_ids()}
        with monkeypatch.context() as patch:
            Meanwhile(work, happen).arrange(patch, namespace_store(ns), when)
            with pytest.raises(MetadataVersionConflict):
                await work.run(rules)
        assert [await nodes.segments()] == changed, name  # it was changed, and nothing else was
        assert {ledger async for ledger in ns.client.list_ledger_ids()} == before
        own = TransactionNodes(namespace_store(ns), Place(ns.client, ns).path, "compact-segments")
        assert (await own.attempts(), await own.garbage()) == ([], [])
        if change is give_files:
            # Readers find it by them, so that its ledger may go.
            context = stream_context(ns.stream(name))
            (found,) = [each for each in changed[0] if each.number == number]
            segment = moving.SegmentInTier(context=context, metadata=found)
            assert await moving.delete_copy(segment, delay_s=0)
            assert [row[2] for row in await records(ns, name)] == payloads


async def test_a_stream_that_somebody_writes_is_not_changed_under_his_hands(ns: Namespace) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 2)
    async with ns.stream("s").writer():
        with pytest.raises(WriterBusyError):
            await merge(ns, "s")
    assert await numbers_of(ns, "s") == [1, 2]


async def test_records_in_chunks_and_numbered_ones_stay_where_they_are(ns: Namespace) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 2)
    async with ns.stream("s").writer() as writer:
        await writer.append(bytes(2_000_000))
    await write(ns, "s", 3, first=2)
    before = await records(ns, "s")
    assert [m.number for m in await merge(ns, "s")] == [2]
    assert await numbers_of(ns, "s") == [2, 3, 4, 5, 6]
    assert await records(ns, "s") == before


async def test_two_at_once_leave_one_result_and_nothing_behind(ns: Namespace, other) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 5)
    before = await records(ns, "s")
    await asyncio.gather(merge(ns, "s"), merge(other, "s"), return_exceptions=True)
    assert await numbers_of(ns, "s") == [5]
    assert await records(ns, "s") == before
    ids = {ledger async for ledger in ns.client.list_ledger_ids()}
    assert ids == {s.ledger_id for s in await stream_context(ns.stream("s")).nodes.segments()}
