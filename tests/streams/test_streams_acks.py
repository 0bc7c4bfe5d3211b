"""Single acknowledgements, and reading by a cursor: alone, and with what is done remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.sessions import end_session_of
from quorumbook.errors import LocalProtocolError, MetadataUnavailableError, NoSuchEntryError
from quorumbook.streams import Namespace, Position, Record, Stream, StreamPolicy
from quorumbook.streams import stream as streams
from quorumbook.streams.cursors import acks
from quorumbook.streams.cursors import reader as reader_module
from quorumbook.streams.cursors.cursor import commit_place, take_over
from quorumbook.streams.errors import (
    AckLimitError,
    CursorBusyError,
    CursorConflictError,
    LockLostError,
    PositionTruncatedError,
    UnsupportedFormatError,
)
from quorumbook.streams.stream_context import stream_context

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


async def filled(
    ns: Namespace, count: int = 20, policy: StreamPolicy | None = None
) -> tuple[Stream, list[Record]]:
    await ns.create_stream("s", policy=policy or StreamPolicy(roll_entries=4))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        for n in range(0, count, 2):
            await writer.append_batch([b"%d" % n, b"%d" % (n + 1)], atomic=True)
    async with stream.reader(tail=False) as reader:
        return stream, [record async for record in reader]


async def rest(stream: Stream) -> list[int]:
    async with stream.reader(cursor="c", tail=False) as reader:
        return [record.sequence_id async for record in reader]


async def test_records_acknowledged_in_any_order_are_left_out_for_good(
    ns: Namespace, other: Namespace
) -> None:
    stream, records = await filled(ns)
    cursor = await stream.cursor("c")
    await cursor.ack(records[3], records[9], records[7])
    await cursor.ack(records[8].position)
    seen = await other.stream("s").cursor("c")
    assert (seen.position, seen.acks) == (cursor.position, cursor.acks)
    assert await rest(other.stream("s")) == [0, 1, 2, 4, 5, 6, *range(10, 20)]
    assert (await seen.lag()).records == 16
    assert (await stream.cursors())[0].acks == cursor.acks
    await cursor.ack(*records[:3])
    # Nothing is missing up to the third: the cursor, which is all that Java sees, is there.
    assert cursor.position == records[3].position.next
    assert await rest(stream) == [4, 5, 6, *range(10, 20)]
    await cursor.nack(records[8])
    await cursor.nack(records[15])
    assert await rest(stream) == [4, 5, 6, 8, *range(10, 20)]
    with pytest.raises(LocalProtocolError, match="reset"):
        await cursor.nack(records[2])
    await cursor.ack(records[1])
    await cursor.ack(*records[4:9], *records[10:])
    assert await rest(stream) == []
    assert await cursor.lag() == (0, 0, None)
    assert cursor.acks is not None
    assert cursor.acks.ranges == ()
    await cursor.ack(records[5])
    await cursor.reset(records[17].position)
    assert await rest(stream) == [17, 18, 19]


async def test_cumulative_and_single_acknowledgements_go_together(
    ns: Namespace, other: Namespace
) -> None:
    stream, records = await filled(ns)
    cursor = await stream.cursor("c")
    await cursor.ack(records[2], records[6], *records[9:12])
    await cursor.commit(records[4], state=b"five")
    assert (cursor.state, await rest(stream)) == (b"five", [5, 7, 8, *range(12, 20)])
    await cursor.ack(records[7])
    assert cursor.state == b"five"
    await cursor.commit(records[5].position)
    assert cursor.position == records[7].position.next
    assert await rest(stream) == [8, *range(12, 20)]
    stale = await other.stream("s").cursor("c")
    await cursor.ack(records[8])
    assert cursor.position == records[11].position.next
    with pytest.raises(CursorConflictError):
        await stale.ack(records[15])
    await stale.refresh()
    await stale.ack(records[15])
    await stale.commit(records[-1].position)
    assert (stale.position, await rest(stream)) == (records[-1].position.next, [])


async def test_acknowledgements_of_many_tasks_are_written_together(ns: Namespace) -> None:
    stream, records = await filled(ns)
    cursor = await stream.cursor("c")
    path = stream_context(stream).nodes.paths.subscriber("c")
    before = (await stream_context(stream).store.get(path)).version
    await asyncio.gather(*(cursor.ack(record) for record in records[1:]))
    assert (await stream_context(stream).store.get(path)).version - before < 5
    assert await rest(stream) == [0]
    cancelled = [asyncio.ensure_future(cursor.nack(records[4]))]
    await asyncio.gather(*cancelled)
    first, second = (asyncio.ensure_future(cursor.ack(records[n])) for n in (0, 4))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert cursor.acks is not None
    assert cursor.acks.covers(4)


async def test_acknowledgements_have_a_bound_and_say_so(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, records = await filled(ns)
    monkeypatch.setattr(acks, "MAX_RANGES", 3)
    cursor = await stream.cursor("c")
    await cursor.ack(records[2], records[4], records[6])
    with pytest.raises(AckLimitError, match="sequence id 0"):
        await cursor.ack(records[8])
    await cursor.refresh()
    assert await rest(stream) == [0, 1, 3, 5, *range(7, 20)]
    await cursor.ack(*records[:2], records[8])
    assert await rest(stream) == [3, 5, 7, *range(9, 20)]


async def test_what_cannot_be_acknowledged_is_said(ns: Namespace) -> None:
    stream, records = await filled(ns)
    cursor = await stream.cursor("c")
    for nowhere in Position(1, 0, 0), Position(9, 0, 0):
        with pytest.raises(NoSuchEntryError):
            await cursor.ack(nowhere)
    with pytest.raises(UnsupportedFormatError, match="commit"):
        await cursor.ack(records[0]._replace(sequence_id=-5))
    assert cursor.acks is None
    # Java moves the position without looking: what was acknowledged may be anything there.
    await cursor.ack(records[5])
    path = stream_context(stream).nodes.paths.subscriber("c")
    await stream_context(stream).store.set(path, records[3].position.to_text().encode())
    with pytest.raises(CursorConflictError):
        await cursor.ack(records[6])
    await cursor.refresh()
    assert (cursor.acks, await rest(stream)) == (None, list(range(3, 20)))


async def test_t2_retention_keeps_what_has_a_hole_and_lets_go_what_has_none(
    ns: Namespace,
) -> None:
    stream, records = await filled(ns, policy=StreamPolicy(roll_entries=1, retain_unconsumed=True))
    cursor = await stream.cursor("c")
    await cursor.ack(*records[:3], *records[4:14])
    report = await stream.enforce_retention()
    assert [each.number for each in report.segments] == [1]
    await cursor.ack(records[3])
    report = await stream.enforce_retention()
    assert [each.number for each in report.segments] == [2, 3, 4, 5, 6, 7]
    assert await rest(stream) == list(range(14, 20))


async def test_records_that_are_truncated_away_are_missing_no_more(ns: Namespace) -> None:
    stream, records = await filled(ns)
    cursor = await stream.cursor("c")
    await cursor.ack(records[1], records[12])
    await stream.truncate(records[10].position)
    with pytest.raises(PositionTruncatedError):
        await rest(stream)
    async with stream.reader(cursor="c", tail=False, on_truncated="skip") as reader:
        got = [record.sequence_id async for record in reader]
        assert got == [10, 11, *range(13, 20)]
        await reader.cursor.ack(records[10], records[11])
        assert reader.cursor.position == records[12].position.next


async def test_who_asks_for_more_is_done_with_what_came_before(
    ns: Namespace, other: Namespace
) -> None:
    stream, _ = await filled(ns)

    async def position() -> int:
        found = await other.stream("s").cursor("c")
        async with other.stream("s").reader(found.position, tail=False) as reader:
            first = await reader.read(1, wait_s=None)
        return first[0].sequence_id if first else 20

    with pytest.raises(RuntimeError):
        async with stream.reader(cursor="c", auto_commit_s=1000) as reader:
            for _ in range(3):
                await anext(reader)
            raise RuntimeError("the third was not done")
    assert await position() == 2
    async with stream.reader(cursor="c", auto_commit_s=1000) as reader:
        assert [each.sequence_id for each in await reader.read(4)] == [2, 3, 4, 5]
    assert await position() == 6
    async with stream.reader(cursor="c", auto_commit_s=0.01) as reader:
        assert (await anext(reader)).sequence_id == 6
        assert (await anext(reader)).sequence_id == 7
        async with asyncio.timeout(PATIENCE_S):
            while await position() != 7:
                await asyncio.sleep(0.01)
    async with stream.reader(cursor="c") as reader:
        async for batch in reader.read_batches():
            if batch.last_sequence_id == 13:
                break
        await reader.commit()
    assert await position() == 12
    # Somebody moves it meanwhile: the reader is told, and moves nothing.
    with pytest.raises(CursorConflictError):
        async with stream.reader(cursor="c", auto_commit_s=0.01, tail=False) as reader:
            await anext(reader)
            await take_over(await other.stream("s").cursor("c"), "somebody")
            await anext(reader)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await reader.read(0)
                    await asyncio.sleep(0.01)
    assert await position() == 12


@pytest.mark.parametrize("fails", [False, True])
async def test_a_commit_returns_when_all_is_stored_whoever_is_storing_it(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    stream, _ = await filled(ns)
    began, may_go_on = asyncio.Event(), asyncio.Event()

    async def held_up(*place: Any) -> None:
        monkeypatch.setattr(reader_module, "commit_place", commit_place)
        began.set()
        await may_go_on.wait()
        if fails:
            raise MetadataUnavailableError("the power is gone")
        await commit_place(*place)

    monkeypatch.setattr(reader_module, "commit_place", held_up)
    async with stream.reader(cursor="c", auto_commit_s=0.01) as reader:
        await reader.read(1)
        (second,) = await reader.read(1)
        await began.wait()  # what runs beside the application stores that the first one is done
        commit = asyncio.ensure_future(reader.commit())
        await asyncio.sleep(0)
        is_early = commit.done()
        may_go_on.set()
        await commit
        assert not is_early
        assert (await stream.cursor("c")).position == second.position


async def test_one_reads_by_a_cursor_alone(ns: Namespace, other: Namespace) -> None:
    stream, _ = await filled(ns)
    async with stream.reader(cursor="c", exclusive=True, auto_commit_s=1000) as reader:
        with pytest.raises(CursorBusyError, match="test-") as busy:
            await other.stream("s").reader(cursor="c", exclusive=True)
        assert busy.value.owner.startswith("test-")
        with pytest.raises(CursorConflictError, match="for itself"):
            await (await other.stream("s").cursor("c")).delete()
        waiting = asyncio.ensure_future(_read_alone(other.stream("s")))
        await reader.read(5)
    assert await waiting == list(range(5, 20))
    await (await stream.cursor("c")).delete()


async def _read_alone(stream: Stream) -> list[int]:
    options = {"exclusive": True, "wait_for_lock_s": PATIENCE_S, "tail": False}
    async with stream.reader(cursor="c", **options) as reader:
        return [record.sequence_id async for record in reader]


async def test_who_does_not_come_to_read_alone_keeps_nobody_away(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, _ = await filled(ns)

    async def not_answer(*_arguments: object) -> Position:
        monkeypatch.undo()
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(streams, "resume_position", not_answer)
    with pytest.raises(MetadataUnavailableError):
        await stream.reader(cursor="c", exclusive=True)
    async with other.stream("s").reader(cursor="c", exclusive=True) as reader:
        assert len(await reader.read(1)) == 1


async def test_a_reader_whose_lock_went_says_so(ns: Namespace) -> None:
    stream, _ = await filled(ns)
    with pytest.raises(LockLostError):
        async with stream.reader(cursor="c", exclusive=True) as reader:
            await anext(reader)
            await end_session_of(stream_context(stream).store)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await reader.read(0)
                    await asyncio.sleep(0.01)


async def test_a_record_in_chunks_is_acknowledged_as_one(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append(b"first")
        await writer.append(b"large" * 500_000)
        await writer.append(b"last")
    cursor = await stream.cursor("c")
    async with stream.reader(tail=False) as reader:
        first, large, last = [record async for record in reader]
    await cursor.ack(first, last)
    async with stream.reader(cursor="c", tail=False) as reader:
        assert [len(record.payload) async for record in reader] == [2_500_000]
    await cursor.refresh()
    await cursor.ack(large)
    assert await rest(stream) == []
    assert await (await stream.cursor("c")).lag() == (0, 0, None)
    await cursor.refresh()
    await cursor.reset(first.position)
    await cursor.commit(large)
    assert (await cursor.lag()).records == 1
    assert await rest(stream) == [last.sequence_id]
