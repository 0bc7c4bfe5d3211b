"""Lost answers of ZooKeeper while a rival does the same: who is told "done" is who did it.

A real ZooKeeper behind a proxy that loses the request or its answer; the client is away until its
rival has written, or not; its session may end meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from doubles.zookeeper_cut import FATES, cut_store
from doubles.zookeeper_proxy import Mishap
from quorumbook.errors import (
    MetadataError,
    MetadataFateUnknownError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.store import Check, Create, Delete, Node, Set

pytestmark = pytest.mark.faults

SAME, OTHER = b"same", b"other"


@pytest.fixture
async def pair(zookeeper):
    async with cut_store(zookeeper) as pair:
        yield pair


async def _busy(store):
    """Have the server of a store waited for: what is written meanwhile is joined to one step."""
    waiting = asyncio.ensure_future(store.get("/"))
    await asyncio.sleep(0)
    return waiting


async def _first_of(writes):
    told = await asyncio.gather(*writes, return_exceptions=True)
    if isinstance(told[0], BaseException):
        raise told[0]
    return told[0]


async def _create_beside_others(store, data):
    waiting = await _busy(store)
    try:
        return await _first_of(store.create_node(path, data) for path in ("/new", "/x", "/y"))
    finally:
        waiting.cancel()


async def _set_beside_another(store, data):
    nodes = [await store.get(path) for path in ("/a", "/b")]
    claim = _first_of(
        store.set(path, data, 0, creation_id=node.creation_id)
        for path, node in zip(("/a", "/b"), nodes, strict=True)
    )
    waiting = await _busy(store)
    try:
        return await claim
    finally:
        waiting.cancel()


#: What each of several clients does to be the one that did it.
CLAIMS = {
    "set": lambda store, data: store.set("/a", data, 0),
    "create": lambda store, data: store.create("/new", data),
    "multi of sets": lambda store, data: store.multi([Set("/a", data, 0), Set("/b", data, 0)]),
    "multi with a creation": lambda store, data: store.multi(
        [Set("/a", b"", 0), Create("/new", data)]
    ),
    "multi with a deletion": lambda store, data: store.multi(
        [Check("/a", 0), Delete("/gone", 0), Create("/new", data)]
    ),
    "multi with an ephemeral node": lambda store, data: store.multi(
        [Check("/a", 0), Create("/new", data, ephemeral=True)]
    ),
    "creation beside others": _create_beside_others,
    "set beside another": _set_beside_another,
    "multi of creations": lambda store, data: store.multi(
        [Create("/new", data), Create("/other", data)]
    ),
}
RIVALS = {"nobody": None, "same bytes": SAME, "other bytes": OTHER}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("claim", CLAIMS)
async def test_of_two_that_do_the_same_by_version_one_at_most_is_told_that_it_did(
    zookeeper, claim, rival
):
    for mishap, is_over in FATES:
        async with cut_store(zookeeper) as pair:
            await assert_one_winner(*pair, claim, rival, mishap, is_over)


async def assert_one_winner(cut, mine, theirs, claim, rival, mishap, is_over):
    for path in ("/a", "/b", "/gone"):
        await theirs.create(path, b"old")
    await mine.get("/a")
    winners = []

    async def ours():
        result = await CLAIMS[claim](mine, SAME)
        winners.append(SAME)
        return result

    async def rivals():
        with contextlib.suppress(MetadataError):
            await CLAIMS[claim](theirs, RIVALS[rival])
            winners.append(RIVALS[rival])

    overtaking = None if RIVALS[rival] is None else rivals
    told = await cut.overtaken(ours, mishap, overtaking, is_over=is_over)
    story = (mishap, is_over, told, winners)
    assert len(winners) <= 1, story
    is_ephemeral = "ephemeral" in claim
    if mishap is Mishap.NOT_ANSWERED and not (is_over and is_ephemeral):
        # It was done before the rival came, and is told so or that nobody can tell.
        assert winners == [SAME] or isinstance(told, MetadataFateUnknownError), story
    elif rival == "nobody" and not is_over:
        assert winners == [SAME], story
    if winners:
        path = "/a" if claim in ("set", "multi of sets", "set beside another") else "/new"
        for store in (mine, theirs):
            assert (await store.get(path)).data == winners[0], story
    if isinstance(told, SessionExpiredError):
        # Then it was not done; doing it again in another session is right.
        assert not (mishap is Mishap.NOT_ANSWERED and not is_ephemeral), story


async def test_a_rivals_same_bytes_are_not_taken_for_ones_own(pair):
    cut, mine, theirs = pair
    await theirs.create("/a", b"old")
    told = await cut.overtaken(
        lambda: mine.set("/a", SAME, 0), Mishap.NOT_SENT, lambda: theirs.set("/a", SAME, 0),
        is_over=False,
    )  # fmt: skip
    assert isinstance(told, MetadataFateUnknownError)


@pytest.mark.parametrize("mishap", [Mishap.NOT_SENT, Mishap.NOT_ANSWERED])
async def test_a_node_that_was_made_again_meanwhile_is_another_one(pair, mishap):
    cut, mine, theirs = pair
    await theirs.create("/a", b"old")
    node = await mine.get("/a")

    async def make_again():
        await theirs.delete("/a")
        await theirs.create("/a", b"old")

    told = await cut.overtaken(
        lambda: mine.set("/a", SAME, 0, creation_id=node.creation_id), mishap, make_again,
        is_over=False,
    )  # fmt: skip
    assert isinstance(told, MetadataError)
    assert (await theirs.get("/a")).data == b"old"


async def test_creations_of_one_session_whose_answers_are_lost_are_one(pair):
    cut, mine, _ = pair

    def create_thrice():
        creations = (mine.create("/e", SAME, ephemeral=True) for _ in range(3))
        return asyncio.gather(*creations, return_exceptions=True)

    told = await cut.overtaken(create_thrice, Mishap.NOT_ANSWERED, None, is_over=False)
    assert [each for each in told if each == "/e"] == ["/e"]


async def test_a_replacement_of_a_node_between_look_and_write_is_a_conflict(pair, monkeypatch):
    """ZooKeeper compares no creation: the answer says that it was another node."""
    _, mine, theirs = pair
    await theirs.create("/a", b"old")
    node = await mine.get("/a")
    look = mine._check_named  # a rival comes between two steps of one write

    async def replaced_after(operations):
        await look(operations)
        await theirs.delete("/a")
        await theirs.create("/a", b"new")

    monkeypatch.setattr(mine, "_check_named", replaced_after)
    with pytest.raises(MetadataVersionConflict, match="made again"):
        await mine.set("/a", SAME, 0, creation_id=node.creation_id)
    node = await mine.get("/a")
    with pytest.raises(MetadataVersionConflict, match="made again"):
        await mine.multi([Set("/a", SAME, 0, node.creation_id)])


async def test_writes_beside_each_other_are_one_step_and_stand_for_themselves(pair, monkeypatch):
    _, mine, theirs = pair
    steps = []
    write_step = mine._write_step  # how many requests there are is not to be seen otherwise

    async def noted(writes):
        steps.append([each.operation.path for each in writes])
        await write_step(writes)

    # It was handed on when the store was opened.
    monkeypatch.setattr(mine._joined, "_send", noted)
    made = await theirs.create_node("/a", b"old")
    await theirs.create_node("/there", b"")
    waiting = await _busy(mine)
    told = await asyncio.gather(
        *(mine.create_node(path, path.encode()) for path in ("/x", "/there", "/y", "/y", "/up/z")),
        mine.create_node("/large", bytes(9000)),
        return_exceptions=True,
    )
    await waiting
    # Of those who create the same node one goes alone, and the large one does; the step is refused
    # because of a node that is there.
    assert steps == [["/x", "/there", "/y", "/up/z"]]
    x, there, *twins, orphan, large = told
    assert isinstance(there, NodeExistsError)
    assert isinstance(orphan, NoSuchNodeError)
    (y,) = (each for each in twins if isinstance(each, Node))
    assert sum(isinstance(each, NodeExistsError) for each in twins) == 1
    for node, path in ((x, "/x"), (y, "/y"), (large, "/large")):
        assert node == await theirs.get(path)

    waiting = await _busy(mine)
    told = await asyncio.gather(
        mine.set("/a", b"new", 0, creation_id=made.creation_id),
        mine.set("/x", b"new", 3, creation_id=x.creation_id),
        mine.set("/y", b"new", 0, creation_id=made.creation_id),
        mine.set("/there", b"new", 0, creation_id=(await theirs.get("/there")).creation_id),
        return_exceptions=True,
    )
    await waiting
    assert told[0] == told[3] == 1
    assert [type(each) for each in told[1:3]] == [MetadataVersionConflict] * 2
