"""What ``lost_writes`` says, against every short history of a tree with two clients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from quorumbook.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    Set,
    split,
)
from quorumbook.metadata.zookeeper.lost_writes import Fate, Sight, settle

OURS, THEIRS = 7, 8
#: Zxids up to here were answered before the write was sent.
LOW = 10
MINE, OTHER = b"same", b"other"


class RefusedError(Exception):
    """The operation cannot be carried out."""


@dataclass
class ModelTree:
    """A tree as ZooKeeper keeps it, with the zxids of its changes."""

    nodes: dict[str, Sight] = field(default_factory=dict)
    zxid: int = 1

    def __post_init__(self) -> None:
        self.nodes["/"] = Sight(Node(b"", 0, 0, 0, 0, 0, 0, 0), 0, 0)

    def carry_out(self, operations: Sequence[Operation], session: int) -> bool:
        """Do all or nothing; tell which."""
        before = dict(self.nodes)
        self.zxid += 1
        try:
            for each in operations:
                self._apply(each, session)
        except RefusedError:
            self.nodes = before
            return False
        return True

    def end_session(self, session: int) -> None:
        owned = [path for path, sight in self.nodes.items() if sight.node.owner == session]
        self.carry_out([Delete(path) for path in owned], 0)

    def _apply(self, operation: Operation, session: int) -> None:
        path = operation.path
        sight = self.nodes.get(path)
        if isinstance(operation, Create):
            if sight is not None:
                raise RefusedError
            owner = session if operation.ephemeral else 0
            node = Node(operation.data, 0, 0, self.zxid, owner, 0, 0, 0)
            self.nodes[path] = Sight(node, self.zxid, self.zxid)
            self._touch(path)
            return
        if sight is None or operation.version not in (ANY_VERSION, sight.node.version):
            raise RefusedError
        if isinstance(operation, Set):
            node = replace(sight.node, data=operation.data, version=sight.node.version + 1)
            self.nodes[path] = sight._replace(node=node, modified_zxid=self.zxid)
        elif isinstance(operation, Delete):
            del self.nodes[path]
            self._touch(path)

    def _touch(self, path: str) -> None:
        parent, _ = split(path)
        self.nodes[parent] = self.nodes[parent]._replace(children_zxid=self.zxid)


@dataclass
class ModelEyes:
    """Looks at a model."""

    tree: ModelTree
    window: tuple[int, int]
    session_id: int = OURS
    claimed: set[tuple[str, int]] = field(default_factory=set)

    async def look(self, path: str) -> Sight | None:
        return self.tree.nodes.get(path)

    async def children(self, path: str) -> list[str]:
        return [name for each in self.tree.nodes for at, name in [split(each)] if at == path]


def started(*, with_a: bool, with_b: bool) -> ModelTree:
    tree = ModelTree()
    for path, is_there in (("/a", with_a), ("/b", with_b)):
        if is_there:
            tree.carry_out([Create(path, b"old")], 0)
    tree.zxid = LOW
    return tree


SINGLE: list[list[Operation]] = [
    [Set("/a", MINE, 0)],
    [Set("/a", MINE)],
    [Delete("/a", 0)],
    [Create("/a", MINE)],
    [Create("/a", MINE, ephemeral=True)],
    [Set("/a", MINE, 1)],
]
MULTI: list[list[Operation]] = [
    [Set("/a", MINE, 0), Create("/b", MINE)],
    [Set("/a", MINE, 0), Set("/b", MINE, 0)],
    [Set("/a", MINE, 0), Delete("/b", 0)],
    [Delete("/a", 0), Create("/b", MINE)],
    [Delete("/a"), Create("/a", MINE, ephemeral=True)],
    [Delete("/a", 0), Create("/a", MINE), Set("/a", MINE)],
    [Check("/a", 0), Create("/b", MINE, ephemeral=True)],
    [Check("/a", 0), Delete("/b")],
    [Create("/a", MINE), Create("/b", MINE)],
    [Create("/a"), Delete("/a")],
]
RIVALS: list[list[Operation]] = [
    *([Set(path, data)] for path in ("/a", "/b") for data in (MINE, OTHER)),
    *([Create(path, data)] for path in ("/a", "/b") for data in (MINE, OTHER)),
    [Create("/a", MINE, ephemeral=True)],
    [Delete("/a")],
    [Delete("/b")],
]
#: Those of which two in a row are tried.
PAIRED: list[list[Operation]] = [
    [Set("/a", MINE)],
    [Create("/a", MINE)],
    [Create("/b", MINE)],
    [Delete("/a")],
]


def histories(ours: list[list[Operation]]):
    """Yield what each client asks for: the write, and what rivals do before and after it."""
    rows = [(), *((one,) for one in RIVALS), *itertools.product(PAIRED, PAIRED)]
    for operations, rivals in itertools.product(ours, rivals_of(rows, ours)):
        for place in range(len(rivals) + 1):
            yield operations, rivals[:place], rivals[place:]


def rivals_of(rows, ours):
    """Add what copies our write in every row, which is the hardest rival to tell from us."""
    yield from rows
    for each in ours:
        yield (each,)
        yield from ((each, then) for then in PAIRED)
        yield from ((first, each) for first in PAIRED)


async def judged(operations, before, after, *, is_sent, is_over, late, with_a, with_b):
    """Return what was judged, whether it was really done, and the tree that was seen."""
    tree = started(with_a=with_a, with_b=with_b)
    for rival in before:
        tree.carry_out(rival, THEIRS)
    is_done = is_sent and tree.carry_out(operations, OURS)
    if is_over:
        tree.end_session(OURS)
    rivals = list(after)
    barrier = None
    for number, rival in enumerate(rivals):
        if late and number == len(rivals) - 1:
            barrier = tree.zxid
        tree.carry_out(rival, THEIRS)
    eyes = ModelEyes(tree, (LOW, tree.zxid if barrier is None else barrier))
    return await settle(operations, eyes), is_done, tree


CASES = [
    pytest.param(is_sent, is_over, late, id=f"{'sent' if is_sent else 'unsent'}{'-over' * is_over}"
                 f"{'-late' * late}")
    for is_sent, is_over, late in itertools.product((True, False), repeat=3)
]  # fmt: skip


@pytest.mark.parametrize(("is_sent", "is_over", "late"), CASES)
@pytest.mark.parametrize("ours", [SINGLE, MULTI], ids=["single", "multi"])
async def test_who_is_told_done_has_done_it_and_who_is_told_not_done_has_not(
    ours, is_sent, is_over, late
):
    told = dict.fromkeys((*Fate, "done"), 0)
    for operations, before, after in histories(ours):
        for with_a, with_b in itertools.product((True, False), repeat=2):
            result, is_done, tree = await judged(
                operations, before, after,
                is_sent=is_sent, is_over=is_over, late=late, with_a=with_a, with_b=with_b,
            )  # fmt: skip
            told["done" if isinstance(result, list) else result] += 1
            story = (operations, before, after, with_a, with_b, result)
            if isinstance(result, list):
                assert is_done or is_as_good(operations, tree), story
            elif result is Fate.NOT_DONE and is_done:
                # Only where asking again makes or finds out the same.
                assert all(isinstance(each, Create | Check) for each in operations), story
                assert all(is_not_ours(each, tree) for each in operations), story
    assert told[Fate.NOT_DONE]
    assert told[Fate.UNKNOWN]


def is_as_good(operations, tree):
    """Tell whether nothing was compared that a rival could have been first at."""
    [operation] = operations
    sight = tree.nodes.get(operation.path)
    if isinstance(operation, Delete):
        return sight is None
    return operation == Set("/a", MINE) and sight is not None and sight.node.data == MINE


def is_not_ours(operation, tree):
    sight = tree.nodes.get(operation.path)
    return isinstance(operation, Check) or sight is None or sight.node.owner != OURS


@pytest.mark.parametrize("operations", [*SINGLE, *MULTI])
async def test_with_no_rival_a_write_that_was_not_sent_is_sent_again(operations):
    is_there = {each.path for each in operations if not isinstance(each, Create)}
    first = operations[0].path if not isinstance(operations[0], Create) else None
    result, is_done, _ = await judged(
        operations, (), (), is_sent=False, is_over=False, late=False,
        with_a="/a" in is_there and first != "/b", with_b="/b" in is_there,
    )  # fmt: skip
    assert not is_done
    assert result is Fate.NOT_DONE


async def test_an_ephemeral_node_proves_one_write_of_ours_and_no_second():
    tree = started(with_a=False, with_b=False)
    create = [Create("/a", MINE, ephemeral=True)]
    assert tree.carry_out(create, OURS)
    eyes = ModelEyes(tree, (LOW, tree.zxid))
    assert await settle(create, eyes) == ["/a"]
    assert await settle(create, eyes) is Fate.NOT_DONE


async def test_another_data_of_our_own_session_is_another_write():
    tree = started(with_a=False, with_b=False)
    assert tree.carry_out([Create("/a", OTHER, ephemeral=True)], OURS)
    eyes = ModelEyes(tree, (LOW, tree.zxid))
    assert await settle([Create("/a", MINE, ephemeral=True)], eyes) is Fate.NOT_DONE


@pytest.mark.parametrize("ephemeral", [True, False])
async def test_a_sequential_node_is_claimed_once_or_not_told(ephemeral):
    tree = started(with_a=False, with_b=False)
    operation = Create("/s-", MINE, ephemeral=ephemeral, sequential=True)
    eyes = ModelEyes(tree, (LOW, LOW))
    assert await settle([operation], eyes) is Fate.NOT_DONE
    made = Create("/s-0000000003", MINE, ephemeral=ephemeral)
    assert tree.carry_out([made], OURS)
    eyes = ModelEyes(tree, (LOW, tree.zxid))
    if ephemeral:
        assert await settle([operation], eyes) == [made.path]
        assert await settle([operation], eyes) is Fate.NOT_DONE
    else:
        assert await settle([operation], eyes) is Fate.UNKNOWN
