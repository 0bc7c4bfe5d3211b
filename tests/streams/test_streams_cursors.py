"""Cursors: durable positions that nobody moves unseen, and what is still before them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from doubles.waiting import until
from quorumbook.errors import LocalProtocolError, MetadataUnavailableError
from quorumbook.metadata import nodes
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.streams import Namespace, Position, Stream, StreamPolicy
from quorumbook.streams.cursors.reader import lock_cursor
from quorumbook.streams.cursors.state import MAX_STATE_SIZE_BYTES, CursorState
from quorumbook.streams.errors import (
    CorruptRecordsError,
    CursorConflictError,
    InvalidStreamNameError,
    PositionTruncatedError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.format.position import BEFORE_FIRST_POSITION, FIRST_POSITION
from quorumbook.streams.stream_context import stream_context


async def test_x4_a_position_and_what_goes_with_it_are_stored_in_one_step(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=3))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        where = [await writer.append(b"%d" % n) for n in range(10)]
    cursor = await stream.cursor("billing")
    assert (cursor.position, cursor.state) == (FIRST_POSITION, None)
    for done in 0, 1, 2, 5, 9:
        await cursor.commit(where[done].position, state=b"%d done" % done)
        found = await other.stream("s").cursor("billing", start="latest")
        assert found.state == b"%d done" % done
        async with other.stream("s").reader(found.position, tail=False) as reader:
            assert [record.sequence_id async for record in reader] == [*range(done + 1, 10)]


async def test_of_two_that_move_a_cursor_one_is_told(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    one, two = await ns.stream("s").cursor("c"), await other.stream("s").cursor("c")
    await one.commit(Position(1, 0, 1))
    with pytest.raises(CursorConflictError, match="cursor c of stream s"):
        await two.commit(Position(1, 5, 1), state=b"two")
    await two.refresh()
    assert (two.position, two.state) == (Position(1, 0, 2), None)
    outcomes = await asyncio.gather(
        one.commit(Position(1, 7, 1), state=b"one"),
        two.commit(Position(1, 8, 1), state=b"two"),
        return_exceptions=True,
    )
    assert set(map(type, outcomes)) == {CursorConflictError, type(None)}
    winner = (one, two)[outcomes.index(None)]
    stored = await ns.stream("s").cursor("c")
    assert (stored.position, stored.state) == (winner.position, winner.state)


class Unheard:
    """A store that does not tell what became of one change, in one way or another."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        self._store, self._monkeypatch, self._how = store, monkeypatch, how
        self._multi, self._exists = store.multi, store.exists
        self._begun = False

    async def change(self, change: Callable[[], Awaitable[None]]) -> None:
        """Have a change go unheard."""
        self._begun = False
        self._monkeypatch.setattr(self._store, "multi", self._carry_out)
        changing = asyncio.ensure_future(change())
        await until(lambda: self._begun or changing.done())
        if self._how == "cancelled":
            changing.cancel()
        with pytest.raises((asyncio.CancelledError, MetadataUnavailableError)):
            await changing

    async def _carry_out(self, operations: Any) -> Any:
        self._monkeypatch.setattr(self._store, "multi", self._multi)
        answer = None if self._how == "not sent" else await self._multi(operations)
        self._begun = True
        if self._how == "cancelled":
            await asyncio.Event().wait()
        if self._how != "half seen":
            raise MetadataUnavailableError("no answer")
        self._monkeypatch.setattr(self._store, "exists", self._see_nothing)
        return answer

    async def _see_nothing(self, *_arguments: Any) -> Any:
        self._monkeypatch.setattr(self._store, "exists", self._exists)
        raise MetadataUnavailableError("no answer")


@pytest.mark.parametrize("how", ["cancelled", "unanswered", "not sent", "half seen"])
async def test_a_change_of_its_own_of_which_a_cursor_did_not_hear_is_no_conflict(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        where = [(await writer.append(b"%d" % n)).position for n in range(9)]
    store, paths = stream_context(stream).store, stream_context(stream).nodes.paths
    # As the peer makes it: what else a cursor is comes with its first change.
    await create_with_parents(store, paths.subscriber("c"), where[0].to_text().encode())
    cursor = await stream.cursor("c")
    monkeypatch.setattr(nodes, "_PATIENCE_S", -1.0)
    unheard = Unheard(store, monkeypatch, how)
    changes: list[Callable[[], Awaitable[None]]] = [
        lambda: cursor.hold_retention(holds=True),
        lambda: cursor.ack(where[3], where[4]),
        lambda: cursor.refuse(where[5], delay_s=1),
        lambda: cursor.commit(where[1], state=b"two done"),
    ]
    for number, change in enumerate(changes):
        if how == "half seen" and number:  # there is something to be seen after the first only
            await change()
        else:
            await unheard.change(change)
        if how == "not sent":
            await change()
    await cursor.ack(where[7])
    found = await other.stream("s").cursor("c")
    assert (found.position, found.state) == (where[1].next, b"two done")
    assert found.holds_retention
    assert found.acks is not None
    assert found.acks == cursor.acks
    assert {3, 4, 7}.isdisjoint(n for gap in found.acks.gaps(0, 9) for n in range(*gap))


async def test_somebody_elses_change_behind_one_that_was_not_heard_of_is_a_conflict(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    cursor, rival = await ns.stream("s").cursor("c"), await other.stream("s").cursor("c")
    unheard = Unheard(stream_context(ns.stream("s")).store, monkeypatch, "cancelled")
    await unheard.change(lambda: cursor.hold_retention(holds=True))
    await rival.refresh()
    for holds in False, True:
        await rival.hold_retention(holds=holds)
    with pytest.raises(CursorConflictError):
        await cursor.hold_retention(holds=False)


async def test_a_cursor_goes_back_only_when_it_is_told_to(ns: Namespace) -> None:
    await ns.create_stream("s")
    cursor = await ns.stream("s").cursor("c")
    await cursor.commit(Position(3, 2, 1))
    with pytest.raises(LocalProtocolError, match="reset"):
        await cursor.commit(Position(3, 1, 1))
    await cursor.commit(Position(3, 2, 1))
    await cursor.reset(Position(2, 0, 0), state=b"again")
    found = await ns.stream("s").cursor("c")
    assert (found.position, found.state) == (Position(2, 0, 0), b"again")


async def test_cursors_are_listed_and_deleted(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    assert await stream.cursors() == []
    kept = await stream.cursor("b")
    gone = await stream.cursor("a", holds_retention=True)
    assert [(c.name, c.holds_retention) for c in await stream.cursors()] == [("a", True),
                                                                          ("b", False)]  # fmt: skip
    stale = await other.stream("s").cursor("a")
    await gone.commit(Position(1, 0, 0))
    with pytest.raises(CursorConflictError):
        await stale.delete()
    await gone.delete()
    assert [cursor.name for cursor in await stream.cursors()] == ["b"]
    with pytest.raises(StreamNotFoundError, match="has no cursor a"):
        await gone.commit(Position(1, 0, 0))
    with pytest.raises(StreamNotFoundError, match="has no cursor a"):
        await stale.refresh()
    held = await stream.cursor("b", holds_retention=True)
    assert held.holds_retention
    with pytest.raises(CursorConflictError):
        await kept.commit(Position(1, 0, 0))
    for name in "", "a/b", ".", "a b":
        with pytest.raises(InvalidStreamNameError):
            await stream.cursor(name)
    with pytest.raises(LocalProtocolError, match="at most"):
        await held.commit(Position(1, 0, 0), state=b"x" * (MAX_STATE_SIZE_BYTES + 1))
    await held.commit(Position(1, 0, 0), state=b"x" * MAX_STATE_SIZE_BYTES)
    for missing in ns.stream("none").cursor("c"), ns.stream("none").cursors():
        with pytest.raises(StreamNotFoundError):
            await missing


async def test_a_position_that_another_side_set_has_no_state(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    cursor = await stream.cursor("c", holds_retention=True)
    await cursor.commit(Position(1, 0, 0), state=b"mine")
    # As DistributedLog does: the position alone, whatever it was.
    path = stream_context(stream).nodes.paths.subscriber("c")
    await stream_context(stream).store.set(path, Position(1, 4, 0).to_text().encode())
    with pytest.raises(CursorConflictError):
        await cursor.commit(Position(1, 2, 0))
    await cursor.refresh()
    assert (cursor.position, cursor.state) == (Position(1, 4, 0), None)
    assert cursor.holds_retention


async def test_lag_is_counted_in_records_bytes_and_time(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=3))
    stream = ns.stream("s")
    cursor = await stream.cursor("c")
    assert await cursor.lag() == (0, 0, None)
    async with stream.writer() as writer:
        where = [await writer.append(b"%d" % n * 1000) for n in range(8)]
        await writer.flush()
        sizes = []
        for n, each in enumerate(where):
            await cursor.reset(each.position)
            lag = await cursor.lag()
            assert lag.records == 8 - n
            assert lag.age_s is not None
            assert lag.age_s >= 0
            sizes.append(lag.size_bytes)
        await cursor.commit(where[-1].position)
        assert await cursor.lag() == (0, 0, None)
    ledgers = {each.ledger_id for each in where}
    stored = sum([(await ns.client.ledger_metadata(each)).length for each in ledgers])
    # Closing the last segment may add entries of its own.
    assert 8 * 1000 < sizes[0] <= stored
    steps = [before - after for before, after in itertools.pairwise(sizes)]
    assert min(steps) > 1000
    await cursor.reset(where[3].position)
    assert (await cursor.lag()).records == 5


def test_what_a_cursor_has_is_read_strictly() -> None:
    full = CursorState(position=Position(2, 3, 4), state=b"\0x", holds_retention=True,
                       is_overrun=True)  # fmt: skip
    text = full.position.to_text().encode()
    assert CursorState.decode(text, full.encode_rest()) == full
    assert CursorState.decode(text, None) == CursorState(position=full.position)
    assert CursorState.decode(b"", None).position == BEFORE_FIRST_POSITION
    moved = CursorState.decode(Position(2, 3, 5).to_text().encode(), full.encode_rest())
    assert moved == CursorState(position=Position(2, 3, 5), holds_retention=True)
    with pytest.raises(UnsupportedFormatError):
        CursorState.decode(text, b'{"version":2}')
    for damaged in b"", b"[]", b"{}", b'{"version":1}', b'{"version":1,"position":"x"}':
        with pytest.raises(CorruptRecordsError):
            CursorState.decode(text, damaged)


@pytest.mark.parametrize("how", ["committed", "reset", "latest"])
async def test_a_cursor_goes_on_behind_a_segment_that_is_gone(ns: Namespace, how: str) -> None:
    """Wherever its position is known to be the segment's end, however it came there."""
    name = f"s-{how}"
    await ns.create_stream(name, policy=StreamPolicy(retain_records=2))
    stream = ns.stream(name)
    async with stream.writer() as writer:
        last = (await writer.append_batch([b"0", b"1"]))[-1].position
        assert last is not None
        await writer.flush()
        if how == "latest":
            cursor = await stream.cursor("c", start="latest")
        else:
            cursor = await stream.cursor("c")
            await (cursor.commit(last) if how == "committed" else cursor.reset(last.next))
        assert cursor.acks is not None
        assert cursor.acks.floor == 2
        for payload in b"2", b"3":
            await writer.roll()
            await writer.append(payload)
    deleted = await stream.enforce_retention()
    assert [each.number for each in deleted.segments] == [1]
    for start in {"cursor": "c"}, {"start": cursor}:
        async with stream.reader(tail=False, **start) as reader:
            assert [record.payload async for record in reader] == [b"2", b"3"]
    # Of the position alone nobody can tell whether more was behind it; of what is gone, all can.
    await _assert_truncated(stream, start=cursor.position)
    async with stream.writer() as writer:
        await writer.append(b"4")
    await stream.enforce_retention()
    await _assert_truncated(stream, start=cursor)
    await _assert_truncated(stream, cursor="c")


async def _assert_truncated(stream: Stream, **start: Any) -> None:
    with pytest.raises(PositionTruncatedError):
        async with stream.reader(tail=False, **start) as reader:
            await reader.read(1, wait_s=None)


@pytest.mark.parametrize("goes", ["the cursor", "the stream"])
async def test_a_reader_alone_brings_nothing_back_that_was_deleted(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, goes: str
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")

    async def deleting(context: Any, name: str, wait_s: float | None) -> Any:
        if goes == "the stream":
            await other.delete_stream("s")
        else:
            await (await other.stream("s").cursor(name)).delete()
        return await lock_cursor(context, name, wait_s)

    monkeypatch.setattr("quorumbook.streams.stream.lock_cursor", deleting)
    with pytest.raises(StreamNotFoundError, match="stream s has no cursor c"):
        await stream.reader(cursor="c", exclusive=True)
    if goes == "the cursor":
        assert await stream.cursors() == []
        await ns.delete_stream("s")
    assert await stream_context(stream).store.exists(f"{ns.path}/s") is None
