"""Writes asked for in one turn of the loop: which go in one step, and what each is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quorumbook.errors import NodeExistsError, RemoteProtocolError
from quorumbook.metadata.store import Create, Node, Set
from quorumbook.metadata.zookeeper.connection import AnswerLost
from quorumbook.metadata.zookeeper.joined_writes import JoinedWrite, JoinedWrites
from quorumbook.metadata.zookeeper.jute import Code, Op
from quorumbook.metadata.zookeeper.store import ZooKeeperStore
from quorumbook.sim.metadata import zookeeper_bytes as wire
from quorumbook.sim.metadata.zookeeper_state import Stat

NODE = Node(b"", 1, 0, 7, 0, 0, 0, 0)


class Steps:
    """Takes what goes in one step, and tells each that it was done."""

    def __init__(self) -> None:
        self.paths: list[list[str]] = []
        self.joined = JoinedWrites(self._send)

    async def _send(self, writes: Sequence[JoinedWrite]) -> None:
        self.paths.append([each.operation.path for each in writes])
        for each in writes:
            each.tell(NODE)

    def add(self, path: str) -> asyncio.Task[Node | AnswerLost | None]:
        return asyncio.ensure_future(self.joined.add(Create(path), 1))


async def test_what_is_asked_for_in_one_turn_goes_in_one_step():
    steps = Steps()
    assert await asyncio.gather(*map(steps.add, ("/a", "/b", "/c"))) == [NODE] * 3
    assert await asyncio.gather(*map(steps.add, ("/d", "/e"))) == [NODE] * 2
    assert steps.paths == [["/a", "/b", "/c"], ["/d", "/e"]]


async def test_one_by_itself_and_two_of_the_same_node_go_alone():
    steps = Steps()
    assert await steps.add("/a") is None
    assert await asyncio.gather(*map(steps.add, ("/a", "/b", "/a"))) == [NODE, NODE, None]
    assert steps.paths == [["/a", "/b"]]


async def test_what_nobody_waits_for_any_more_is_not_sent():
    steps = Steps()
    one, other, third = map(steps.add, ("/a", "/b", "/c"))
    await asyncio.sleep(0)
    other.cancel()
    assert await asyncio.gather(one, third) == [NODE] * 2
    assert steps.paths == [["/a", "/c"]]


async def test_a_step_has_few_operations_however_many_are_asked_for():
    steps = Steps()
    paths = [f"/{number}" for number in range(120)]
    await asyncio.gather(*map(steps.add, paths))
    assert [len(each) for each in steps.paths] == [50, 50, 20]
    assert [path for each in steps.paths for path in each] == paths


class Store(ZooKeeperStore):
    """A store whose server answers as it is told to."""

    def __init__(self, answer: bytes | Exception | None) -> None:
        self._answer = answer

    async def _answer_to_step(
        self, operations: Sequence[Create | Set], session_ids: set[int]
    ) -> bytes | None:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def answered(record: bytes) -> bytes:
    """Return an answer without its size."""
    return wire.answer(1, 9, Code.OK, record)[4:]


async def told(answer: bytes | Exception | None) -> list[object]:
    """Return what each of three is told."""
    loop = asyncio.get_running_loop()
    operations = (Create("/a", b"1"), Set("/b", b"2", 3), Create("/c", b"3"))
    writes = [JoinedWrite(each, 1, loop.create_future()) for each in operations]
    # The store's part in it; what is asked for is asked above it.
    await Store(answer)._write_step(writes)
    return [each.told.exception() or each.told.result() for each in writes]


@pytest.mark.parametrize("failed_at", [0, 1, 2])
async def test_of_a_step_that_is_refused_the_one_in_the_way_is_told_so_and_others_go_alone(
    failed_at: int,
):
    outcome = await told(answered(wire.multi_failure(3, failed_at, Code.NODE_EXISTS)))
    assert isinstance(outcome.pop(failed_at), NodeExistsError)
    assert outcome == [None, None]


async def test_each_of_a_step_is_told_its_node():
    stats = [
        Stat(czxid=n, mzxid=n, ctime_ms=0, mtime_ms=0, version=n, child_version=0, owner=0,
             data_size=0, children=0, pzxid=n)
        for n in (4, 5, 6)
    ]  # fmt: skip
    records = [
        wire.string("/a") + wire.stat(stats[0]),
        wire.stat(stats[1]),
        wire.string("/c") + wire.stat(stats[2]),
    ]
    kinds = (Op.CREATE2, Op.SET, Op.CREATE2)
    outcome = await told(answered(wire.multi_results(kinds, records)))
    assert [(each.creation_id, each.version) for each in outcome] == [(4, 4), (5, 5), (6, 6)]


async def test_a_lost_answer_leaves_each_alone_with_it():
    lost = AnswerLost("cut", 5)
    assert await told(lost) == [lost] * 3


async def test_where_nothing_was_sent_each_goes_alone():
    assert await told(None) == [None] * 3


@pytest.mark.parametrize("answer", [b"\0" * 20, answered(wire.multi_results((), ()))])
async def test_an_answer_that_cannot_be_understood_is_told_to_each(answer: bytes):
    outcome = await told(answer)
    assert all(isinstance(each, RemoteProtocolError) for each in outcome)
