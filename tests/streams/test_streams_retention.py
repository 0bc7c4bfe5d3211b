"""T2: what a stream need not keep goes with its ledgers, also when nobody writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from quorumbook.client.client import BookKeeper
from quorumbook.errors import MetadataFateUnknownError, MetadataUnavailableError
from quorumbook.streams import Namespace, Position, Stream, StreamPolicy
from quorumbook.streams.errors import (
    PositionTruncatedError,
    StreamNotFoundError,
    WriterFencedError,
)
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.retention.retention import Retention
from quorumbook.streams.stream_context import stream_context


async def written(ns: Namespace, segments: int, **policy: object) -> Stream:
    """Return a stream with segments of two records of 100 bytes."""
    await ns.create_stream("s", policy=StreamPolicy(**policy))  # type: ignore[arg-type]
    stream = ns.stream("s")
    for _ in range(segments):
        async with stream.writer(retention_interval_s=0) as writer:
            await writer.append_batch([b"x" * 100, b"y" * 100])
    return stream


async def numbers(stream: Stream) -> list[int]:
    segments = await stream.segments()
    ledgers = [
        metadata.ledger_id async for metadata in stream_context(stream).client.list_ledgers()
    ]
    assert ledgers == sorted(segment.metadata.ledger_id for segment in segments)
    return [segment.metadata.number for segment in segments]


def reasons(report: object) -> Iterable[tuple[int, str]]:
    return [(each.number, str(each.reason)) for each in report.segments]  # type: ignore[attr-defined]


async def test_t2_what_is_too_much_goes_with_its_ledgers(ns: Namespace, other: Namespace) -> None:
    stream = await written(ns, 5, retain_records=4)
    plan = await stream.enforce_retention(dry_run=True)
    assert reasons(plan) == [(1, "records"), (2, "records"), (3, "records")]
    assert await numbers(stream) == [1, 2, 3, 4, 5]
    assert (await stream.enforce_retention()).segments == plan.segments
    assert await numbers(stream) == [4, 5]
    assert (await stream.enforce_retention()).segments == []
    # Sequence ids and transaction ids go on as if nothing had gone.
    async with other.stream("s").writer() as writer:
        assert (await writer.append(b"z")).sequence_id == 10
    async with stream.reader(tail=False) as reader:
        assert [record.sequence_id async for record in reader] == [6, 7, 8, 9, 10]
    with pytest.raises(PositionTruncatedError):
        async with stream.reader(Position(1, 0, 0), tail=False) as reader:
            await anext(reader)


async def test_t2_bytes_are_counted_as_stored(ns: Namespace) -> None:
    stream = await written(ns, 4, retain_bytes=1)
    sizes = [
        (await ns.client.ledger_metadata(segment.metadata.ledger_id)).length
        for segment in await stream.segments()
    ]
    await ns.set_policy(StreamPolicy(retain_bytes=1))
    for kept, expected in ((sizes[3] + sizes[2] + 1, [1]), (sizes[3] + sizes[2], [1, 2])):
        await stream_context(stream).store.set(
            stream_context(stream).nodes.paths.stream, StreamPolicy(retain_bytes=kept).encode()
        )
        plan = await stream.enforce_retention(dry_run=True)
        assert [each.number for each in plan.segments] == expected


async def test_t2_a_stream_lets_go_also_when_nothing_is_written(ns: Namespace) -> None:
    stream = await written(ns, 4, retain_time_s=0.001)
    async with stream.writer(retention_interval_s=0.02), asyncio.timeout(60):
        while await stream.segments() != (await stream.segments())[-1:]:
            await asyncio.sleep(0.01)
    assert await numbers(stream) == [4]


async def test_t2_a_writer_that_was_pushed_out_lets_the_stream_alone(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    old = await ns.stream("s").writer(retention_interval_s=0.02)
    await old.append(b"old")
    async with other.stream("s").writer(takeover="force", retention_interval_s=0):
        with pytest.raises(WriterFencedError):
            await old.append(b"too late")
        # What runs beside the writer.
        assert old._tenure._retaining is not None
        await asyncio.wait_for(old._tenure._retaining, 60)
    with pytest.raises(WriterFencedError):
        await old.close()


async def test_t2_what_was_truncated_goes_at_once(ns: Namespace) -> None:
    stream = await written(ns, 3)
    assert (await stream.enforce_retention()).segments == []
    await stream.truncate(Position(3, 0, 2))
    assert reasons(await stream.enforce_retention()) == [(1, "truncated"), (2, "truncated")]
    assert await numbers(stream) == [3]
    async with stream.reader(tail=False) as reader:
        assert [record.sequence_id async for record in reader] == [5]


async def test_t2_a_cursor_that_holds_keeps_what_it_has_not_passed(ns: Namespace) -> None:
    stream = await written(ns, 5, retain_records=1)
    cursor = await stream.cursor("slow", holds_retention=True)
    await stream.cursor("other")
    assert (await stream.enforce_retention()).segments == []
    await cursor.commit(Position(2, 0, 1))  # one more is left in it
    assert reasons(await stream.enforce_retention()) == [(1, "records")]
    await cursor.commit(Position(2, 0, 2))
    assert reasons(await stream.enforce_retention()) == [(2, "records")]
    await cursor.delete()
    assert reasons(await stream.enforce_retention()) == [(3, "records"), (4, "records")]


async def test_t2_what_all_have_consumed_goes(ns: Namespace) -> None:
    stream = await written(ns, 4, retain_unconsumed=True)
    assert (await stream.enforce_retention()).segments == []  # nobody has consumed anything
    one, two = await stream.cursor("one"), await stream.cursor("two")
    await one.commit(Position(3, 0, 2))
    assert (await stream.enforce_retention()).segments == []
    await two.commit(Position(2, 0, 2))
    assert reasons(await stream.enforce_retention()) == [(1, "consumed"), (2, "consumed")]
    assert await numbers(stream) == [3, 4]


async def test_t2_a_hard_limit_overruns_a_cursor_which_is_told(ns: Namespace) -> None:
    stream = await written(ns, 4, retain_hard_bytes=1)
    late = await stream.cursor("late", holds_retention=True)
    early = await stream.cursor("early", start="latest", holds_retention=True)
    assert (await stream.enforce_retention(dry_run=True)).overrun == ["late"]
    await late.refresh()
    assert not late.is_overrun
    report = await stream.enforce_retention()
    assert reasons(report) == [(n, "hard bytes") for n in (1, 2, 3)]
    assert report.overrun == ["late"]
    await late.refresh()
    await early.refresh()
    assert (late.is_overrun, early.is_overrun) == (True, False)
    with pytest.raises(PositionTruncatedError):
        async with stream.reader(late.position, tail=False) as reader:
            await anext(reader)
    await late.reset(Position(4, 0, 0))
    assert not late.is_overrun


async def test_t2_who_is_interrupted_leaves_no_ledger_behind(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps: the next run finds what is left to do in the segments' nodes."""
    stream = await written(ns, 4, retain_records=1)
    retention_nodes = type(stream_context(stream).nodes)
    client = type(stream_context(stream).client)
    for owner, name in (
        (retention_nodes, "replace_segment"),
        (client, "delete_ledger"),
        (retention_nodes, "delete_segment"),
    ):

        async def broken(*_: object, **__: object) -> None:
            raise MetadataUnavailableError("the power is gone")

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            with pytest.raises(MetadataUnavailableError):
                await stream.enforce_retention()
        found = {segment.metadata.ledger_id for segment in await stream.segments()}
        there = {metadata.ledger_id async for metadata in ns.client.list_ledgers()}
        assert there <= found
        async with other.stream("s").reader(tail=False) as reader:
            assert [record.sequence_id async for record in reader][-2:] == [6, 7]
    # Two at the same time do it once.
    await asyncio.gather(stream.enforce_retention(), other.stream("s").enforce_retention())
    assert await numbers(stream) == [4]


def while_first_goes(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[Any]]) -> None:
    """Do something between the first segment's mark and the deletion of its ledger."""
    delete = BookKeeper.delete_ledger

    async def deleted(client: BookKeeper, ledger_id: int) -> None:
        monkeypatch.undo()
        await work()
        await delete(client, ledger_id)

    monkeypatch.setattr(BookKeeper, "delete_ledger", deleted)


@pytest.mark.parametrize(
    "hold",
    [
        lambda stream: stream.cursor("new", holds_retention=True),
        lambda stream: stream.cursor("there", holds_retention=True),
        lambda stream: stream.set_policy(StreamPolicy(retain_records=7)),
    ],
    ids=["a cursor is made", "a cursor begins to hold", "the policy is loosened"],
)
async def test_t2_what_is_held_while_others_go_stays(
    ns: Namespace,
    other: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    hold: Callable[[Stream], Awaitable[Any]],
) -> None:
    stream = await written(ns, 5, retain_records=1)
    await stream.cursor("there", start=Position(2, 0, 0), holds_retention=False)
    while_first_goes(monkeypatch, lambda: hold(other.stream("s")))
    assert reasons(await stream.enforce_retention()) == [(1, "records")]
    assert await numbers(stream) == [2, 3, 4, 5]
    async with stream.reader(tail=False) as reader:
        assert [record.sequence_id async for record in reader] == list(range(2, 10))


def before_mark(
    monkeypatch: pytest.MonkeyPatch, stream: Stream, work: Callable[[], Awaitable[Any]], fate: str
) -> None:
    """Have somebody work right before a segment is first marked, which may go unanswered."""
    nodes = stream_context(stream).nodes
    change, store = nodes.change, nodes.store
    multi = store.multi

    async def without_answer(operations: Any) -> Any:
        monkeypatch.undo()
        if fate == "answer lost":
            await multi(operations)
        raise MetadataFateUnknownError("no answer")

    async def marked(*arguments: Any) -> None:
        monkeypatch.undo()
        await work()
        if fate != "answered":
            monkeypatch.setattr(store, "multi", without_answer)
        await change(*arguments)

    monkeypatch.setattr(StreamNodes, "change", lambda _, *arguments: marked(*arguments))


@pytest.mark.parametrize("fate", ["answered", "never sent", "answer lost"])
@pytest.mark.parametrize("is_all_kept", [True, False])
@pytest.mark.parametrize("hold", ["made", "made behind", "holds", "reset", "moved on", "policy"])
async def test_t2_what_is_held_right_before_a_segment_is_marked_stays(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, fate: str, is_all_kept: bool,
    hold: str,
) -> None:  # fmt: skip
    """Retention had looked at all cursors by then."""
    kept = {"retain_unconsumed": True} if is_all_kept else {}
    stream = await written(ns, 3, retain_records=1, **kept)
    theirs = other.stream("s")
    there = await theirs.cursor("there", start="latest", holds_retention=hold != "holds")

    async def work() -> None:
        if hold.startswith("made"):
            start = "earliest" if hold == "made" else "latest"
            await theirs.cursor("new", start=start, holds_retention=not is_all_kept)
        elif hold == "holds":
            await there.hold_retention(holds=True)
        elif hold == "reset":
            await there.reset(Position(1, 0, 0))
        elif hold == "policy":
            await theirs.set_policy(StreamPolicy(retain_records=7))
        else:
            await there.commit(Position(4, 0, 0))

    if hold == "holds":
        await there.reset(Position(3, 0, 0) if is_all_kept else Position(1, 0, 0))
    before_mark(monkeypatch, stream, work, fate)
    report = await stream.enforce_retention()
    goes = hold in ("moved on", "made behind") or (hold == "holds" and is_all_kept)
    assert reasons(report) == ([(1, "records"), (2, "records")] if goes else [])
    assert await numbers(stream) == ([3] if goes else [1, 2, 3])


@pytest.mark.parametrize("is_decided", [True, False])
async def test_t2_a_stream_that_is_deleted_while_it_lets_go_stays_deleted(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, is_decided: bool
) -> None:
    stream = await written(ns, 3, retain_records=1)
    # Nothing outside is asked between this and the mark.
    decide, prepare = Retention._decide, StreamNodes.prepare_cursors

    async def decided(self: Retention, facts: Any) -> Any:
        found = await decide(self, facts)
        monkeypatch.undo()
        await other.delete_stream("s")
        return found

    async def prepared(self: StreamNodes) -> None:
        monkeypatch.undo()
        await other.delete_stream("s")
        await prepare(self)

    if is_decided:
        monkeypatch.setattr(Retention, "_decide", decided)
    else:
        monkeypatch.setattr(StreamNodes, "prepare_cursors", prepared)
    with pytest.raises(StreamNotFoundError):
        await stream.enforce_retention()
    assert [each async for each in ns.streams()] == []
    assert await stream_context(stream).store.exists(f"{ns.path}/s") is None


async def test_t2_a_cursor_that_is_reset_back_while_others_go_keeps_what_is_left(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await written(ns, 5, retain_records=1)
    cursor = await other.stream("s").cursor("c", start="latest", holds_retention=True)
    while_first_goes(monkeypatch, lambda: cursor.reset(Position(3, 0, 0)))
    assert reasons(await stream.enforce_retention()) == [(1, "records"), (2, "records")]
    await cursor.commit(Position(3, 0, 2))
    assert reasons(await stream.enforce_retention()) == [(3, "records")]


async def test_t2_a_cursor_that_is_made_while_others_go_is_told_what_it_loses(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await written(ns, 4, retain_hard_bytes=1)
    while_first_goes(monkeypatch, lambda: other.stream("s").cursor("new", holds_retention=True))
    assert (await stream.enforce_retention()).overrun == ["new"]
    assert (await stream.cursor("new")).is_overrun
