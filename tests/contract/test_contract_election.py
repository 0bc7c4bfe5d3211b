"""Elections between several processes, over all drivers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from metadata_bells import settle

from doubles.waiting import until
from quorumbook.errors import LocalProtocolError, SessionExpiredError
from quorumbook.metadata.election import Election, named_election

PATH = "/election"
VOTES = json.loads((Path(__file__).parents[1] / "golden" / "zookeeper.json").read_text())[
    "underreplication_payloads"
]
GOLDEN = next(each["utf8"].encode() for each in VOTES if each["what"] == "auditor vote")


@pytest.fixture
async def stand(driver):
    """Let one more candidate stand and wait until its vote is cast."""
    made = []

    async def one(store, name):
        candidate = Election(store, PATH, name)
        made.append(candidate)
        candidate.stand()
        await until(lambda: candidate._vote is not None)  # the name of a vote is the store's affair
        return candidate

    yield one
    for candidate in made:
        await candidate.resign()


async def test_the_first_vote_leads_in_the_peers_bytes(store, other, stand):
    first = await stand(store, "192.0.2.1:3181")
    await until(lambda: first.is_leader)
    second = await stand(other, "b2")
    assert await other.children(PATH) == ["V_0000000000", "V_0000000001"]
    vote = await other.get(f"{PATH}/V_0000000000")
    assert vote.data == GOLDEN == (await other.get(PATH)).data
    assert vote.owner == store.session_id
    assert await second.leader() == await first.leader() == "192.0.2.1:3181"
    assert not second.is_leader


async def test_a_leader_that_resigns_is_followed_by_the_next(driver, store, other, stand):
    first = await stand(store, "b1")
    second = await stand(other, "b2")
    third = await stand(await driver.open(), "b3")
    await until(lambda: first.is_leader)
    told = []
    first.on_changed = told.append
    await first.resign()
    assert told == [False]
    await until(lambda: second.is_leader)
    assert not first.is_leader
    assert not third.is_leader
    assert await third.leader() == "b2"
    assert (await other.get(PATH)).data == b'bookieId: "b2"\n'


async def test_s77_a_leader_whose_session_ends_is_told_first_and_stands_again(
    driver, store, other, stand
):
    first = await stand(store, "b1")
    second = await stand(other, "b2")
    await until(lambda: first.is_leader)
    told = []
    first.on_changed = told.append
    await driver.end_lease(store)
    with contextlib.suppress(SessionExpiredError):
        await store.create("/a")
    assert told == [False]
    await until(lambda: second.is_leader)
    await until(lambda: first._vote is not None)  # the name of a vote is the store's affair
    assert not first.is_leader
    assert len(await other.children(PATH)) == 2
    await second.resign()
    await until(lambda: first.is_leader)
    assert told == [False, True]


async def test_one_in_the_middle_that_goes_makes_nobody_leader(driver, store, other, stand):
    first = await stand(store, "b1")
    second = await stand(other, "b2")
    last_store = await driver.open()
    third = await stand(last_store, "b3")
    await until(lambda: first.is_leader)
    await second.resign()
    assert len(await store.children(PATH)) == 2
    assert await third.leader() == "b1"
    # The third now watches the first: it follows when that one goes.
    await first.resign()
    await until(lambda: third.is_leader)


async def test_a_leader_that_goes_wakes_only_the_next(driver, store, other, stand, monkeypatch):
    first = await stand(store, "b1")
    second = await stand(other, "b2")
    last_store = await driver.open()
    await stand(last_store, "b3")
    await settle(driver, last_store)
    looks = []
    children = last_store.children

    async def look(*arguments):
        looks.append(arguments)
        return await children(*arguments)

    monkeypatch.setattr(last_store, "children", look)
    await first.resign()
    await until(lambda: second.is_leader)
    await settle(driver, last_store)
    assert looks == []


async def test_a_vote_that_somebody_deletes_is_cast_again_behind_the_others(store, other, stand):
    first = await stand(store, "b1")
    second = await stand(other, "b2")
    await until(lambda: first.is_leader)
    await other.delete(f"{PATH}/V_0000000000")
    await until(lambda: second.is_leader and not first.is_leader)
    # The name of a vote is the store's affair.
    await until(lambda: first._vote == f"{PATH}/V_0000000002")


# Nothing from outside sets a ZooKeeper's counter.
@pytest.mark.parametrize("driver", ["etcd", "memory", "sqlite"], indirect=True)
async def test_numbers_that_begin_anew_are_negative_and_lead(driver, store, other, stand):
    first = await stand(store, "b1")
    await until(lambda: first.is_leader)
    await driver.set_counter(PATH, 2**31)
    second = await stand(other, "b2")
    assert second._vote == f"{PATH}/V_-2147483648"  # the name of a vote is the store's affair
    await until(lambda: second.is_leader and not first.is_leader)
    assert await first.leader() == "b2"


async def test_without_a_vote_nobody_leads(store, stand):
    assert await Election(store, PATH, "b1").leader() is None
    only = await stand(store, "b1")
    await store.create(f"{PATH}/other")
    await only.resign()
    assert await only.leader() is None
    assert await store.children(PATH) == ["other"]
    only.stand()
    await until(lambda: only.is_leader)


async def test_who_waits_to_lead_or_to_lose_is_told(driver, store, other):
    parent = "/some/elections"
    async with named_election(store, parent, "compactor", "a") as first:
        await first.wait_to_lead()
        second = named_election(other, parent, "compactor", "")
        with pytest.raises(LocalProtocolError, match="does not stand"):
            await second.wait_to_lead()
        async with second:
            leading = asyncio.ensure_future(second.wait_to_lead())
            await until(lambda: second.has_vote)
            assert await second.leader() == "a"
            losing = asyncio.ensure_future(first.wait_to_lose())
            await asyncio.sleep(0)
            assert not leading.done()
            assert not losing.done()
            await first.resign()
            async with asyncio.timeout(60):
                await losing
                await leading
            assert await first.leader() == second.candidate != ""
            # Another name is another election.
            third = named_election(store, parent, "other", "c")
            async with third:
                await third.wait_to_lead()
            assert second.is_leader


async def test_who_waits_to_lead_is_told_that_its_candidate_resigned(driver, store, other):
    async with named_election(store, "/e", "x", "a") as first:
        await first.wait_to_lead()
        second_store = await driver.open()
        second = named_election(second_store, "/e", "x", "b")
        second.stand()
        await until(lambda: second.has_vote)
        leading = asyncio.ensure_future(second.wait_to_lead())
        await asyncio.sleep(0)
        await second.resign()
        with pytest.raises(LocalProtocolError, match="b does not stand"):
            await leading


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\0"])
async def test_an_election_has_one_name_of_a_path(store, name):
    with pytest.raises(LocalProtocolError):
        named_election(store, "/e", name, "a")
