"""Consumer groups: members come, go and die, and every record is handed out by one of them."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.sessions import end_session_of
from doubles.waiting import until
from quorumbook.errors import (
    ConfigError,
    LocalProtocolError,
    MetadataUnavailableError,
    QuorumbookError,
)
from quorumbook.metadata.store import Watch
from quorumbook.streams import (
    Consumer,
    Namespace,
    PartitionedStream,
    PartitionRecord,
    Stream,
    StreamPolicy,
)
from quorumbook.streams.errors import (
    GroupInUseError,
    InvalidStreamNameError,
    PartitionLostError,
    PositionTruncatedError,
    StreamNotFoundError,
)
from quorumbook.streams.stream_context import stream_context

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


async def made(
    ns: Namespace, other: Namespace, partitions: int = 4, records: int = 40
) -> tuple[PartitionedStream, PartitionedStream]:
    stream = await PartitionedStream.create(ns, "s", partitions=partitions)
    await append(stream, range(records))
    return stream, await PartitionedStream.open(other, "s")


async def append(stream: PartitionedStream, numbers: Iterable[int]) -> None:
    async with stream.writer() as writer:
        for n in numbers:
            await writer.append(b"%d" % n, partition=n % len(stream.partitions))


def numbers(records: Iterable[PartitionRecord]) -> list[int]:
    return [int(each.record.payload) for each in records]


async def consume(consumer: Consumer, count: int) -> list[PartitionRecord]:
    """Return so many records, one at a time, as an application takes them."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await consumer.read(1, wait_s=None)
    return found


async def keep_reading(consumer: Consumer, found: list[PartitionRecord]) -> None:
    while True:
        found += await consumer.read(3)


async def test_a_partition_is_opened_once_although_another_one_fails_meanwhile(
    ns: Namespace, other: Namespace
) -> None:
    mine, _ = await made(ns, other, partitions=2)
    assigned: list[int] = []
    go_on = asyncio.Event()

    async def on_assigned(number: int) -> None:
        assigned.append(number)
        if number == 0:
            await go_on.wait()
        elif assigned.count(1) == 1:
            raise MetadataUnavailableError("the store is away")

    consumer = await mine.consumer("g", on_assigned=on_assigned)
    await until(lambda: sorted(assigned) == [0, 1])
    # Longer than until the consumer looks again.
    await asyncio.sleep(0.5)
    go_on.set()
    assert sorted(numbers(await consume(consumer, 40))) == [*range(40)]
    assert sorted(assigned) == [0, 1, 1]
    await consumer.close()


async def test_members_that_come_and_go_hand_each_record_out_once(
    ns: Namespace, other: Namespace
) -> None:
    mine, theirs = await made(ns, other)
    got: list[PartitionRecord] = []
    first = await mine.consumer("g", auto_commit_s=0.05)
    reading = {first: asyncio.ensure_future(keep_reading(first, got))}
    await until(lambda: len(got) > 10)
    second = await theirs.consumer("g", auto_commit_s=0.05)
    reading[second] = asyncio.ensure_future(keep_reading(second, got))
    await until(lambda: len(first.assignment) == len(second.assignment) == 2)
    assert first.assignment | second.assignment == set(range(4))
    assert first.generation == second.generation
    await append(mine, range(40, 80))
    third = await theirs.consumer("g", auto_commit_s=0.05)
    reading[third] = asyncio.ensure_future(keep_reading(third, got))
    await until(lambda: len(third.assignment) == 1)
    await append(mine, range(80, 120))
    await until(lambda: len(got) >= 110)
    for consumer in first, second:  # what they had in hand is done: they came back for more
        reading[consumer].cancel()
        await asyncio.gather(reading[consumer], return_exceptions=True)
        await consumer.close(is_done=True)
    await until(lambda: third.assignment == set(range(4)))
    await append(mine, range(120, 160))
    await until(lambda: len(got) >= 160)
    reading[third].cancel()
    await asyncio.gather(reading[third], return_exceptions=True)
    await third.close(is_done=True)
    assert sorted(numbers(got)) == list(range(160))
    by_partition: dict[int, list[int]] = defaultdict(list)
    for each in got:
        by_partition[each.partition].append(int(each.record.payload))
    assert by_partition == {p: list(range(p, 160, 4)) for p in range(4)}
    info = await theirs.group("g")
    assert (info.members, info.claims) == ({}, {})
    # The next one finds nothing left to do.
    async with mine.consumer("g") as again:
        await until(lambda: len(again.assignment) == 4)
        assert await again.read(wait_s=0.05) == []


async def test_a_member_that_dies_is_replaced_and_commits_nothing_more(
    ns: Namespace, other: Namespace
) -> None:
    mine, theirs = await made(ns, other, partitions=2)
    async with mine.consumer("g", auto_commit_s=0) as alive:
        dead = await theirs.consumer("g", auto_commit_s=0)
        await until(lambda: len(alive.assignment) == len(dead.assignment) == 1)
        (lost,) = dead.assignment
        held = await consume(dead, 5)
        await dead.commit(held[2])
        cursor = dead.cursor(lost)
        # It is not heard of for too long, and does not know it yet: nothing may ring for it.
        assert dead._remove_callback is not None
        # A member that dies without a word.
        assert dead._task is not None
        dead._remove_callback()
        dead._remove_callback = lambda: None
        dead._task.cancel()
        await end_session_of(stream_context(theirs.partitions[0]).store)
        got = await consume(alive, 20 + 20 - 3)
        assert alive.assignment == {0, 1}
        assert (
            numbers(each for each in got if each.partition == lost)
            == [int(each.record.payload) for each in held[3:]]
            + [n for n in range(40) if n % 2 == lost][5:]
        )
        assert cursor.owner == dead.member
        for work in dead.commit(held[4]), dead.ack(held[4]):
            with pytest.raises(PartitionLostError, match="went to another member"):
                await work
        await alive.commit(next(each for each in reversed(got) if each.partition == lost))
        await dead.close()


_DOOMED = """
import sys
from quorumbook.sync.streams import Namespace, PartitionedStream

with Namespace.open(sys.argv[1], session_timeout_s=1) as ns:
    with PartitionedStream.open(ns, "s").consumer("g", auto_commit_s=0) as consumer:
        for each in consumer:
            print(each.record.payload.decode(), flush=True)
            consumer.commit(each)
"""


async def test_a_member_killed_by_sigkill_is_replaced(ns: Namespace, other: Namespace) -> None:
    mine, _ = await made(ns, other)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DOOMED, f"{ns.client.metadata_uri}#{ns.path}",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            printed = [int(await process.stdout.readline()) for _ in range(10)]
    finally:
        process.kill()
    printed += [int(line) for line in (await process.stdout.read()).split()]
    await process.wait()
    async with mine.consumer("g") as survivor:
        await until(lambda: survivor.assignment == set(range(4)))
        got = numbers(await consume(survivor, 40 - len(printed)))
        got += numbers(await survivor.read(wait_s=0.1))
    assert set(printed) | set(got) == set(range(40))
    # What it had in hand may not have been committed; all before it was.
    assert len(set(printed) & set(got)) <= 1


async def test_a_member_whose_session_ends_joins_again(ns: Namespace, other: Namespace) -> None:
    mine, _ = await made(ns, other)
    async with mine.consumer("g", auto_commit_s=0) as consumer:
        await consume(consumer, 7)
        before = consumer.member
        await end_session_of(stream_context(mine.partitions[0]).store)
        await until(lambda: consumer.member != before and len(consumer.assignment) == 4)
        # It had committed nothing.
        got = await consume(consumer, 40)
        assert sorted(numbers(got))[:40] == list(range(40))
        info = await mine.group("g")
        assert set(info.claims.values()) == set(info.members) == {consumer.member}


async def test_a_partition_changes_hands_when_its_record_in_hand_is_done(
    ns: Namespace, other: Namespace
) -> None:
    mine, theirs = await made(ns, other, partitions=1, records=10)
    seen: list[tuple[str, int]] = []

    def noted(what: str) -> Callable[[int], Awaitable[None]]:
        async def note(partition: int) -> None:
            seen.append((what, partition))

        return note

    first = await mine.consumer(
        "g", release_timeout_s=1000, on_assigned=noted("has"), on_revoked=noted("gives")
    )
    await consume(first, 3)
    assert seen == [("has", 0)]
    # Who comes second has to wait: the partition is the first one's until it leaves.
    async with theirs.consumer("g", on_assigned=noted("other has")) as second:
        await until(lambda: first.generation == second.generation > 1)
        assert (await theirs.group("g")).members[first.member] == (0,)
        await first.close()  # the third is not done
        got = await consume(second, 8)
        assert numbers(got) == list(range(2, 10))
        assert seen == [("has", 0), ("gives", 0), ("other has", 0)]


async def test_a_member_leaves_although_whoever_closes_it_is_cancelled(
    ns: Namespace, other: Namespace
) -> None:
    mine, theirs = await made(ns, other, partitions=2, records=10)
    may_go, is_asked = asyncio.Event(), asyncio.Event()

    async def hesitate(partition: int) -> None:
        is_asked.set()
        await may_go.wait()

    first = await mine.consumer("g", on_revoked=hesitate)
    await consume(first, 1)
    closing = asyncio.create_task(first.close())
    await is_asked.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert (await mine.group("g")).members
    may_go.set()
    await first.close()  # waits for the same end
    assert not (await mine.group("g")).members
    async with theirs.consumer("g") as second:
        assert sorted(numbers(await consume(second, 10))) == list(range(10))


@pytest.mark.parametrize("made", ["groups", "members", "claims"])
async def test_a_group_that_is_joined_while_its_stream_is_deleted_brings_nothing_back(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    mine = await PartitionedStream.create(ns, "deleted", partitions=1)
    theirs = await PartitionedStream.open(other, "deleted")
    store = stream_context(mine.partitions[0]).store
    create = store.create

    async def deleting(path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith(f"/{made}"):
            monkeypatch.undo()
            await theirs.delete()
        return await create(path, *arguments, **options)

    monkeypatch.setattr(store, "create", deleting)
    with pytest.raises(StreamNotFoundError, match="group g, or its stream, was deleted while"):
        await mine.consumer("g")
    assert await store.exists(mine.node) is None
    await PartitionedStream.create(ns, "deleted", partitions=1)


async def test_a_record_in_hand_holds_its_partition_until_it_is_done(
    ns: Namespace, other: Namespace
) -> None:
    mine, theirs = await made(ns, other, partitions=2, records=20)
    first = await mine.consumer("g", release_timeout_s=1000)
    await until(lambda: len(first.assignment) == 2)
    handed_out = await consume(first, 1)
    while handed_out[-1].partition != 1:  # the one that the first has to give up
        handed_out += await consume(first, 1)
    async with theirs.consumer("g") as second:
        await until(lambda: first.generation == second.generation > 1)
        waiting = asyncio.ensure_future(second.read(1, wait_s=None))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.1)
        assert (second.assignment, first.assignment) == (frozenset(), {0, 1})
        reading = asyncio.ensure_future(keep_reading(first, []))
        await until(lambda: len(second.assignment) == len(first.assignment) == 1)
        assert second.assignment == {1}
        # It goes on right behind what the first had in hand.
        count = sum(each.partition == 1 for each in handed_out)
        assert numbers(await waiting) == [range(1, 20, 2)[count]]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await first.close(is_done=True)


async def test_who_does_not_come_back_loses_the_partition(ns: Namespace, other: Namespace) -> None:
    mine, theirs = await made(ns, other, partitions=2, records=20)
    first = await mine.consumer("g", release_timeout_s=0.01, auto_commit_s=0)
    in_hand: list[PartitionRecord] = []
    while {each.partition for each in in_hand} != {0, 1}:
        in_hand += await first.read(20, wait_s=None)
    async with theirs.consumer("g") as second:
        await until(lambda: len(second.assignment) == len(first.assignment) == 1)
        (gone,) = second.assignment
        lost = next(each for each in in_hand if each.partition == gone)
        with pytest.raises(PartitionLostError, match="any more"):
            await first.commit(lost)
        assert numbers(await consume(second, 10)) == list(range(gone, 20, 2))
        await first.close()


async def test_a_group_goes_where_its_cursor_is_moved_to(ns: Namespace, other: Namespace) -> None:
    mine, theirs = await made(ns, other, partitions=1, records=10)
    async with mine.consumer("g", auto_commit_s=0.01) as consumer:
        first = await consume(consumer, 9)
        moved = (await theirs.group("g")).cursors[0]
        assert moved is not None
        while True:  # the member is moving it as well
            try:
                await moved.reset(first[4].record.position)
                break
            except QuorumbookError:
                await moved.refresh()
        got: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while got[-6:] != list(range(4, 10)):
                got += numbers(await consumer.read())
    async with mine.consumer("g", auto_commit_s=0) as consumer:
        await append(mine, range(10, 16))
        got_again = await consume(consumer, 6)
        assert numbers(got_again) == list(range(10, 16))
        await consumer.ack(got_again[1], got_again[3])
        await consumer.commit(got_again[0], state=b"eleven")
    info = await theirs.group("g")
    assert info.cursors[0] is not None
    async with mine.consumer("g") as consumer:
        assert numbers(await consume(consumer, 3)) == [12, 14, 15]


async def test_groups_are_listed_and_deleted_and_mistakes_are_said(
    ns: Namespace, other: Namespace
) -> None:
    mine, theirs = await made(ns, other, partitions=2, records=10)
    assert await mine.groups() == []
    async with (
        mine.consumer("late", start="latest", holds_retention=True) as late,
        mine.consumer("b") as consumer,
    ):
        await until(lambda: len(late.assignment) == len(consumer.assignment) == 2)
        assert await late.read(wait_s=0.01) == []
        found = {info.name: info for info in await theirs.groups()}
        assert sorted(found) == ["b", "late"]
        assert found["late"].members == {late.member: (0, 1)}
        assert found["late"].claims == {0: late.member, 1: late.member}
        cursors = [each for each in found["late"].cursors.values() if each is not None]
        assert [(each.holds_retention, each.owner) for each in cursors] == [(True, late.member)] * 2
        assert [(await each.lag()).records for each in cursors] == [0, 0]
        with pytest.raises(GroupInUseError, match="1 members"):
            await theirs.delete_group("late")
    await theirs.delete_group("late")
    for missing in mine.group("late"), mine.delete_group("none"):
        with pytest.raises(StreamNotFoundError):
            await missing
    assert [info.name for info in await mine.groups()] == ["b"]
    assert [cursor.name for cursor in await mine.partitions[0].cursors()] == ["b"]
    with pytest.raises(InvalidStreamNameError):
        mine.consumer("a/b")
    with pytest.raises(ConfigError):
        mine.consumer("c", no_such_option=1)
    readonly = await Namespace.open(f"{ns.client.metadata_uri}#{ns.path}", read_only=True)
    async with readonly:
        stream = await PartitionedStream.open(readonly, "s")
        with pytest.raises(LocalProtocolError, match="read-only"):
            await stream.consumer("c")


async def test_what_a_partition_cannot_give_its_consumer_is_told(
    ns: Namespace, other: Namespace
) -> None:
    stream = await PartitionedStream.create(
        ns, "s", partitions=2, policy=StreamPolicy(roll_entries=1)
    )
    async with stream.consumer("g") as consumer:
        await until(lambda: len(consumer.assignment) == 2)
    await append(stream, range(8))
    await stream.truncate(await stream.end())
    await append(stream, [8, 9])
    async with stream.consumer("g") as consumer:
        with pytest.raises(PositionTruncatedError):
            await consume(consumer, 1)
    async with stream.consumer("g", on_truncated="skip") as consumer:
        assert sorted(numbers(await consume(consumer, 2))) == [8, 9]

    async def fail(partition: int) -> None:
        raise RuntimeError(f"the state of {partition} is nowhere")

    failing = await stream.consumer("g", on_assigned=fail)
    with pytest.raises(RuntimeError, match="is nowhere"):
        await consume(failing, 1)
    await failing.close()
    assert (await stream.group("g")).claims == {}


async def test_a_group_notices_partitions_that_are_added(ns: Namespace, other: Namespace) -> None:
    mine, theirs = await made(ns, other, partitions=1, records=10)
    got: list[PartitionRecord] = []
    # It begins with what comes, and misses nothing of a partition that comes.
    first = await mine.consumer("g", start="latest", auto_commit_s=0.05)
    second = await theirs.consumer("g", start="latest", auto_commit_s=0.05)
    reading = [asyncio.ensure_future(keep_reading(each, got)) for each in (first, second)]
    await until(lambda: len(first.assignment | second.assignment) == 1)
    growing = await PartitionedStream.open(other, "s")
    await growing.grow(4)
    await append(growing, range(10, 50))
    await until(lambda: len(got) == 40)
    await until(lambda: len(first.assignment) == len(second.assignment) == 2)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await first.close(is_done=True)
    await second.close(is_done=True)
    assert sorted(numbers(got)) == list(range(10, 50))
    info = await growing.group("g")
    assert sorted(info.cursors) == [0, 1, 2, 3]
    for cursor in info.cursors.values():
        assert cursor is not None
        assert (await cursor.lag()).records == 0


async def test_a_group_that_begins_while_partitions_are_added_misses_nothing_of_them(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = await made(ns, other, partitions=1, records=10)
    consumers: list[Consumer] = []
    make, is_written = PartitionedStream._make, asyncio.Event()

    async def beginning(stream: PartitionedStream, *how: Any) -> None:
        await make(stream, *how)
        if not consumers:
            consumers.append(await mine.consumer("g", start="latest"))
            await until(lambda: consumers[0].assignment == {0})
            find = consumers[0]._find_partitions  # it learns late of the partition

            async def find_late(watch: Watch | None) -> tuple[Stream, ...]:
                await is_written.wait()
                return await find(watch)

            monkeypatch.setattr(consumers[0], "_find_partitions", find_late)

    monkeypatch.setattr(PartitionedStream, "_make", beginning)
    await theirs.grow(2)
    async with theirs.writer(partitions=[1]) as writer:
        await writer.append(b"first", partition=1)
    is_written.set()
    (consumer,) = consumers
    async with consumer, asyncio.timeout(PATIENCE_S):
        assert (await anext(consumer)).record.payload == b"first"
