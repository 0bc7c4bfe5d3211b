"""Small segments become large ones in one step; readers and cursors go on at the very record."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.errors import MetadataVersionConflict, NoSuchLedgerInMetadataError
from quorumbook.metadata.store import Delete
from quorumbook.streams import Namespace, Position
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import PositionTruncatedError, WriterBusyError
from quorumbook.streams.transactions import Application, DraftOptions, Identity, Place

TARGET = 1 << 20


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
    return Compaction(Place(ns.client, ns), ns.stream(name).context, keep_s=keep_s)


async def merge(ns: Namespace, name: str, *, keep_s: float = 0.0, **rules):
    work = compaction(ns, name, keep_s=keep_s)
    return await work.run(await work.rules(target_bytes=TARGET, **rules))


async def records(ns: Namespace, name: str):
    async with ns.stream(name).reader(tail=False) as reader:
        return [
            (r.sequence_id, r.txid, r.payload, r.appended_at_ms, r.key, r.headers)
            async for r in reader
        ]


async def numbers(ns: Namespace, name: str) -> list[int]:
    return [s.number for s in await ns.stream(name).context.nodes.segments()]


async def test_merged_segments_hold_the_same_records_and_old_ledgers_go(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 6)
    before = await records(ns, "s")
    ledgers = [s.ledger_id for s in await ns.stream("s").context.nodes.segments()]
    first = await merge(ns, "s", keep_s=3600.0)
    assert [(m.segments, m.number, m.records) for m in first] == [(6, 6, 18)]
    assert await numbers(other, "s") == [6]
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
    assert await numbers(ns, "s") == [3, 4, 5, 6]
    async with ns.stream("s").reader((await ns.stream("s").cursor("c")).position, tail=False) as r:
        assert [record.payload async for record in r] == payloads[9:]


@pytest.mark.parametrize("when", ["while it is copied", "right before the step"])
async def test_a_stream_that_changes_meanwhile_is_left_as_it_is(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    await ns.create_stream("s")
    payloads = await write(ns, "s", 4)
    work = compaction(ns, "s")
    rules = await work.rules(target_bytes=TARGET)
    copy, multi = work._copy, ns.store.multi

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
        monkeypatch.setattr(ns.store, "multi", stepping)
    before = {ledger async for ledger in ns.client.list_ledger_ids()}
    with pytest.raises(MetadataVersionConflict):
        await work.run(rules)
    assert {ledger async for ledger in ns.client.list_ledger_ids()} == before
    assert [row[2] for row in await records(ns, "s")] == payloads[1:]
    monkeypatch.undo()
    # Merged then, it stays truncated where it was.
    assert [m.segments for m in await merge(ns, "s")] == [4]
    assert [row[2] for row in await records(ns, "s")] == payloads[1:]


async def test_a_stream_that_somebody_writes_is_not_changed_under_his_hands(ns: Namespace) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 2)
    async with ns.stream("s").writer():
        with pytest.raises(WriterBusyError):
            await merge(ns, "s")
    assert await numbers(ns, "s") == [1, 2]


async def test_records_in_chunks_and_numbered_ones_stay_where_they_are(ns: Namespace) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 2)
    async with ns.stream("s").writer() as writer:
        await writer.append(bytes(2_000_000))
    await write(ns, "s", 3, first=2)
    before = await records(ns, "s")
    assert [m.number for m in await merge(ns, "s")] == [2]
    assert await numbers(ns, "s") == [2, 3, 4, 5, 6]
    assert await records(ns, "s") == before


async def test_two_at_once_leave_one_result_and_nothing_behind(ns: Namespace, other) -> None:
    await ns.create_stream("s")
    await write(ns, "s", 5)
    before = await records(ns, "s")
    await asyncio.gather(merge(ns, "s"), merge(other, "s"), return_exceptions=True)
    assert await numbers(ns, "s") == [5]
    assert await records(ns, "s") == before
    ids = {ledger async for ledger in ns.client.list_ledger_ids()}
    assert ids == {s.ledger_id for s in await ns.stream("s").context.nodes.segments()}
