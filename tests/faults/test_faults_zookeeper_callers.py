"""Every contended change of the metadata, cut off from a real ZooKeeper and overtaken by a rival.

Each of ``doubles.contended_changes`` is done by two clients, of which the first loses, at each of
its writes, the request, or the answer, or its session with it.  Who returns has made the change,
and it is there; where only one can have made it, one has.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from doubles.contended_changes import CHANGES, Change
from doubles.waiting import until
from doubles.zookeeper_cut import FATES, Uncut, cut_store
from doubles.zookeeper_proxy import Mishap
from quorumbook.errors import MetadataError, QuorumbookError
from quorumbook.metadata.election import Election, current_leader
from quorumbook.metadata.nodes import create_with_parents

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("is_contended", [True, False], ids=["rival", "nobody"])
@pytest.mark.parametrize("name", CHANGES)
async def test_who_returns_from_a_change_has_made_it_whatever_is_lost(
    zookeeper: Any, name: str, is_contended: bool
) -> None:
    for mishap, is_over in FATES:
        skip = 0
        while True:
            async with cut_store(zookeeper) as pair:
                fate = (mishap, is_over, skip)
                if not await was_cut_and_made(*pair, CHANGES[name], fate, is_contended):
                    break
            skip += 1
        assert skip, "nothing was written"


async def was_cut_and_made(
    cut: Any, mine: Any, theirs: Any, change: Change, fate: tuple[Mishap, bool, int],
    is_contended: bool,
) -> bool:  # fmt: skip
    """Assert what was told; False: it never made so many writes."""
    mishap, is_over, skip = fate
    given = await change.prepare(theirs)
    await mine.exists("/")  # it has seen what the change is based on
    done = []

    async def make(store: Any, who: str) -> Any:
        told = await change.make(store, who, given)
        if told is not False:
            done.append(who)
        return told

    async def rival() -> None:
        with contextlib.suppress(QuorumbookError):
            await make(theirs, "theirs")

    told = await cut.overtaken(
        lambda: make(mine, "mine"), mishap, rival if is_contended else None, is_over=is_over,
        skip=skip,
    )  # fmt: skip
    if isinstance(told, Uncut):
        return False
    story = (fate, told, done)
    if change.is_exclusive:
        assert len(done) <= 1, story
    for who in done:
        assert await change.holds(theirs, who, given), story
    assert not isinstance(told, Exception) or isinstance(told, QuorumbookError), story
    if not is_contended and not is_over and not isinstance(told, MetadataError):
        assert done == ["mine"], story
    return True


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("mishap", [Mishap.NOT_SENT, Mishap.NOT_ANSWERED])
async def test_of_two_candidates_one_leads_and_no_vote_is_left_whatever_is_lost(
    zookeeper: Any, mishap: Mishap, is_over: bool
) -> None:
    for skip in range(2):
        async with cut_store(zookeeper) as (cut, mine, theirs):
            await create_with_parents(theirs, "/election")
            candidates = Election(mine, "/election", "b1"), Election(theirs, "/election", "b2")
            await cut.overtaken(
                lambda each=candidates[0]: stand(each), mishap,
                lambda each=candidates[1]: stand(each), is_over=is_over, skip=skip,
            )  # fmt: skip
            await stand(candidates[1])
            leader, other = await leader_and_other(*candidates)
            assert await current_leader(theirs, "/election") == leader.candidate
            await leader.resign()
            await other.wait_to_lead()
            await other.resign()
            assert await theirs.children("/election") == []


async def stand(candidate: Election) -> None:
    candidate.stand()
    await until(lambda: candidate.has_vote, "a vote")


async def leader_and_other(first: Election, second: Election) -> tuple[Election, Election]:
    def is_decided() -> bool:
        return first.has_vote and second.has_vote and first.is_leader != second.is_leader

    await until(is_decided, "the election")
    return (first, second) if first.is_leader else (second, first)
