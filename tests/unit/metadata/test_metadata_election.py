"""One candidate of an election whose store misbehaves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from doubles.waiting import until
from quorumbook.errors import MetadataFormatError, MetadataUnavailableError, SessionExpiredError
from quorumbook.metadata import nodes
from quorumbook.metadata.election import Election

PATH = "/election"


@pytest.fixture
async def election(store):
    candidate = Election(store, PATH, "b1")
    yield candidate
    await candidate.resign()


async def test_a_vote_whose_answer_was_lost_is_not_cast_twice(store, election, monkeypatch):
    await store.create(PATH)
    create = store.create
    lost = []

    async def lose_answer(path, *arguments, **options):
        lost.append(await create(path, *arguments, **options))
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(store, "create", lose_answer)
    election.stand()
    await until(lambda: lost)
    monkeypatch.undo()
    await until(lambda: election.is_leader)
    assert lost == [f"{PATH}/V_0000000000"]
    assert await store.children(PATH) == ["V_0000000000"]


async def test_s77_nobody_leads_whose_session_ended_while_it_began_to(store, election, monkeypatch):
    put = store.set

    async def set_and_lose_the_session(*arguments):
        monkeypatch.undo()
        await put(*arguments)
        store._shared.extend(store.session_id, 0)  # a session that ends, and the name of a vote
        with contextlib.suppress(SessionExpiredError):
            await store.create("/a")

    monkeypatch.setattr(store, "set", set_and_lose_the_session)
    told = []
    # A session that ends, and the name of a vote.
    election.on_changed = lambda is_leader: told.append((is_leader, election._vote))
    election.stand()
    await until(lambda: told)
    assert told == [(True, f"{PATH}/V_0000000001")]


async def test_a_store_that_does_not_answer_takes_no_leadership_away(store, election, monkeypatch):
    election.stand()
    await until(lambda: election.is_leader)
    told, asked = [], []
    election.on_changed = told.append

    async def no_answer(*_arguments):
        asked.append(True)
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(store, "children", no_answer)
    await store.create(f"{PATH}/other")
    await until(lambda: asked)
    monkeypatch.undo()
    assert election.is_leader
    await store.delete(election._vote)  # a session that ends, and the name of a vote
    await until(lambda: told == [False, True])


async def test_a_damaged_vote_is_said_to_be_one(store, election):
    await store.create(PATH)
    await store.create(f"{PATH}/V_0000000000", b"\xff")
    with pytest.raises(MetadataFormatError, match="V_0000000000"):
        await election.leader()


async def test_numbers_of_votes_are_compared_as_signed_ones(store, election):
    await store.create(PATH)
    for name, who in (("0000000003", "b3"), ("-2147483647", "b2"), ("-2147483648", "b1")):
        await store.create(f"{PATH}/V_{name}", f'bookieId: "{who}"\n'.encode())
    assert await election.leader() == "b1"


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_who_resigns_leads_no_more_though_nobody_hears_of_it(
    store, open_memory, monkeypatch, is_cancelled
):
    monkeypatch.setattr(nodes, "_GIVE_UP_AGAIN_S", 0.001)
    candidate, other = Election(store, PATH, "b1"), Election(await open_memory(), PATH, "b2")
    candidate.stand()
    await until(lambda: candidate.is_leader)
    other.stand()
    await until(lambda: other.has_vote)
    delete, asked, go_on = store.delete, [], asyncio.Event()

    async def delete_at_last(*arguments):
        asked.append(True)
        if is_cancelled:
            await go_on.wait()
        elif len(asked) < 3:
            raise MetadataUnavailableError("no answer")
        await delete(*arguments)

    monkeypatch.setattr(store, "delete", delete_at_last)
    resigning = asyncio.ensure_future(candidate.resign())
    await until(lambda: asked)
    if is_cancelled:
        resigning.cancel()
    await asyncio.gather(resigning, return_exceptions=True)
    go_on.set()
    await until(lambda: other.is_leader)
    await other.resign()
