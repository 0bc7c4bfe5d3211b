"""Tables of a stream's latest values."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.errors import LedgerClosedError, LocalProtocolError
from quorumbook.streams import Change, Namespace, Record, StreamPolicy, TableView
from quorumbook.streams.errors import (
    ApplyError,
    PositionTruncatedError,
    StreamError,
    StreamSealedError,
)

PATIENCE_S = 60.0


def by_colon(record: Record) -> tuple[str, int | None] | None:
    """Key and number of ``key:number``; without a number the key is deleted."""
    key, colon, value = record.payload.decode().partition(":")
    return (key, int(value) if value else None) if colon else None


async def test_a_table_has_what_is_there_and_follows(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    async with ns.stream("s").writer() as writer:
        for payload in b"a:1", b"b:2", b"about nothing", b"a:3", b"c:4", b"b:":
            await writer.append(payload)
        await writer.flush()
        async with TableView(other.stream("s"), by_colon) as table:
            assert dict(table) == {"a": 3, "c": 4}
            assert ("b" in table, table.get("b"), len(table)) == (False, None, 2)
            where = await writer.append(b"b:5")
            assert where.position is not None
            async with asyncio.timeout(PATIENCE_S):
                await table.wait_for(where.position)
            assert table["b"] == 5
            assert table.position == where.position.next
            await writer.append_batch([b"c:", b"d:6"])
            await writer.flush()
            await table.refresh()
            assert dict(table) == {"a": 3, "b": 5, "d": 6}
    with pytest.raises(LedgerClosedError):
        len(table)


async def test_without_a_key_function_records_have_their_own_key(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        await writer.append(b"1", key=b"a")
        await writer.append(b"2", key=b"b")
        await writer.append(b"no key")
        await writer.append(b"", key=b"a")
        await writer.append(b"3", key=b"c")
        await writer.flush()
        async with TableView(other.stream("s")) as table:
            assert dict(table) == {b"b": b"2", b"c": b"3"}


async def test_callbacks_hear_every_record_and_changes_only_the_latest(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer, asyncio.timeout(PATIENCE_S):
        await writer.append(b"a:1")
        await writer.flush()
        async with TableView(stream, by_colon) as table:
            heard: list[tuple[str, int | None]] = []
            remove = table.on_change(lambda key, value: heard.append((key, value)))
            table.on_change(lambda key, value: 1 / (value or 0))  # its failure is its own
            changes = table.changes(replay=True)
            assert await anext(changes) == Change("a", 1)
            payloads = [b"b:1", b"a:2", b"b:2", b"c:1", b"c:", b"b:3", b"a:"]
            where = [await writer.append(payload) for payload in payloads]
            assert where[-1].position is not None
            await table.wait_for(where[-1].position)
            assert heard == [
                ("b", 1), ("a", 2), ("b", 2), ("c", 1), ("c", None), ("b", 3), ("a", None),
            ]  # fmt: skip
            # What came and went meanwhile it never hears of; of others the latest.
            assert await anext(changes) == Change("b", 3)
            assert await anext(changes) == Change("a", None)
            remove()
            coming = asyncio.ensure_future(anext(changes))
            await writer.append(b"d:9")
            assert await coming == Change("d", 9)
            assert len(heard) == 7
            await changes.aclose()


async def test_keys_that_come_and_go_take_no_room(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append(b"kept:1")
        await writer.flush()
        async with TableView(stream, by_colon) as table:
            changes = table.changes(replay=True)
            await anext(changes)
            await writer.append_batch([b"%d:%s" % (n // 2, b"1"[n % 2 :]) for n in range(2000)])
            await writer.flush()
            await table.refresh()
            assert dict(table) == {"kept": 1}
            # It is held up at one step.
            assert [len(watcher.pending) for watcher in table._watchers] == [0]
            await changes.aclose()


async def test_a_table_says_why_it_cannot_go_on(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    table = TableView(stream, by_colon)
    with pytest.raises(LocalProtocolError, match="not open"):
        len(table)
    async with asyncio.timeout(PATIENCE_S), stream.writer() as writer:
        async with table:
            changes = asyncio.ensure_future(anext(table.changes()))
            where = await writer.append(b"a:no number")
            assert where.position is not None
            with pytest.raises(ApplyError, match="1:0:1 of stream s could not be applied"):
                await table.wait_for(where.position)
            with pytest.raises(ApplyError):
                await changes
            with pytest.raises(ApplyError):
                table.get("a")
        await stream.truncate(where.position.next)
        async with TableView(stream, by_colon) as late:
            assert dict(late) == {}
            # It is told, if records go that it has not seen.
            await late._follower.pause()
            await writer.append(b"b:1")
            last = await writer.append(b"c:1")
            assert last.position is not None
            await writer.flush()
            await late.refresh()
            await writer.append(b"d:1")
            last = await writer.append(b"e:1")
            assert last.position is not None
            await writer.flush()
            await stream.truncate(last.position)
            with pytest.raises(PositionTruncatedError):
                await late.refresh()


async def test_a_table_that_fails_in_any_way_says_so(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with asyncio.timeout(PATIENCE_S), stream.writer() as writer:
        async with TableView(stream, by_colon) as table:
            await table._follower.pause()  # it is held up at one step
            monkeypatch.setattr(stream, "reader", None)  # as a defect would
            table._follower.start()  # it is held up at one step
            where = await writer.append(b"a:1")
            assert where.position is not None
            with pytest.raises(StreamError, match="cannot be followed: TypeError"):
                await table.wait_for(where.position)


async def test_nothing_is_missing_right_behind_a_segment_that_is_gone(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    stream = ns.stream("s")
    async with asyncio.timeout(PATIENCE_S), stream.writer() as writer:
        where = [await writer.append(b"a:%d" % number) for number in range(3)]
        await writer.flush()
        async with TableView(other.stream("s"), by_colon) as table:
            await table._follower.pause()  # it is held up at one step
            await writer.append(b"b:1")
            last = await writer.append(b"b:2" + b" " * 2_000_000)  # in chunks
            await writer.append(b"b:3")
            await writer.flush()
            assert where[2].position is not None
            await stream.truncate(where[2].position.next_segment)
            await stream.enforce_retention()
            assert (await stream.segments())[0].metadata.number > where[2].position.segment
            await table.refresh()
            assert dict(table) == {"a": 2, "b": 3}
            assert last.position is not None
            assert table.position is not None
            assert table.position > last.position
            await table.refresh()


async def test_the_table_of_a_sealed_stream_is_complete(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    writer = await ns.stream("s").writer()
    await writer.append(b"a:1")
    async with TableView(other.stream("s"), by_colon) as table, asyncio.timeout(PATIENCE_S):
        seen = [change async for change in _sealed(writer, table)]
        assert seen == [Change("a", 1), Change("b", 2)]
        assert dict(table) == {"a": 1, "b": 2}
        assert table.position is not None
        with pytest.raises(StreamSealedError, match="nothing more comes"):
            await table.wait_for(table.position.next_segment)


async def _sealed(writer, table):  # type: ignore[no-untyped-def]
    await table.refresh()
    changes = table.changes(replay=True)
    yield await anext(changes)
    await writer.append(b"b:2")
    await writer.seal()
    async for change in changes:
        yield change
