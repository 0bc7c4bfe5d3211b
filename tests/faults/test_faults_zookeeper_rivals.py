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
    SessionExpiredError,
)
from quorumbook.metadata.store import Check, Create, Delete, Set

pytestmark = pytest.mark.faults

SAME, OTHER = b"same", b"other"


@pytest.fixture
async def pair(zookeeper):
    async with cut_store(zookeeper) as pair:
        yield pair


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
        path = "/a" if claim in ("set", "multi of sets") else "/new"
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
