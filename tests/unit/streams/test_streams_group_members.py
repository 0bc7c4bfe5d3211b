"""Members of a consumer group whose writes happen, and nobody tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from doubles.waiting import PATIENCE_S, until
from quorumbook.env import Env
from quorumbook.errors import MetadataUnavailableError, NoSuchEntryError, ReadFailedError
from quorumbook.metadata import nodes
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.streams.partitions import consumer as module
from quorumbook.streams.partitions.consumer import Consumer, join_group
from quorumbook.streams.partitions.group_nodes import GroupNodes
from quorumbook.streams.partitions.group_state import GroupState
from quorumbook.streams.partitions.options import ConsumerOptions
from quorumbook.streams.partitions.share import PartitionShare
from quorumbook.streams.stream import Stream


@pytest.fixture
async def stores(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[MemoryStore, MemoryStore]]:
    """Two sessions on a fresh tree, in which nobody waits for long."""
    monkeypatch.setattr(nodes, "_GIVE_UP_AGAIN_S", 0.001)
    monkeypatch.setattr(module, "_RETRY_FIRST_S", 0.001)
    tree = MemoryTree()
    found = MemoryStore(tree, Env()), MemoryStore(tree, Env())
    await found[0].create("/s")
    yield found
    for store in found:
        await store.close()


def group_of(store: MemoryStore) -> GroupNodes:
    return GroupNodes(store, "/s", "g")


class Member(Consumer):
    """A member that hands out nothing: only the group's nodes are of interest."""

    def __init__(self, store: MemoryStore, partitions: int = 4) -> None:
        context = SimpleNamespace(check_writable=lambda: None, client_id="me", store=store)
        streams = tuple(cast(Stream, SimpleNamespace(_context=context)) for _ in range(partitions))

        async def find(_watch: object) -> tuple[Stream, ...]:
            return streams

        options = ConsumerOptions.of({"group": "g"})
        super().__init__(find, group_of(store), options, cast(Any, None))
        self.opened: list[int] = []

    async def _open_share(self, number: int) -> None:
        async def close(_pumps: object, *, commits: bool) -> None:
            del commits

        self.opened.append(number)
        progress = SimpleNamespace(has_failed=False)
        self._shares[number] = cast(
            PartitionShare, SimpleNamespace(progress=progress, cursor=None, close=close)
        )


async def joined(store: MemoryStore) -> Member:
    """Return a member that has all partitions."""
    member = Member(store)
    await join_group(member)
    await until(lambda: len(member.assignment) == 4)
    return member


def lose_answer(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_it: Callable[[Any], bool]
) -> asyncio.Event:
    """Have nobody hear of one change, which happens; who is to be cancelled is so then."""
    lost = asyncio.Event()

    def losing(change: Callable[..., Any]) -> Callable[..., Any]:
        async def carry_out(what: Any, *others: Any, **options: Any) -> Any:
            answer = await change(what, *others, **options)
            if not lost.is_set() and is_it(what):
                lost.set()
                await asyncio.sleep(0)
                raise MetadataUnavailableError("no answer")
            return answer

        return carry_out

    for kind in "create", "delete", "multi":
        monkeypatch.setattr(store, kind, losing(getattr(store, kind)))
    return lost


def is_of_member(what: object) -> bool:
    return "/members/" in str(what) and isinstance(what, str)


async def test_a_member_that_does_not_hear_that_it_joined_is_one_member(
    stores: tuple[MemoryStore, MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = stores
    member = await joined(store)
    lost = lose_answer(store, monkeypatch, is_of_member)
    store._shared.end_session(store.session_id)  # a session that ends
    await until(lambda: lost.is_set() and len(member.assignment) == 4)
    assert await group_of(other).members() == {member.member}
    await member.close()
    assert await group_of(other).members() == set()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_who_does_not_come_to_consume_is_no_member(
    stores: tuple[MemoryStore, MemoryStore], monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    store, other = stores
    lost = lose_answer(store, monkeypatch, is_of_member)
    joining = asyncio.ensure_future(join_group(Member(store)))
    await lost.wait()
    if is_cancelled:
        joining.cancel()
    with pytest.raises((MetadataUnavailableError, asyncio.CancelledError)):
        await joining
    assert joining.cancelled() is is_cancelled
    await until(lambda: not store.env.late_tasks)
    assert await group_of(other).members() == set()


async def test_a_member_of_whose_end_nobody_heard_leaves_all_the_same(
    stores: tuple[MemoryStore, MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = stores
    member = await joined(store)
    members_nodes: Any = member._nodes  # its store fails for so long, however often it asks
    release, asked = members_nodes.release, []

    async def not_release(partition: int, who: str) -> None:
        asked.append(partition)
        if len(asked) < 8:
            raise MetadataUnavailableError("no answer")
        await release(partition, who)

    monkeypatch.setattr(members_nodes, "release", not_release)
    await member.close()
    await until(lambda: not store.env.late_tasks)
    assert await group_of(other).members() == set()
    assert await group_of(other).claims() == {}


@pytest.mark.parametrize("then", ["unchanged", "elsewhere", "back"])
@pytest.mark.parametrize("is_done", [True, False], ids=["answer-lost", "never-sent"])
@pytest.mark.parametrize("step", ["claim", "release"])
async def test_a_partition_is_handed_out_by_whoever_has_its_claim(
    stores: tuple[MemoryStore, MemoryStore],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_done: bool,
    then: str,
) -> None:
    """A step of which its member does not hear, and what is decided before it asks again."""
    store, other = stores
    member, group = Member(store, 2), group_of(other)
    rivals = "rival", "rival-too"
    members_nodes = member._nodes  # one step of its own fails
    work, went_wrong = getattr(members_nodes, step), asyncio.Event()

    async def assign(*numbers: int, rival: str = "") -> None:
        """Store what members are to have, as if they had come to it."""
        if rival:
            await other.create(f"{group.path}/members/{rival}", ephemeral=True)
        for name in set(rivals) - {rival}:
            await group.leave(name)
        state, revision, _live = await group.look()
        given = {member.member: numbers}
        if rival:
            given[rival] = tuple({0, 1} - {*numbers})
        await group.rebalance(GroupState(state.generation + 1, given), revision)

    async def hear_nothing(number: int, *others: Any) -> Any:
        if went_wrong.is_set() or number != 1:
            return await work(number, *others)
        went_wrong.set()
        if is_done:
            await work(number, *others)
        if (step, then) in (("claim", "elsewhere"), ("release", "unchanged")):
            await assign(0, rival=rivals[1])
        elif then == "elsewhere":
            await assign(0, rival=rivals[0])
        elif then == "back":
            await assign(0, 1)
        raise MetadataUnavailableError("no answer")

    if step == "claim":
        monkeypatch.setattr(members_nodes, step, hear_nothing)
    await join_group(member)
    if step == "release":
        await until(lambda: len(member.assignment) == 2)
        monkeypatch.setattr(members_nodes, step, hear_nothing)
        await assign(0, rival=rivals[0])
    await went_wrong.wait()
    is_elsewhere = then == "elsewhere" or (step, then) == ("release", "unchanged")
    mine = {0} if is_elsewhere else {0, 1}

    async def is_so() -> bool:
        return member.assignment == mine == {*await group.claims()}

    await until(is_so)
    assert {*(await group.claims()).values()} == {member.member}
    await member.close()


class Hindered(Member):
    """A member that cannot open one partition."""

    def __init__(self, store: MemoryStore, *errors: Exception) -> None:
        super().__init__(store)
        self.errors = [*errors]

    async def _open_share(self, number: int) -> None:
        if number == 1 and self.errors:
            raise self.errors.pop()
        await super()._open_share(number)


async def test_a_partition_that_cannot_be_opened_for_a_moment_is_opened_later(
    stores: tuple[MemoryStore, MemoryStore],
) -> None:
    store, other = stores
    member = Hindered(store, *(ReadFailedError("all replicas are away") for _ in range(3)))
    await join_group(member)
    await until(lambda: len(member.assignment) == 4)
    assert sorted(member.opened) == [0, 1, 2, 3]
    assert await member.read(wait_s=0) == []
    rival = await join_group(Member(other))
    await until(lambda: len(member.assignment) == len(rival.assignment) == 2)
    await rival.close()
    await member.close()


async def test_what_a_member_cannot_get_over_is_told(
    stores: tuple[MemoryStore, MemoryStore],
) -> None:
    member = Hindered(stores[0], NoSuchEntryError("it is gone"))
    await join_group(member)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NoSuchEntryError):
            await member.read(wait_s=None)
    await member.close()
