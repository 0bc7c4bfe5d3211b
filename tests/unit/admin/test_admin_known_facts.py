"""What is known of a cluster is kept, and read again: before the answer, or behind it."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.admin.facts.cluster import LedgerFacts
from quorumbook.admin.http import known_facts
from quorumbook.admin.http.known_facts import KnownFacts
from quorumbook.errors import MetadataUnavailableError


class World:
    """A cluster that counts how often its ledgers are read, and lets each reading wait."""

    def __init__(self) -> None:
        self.walks = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.error: Exception | None = None

    async def survey(self, _store: object) -> LedgerFacts:
        self.walks += 1
        found = LedgerFacts(ledgers=self.walks)
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return found


@pytest.fixture
async def known(monkeypatch):
    world = World()

    async def facts(_store: object, *, ledgers: LedgerFacts) -> LedgerFacts:
        return ledgers

    async def store() -> object:
        return object()

    monkeypatch.setattr(known_facts, "survey", world.survey)
    monkeypatch.setattr(known_facts, "cluster_facts", facts)
    found = KnownFacts(store)
    yield found, world
    await found.close()


@pytest.fixture
def all_is_old(monkeypatch):
    monkeypatch.setattr(known_facts, "SURVEY_S", -1.0)


async def _until_waiting(world: World, walks: int) -> None:
    while world.walks < walks:
        await asyncio.sleep(0)


async def _walks_of(known: KnownFacts, *, takes_old: bool = False) -> int:
    return (await known.get(takes_old=takes_old)).ledgers


async def test_many_who_ask_at_once_wait_for_one_reading(known):
    facts, world = known
    assert await asyncio.gather(*(_walks_of(facts) for _ in range(20))) == [1] * 20
    assert await _walks_of(facts) == 1
    assert world.walks == 1


@pytest.mark.usefixtures("all_is_old")
async def test_a_page_takes_what_is_old_and_has_it_read_again(known):
    facts, world = known
    facts.read_ahead()
    await _until_waiting(world, 1)
    await asyncio.sleep(0)
    world.may_end.clear()
    assert await _walks_of(facts, takes_old=True) == 1  # it does not wait for the second
    await _until_waiting(world, 2)
    assert await _walks_of(facts, takes_old=True) == 1
    assert world.walks == 2
    world.may_end.set()
    while await _walks_of(facts, takes_old=True) == 1:
        await asyncio.sleep(0)


async def test_a_program_waits_where_what_is_known_is_old(known, monkeypatch):
    facts, _ = known
    assert await _walks_of(facts) == 1
    ages = iter([-1.0, 30.0])
    monkeypatch.setattr(type(facts), "_is_young", lambda _self, _known: next(ages) > 0)
    assert await _walks_of(facts) == 2


async def test_after_a_change_a_page_waits_for_what_was_read_since(known):
    facts, _ = known
    assert await _walks_of(facts, takes_old=True) == 1
    facts.forget()
    assert await _walks_of(facts, takes_old=True) == 2


async def test_a_reading_that_began_before_a_change_does_not_count(known):
    facts, world = known
    world.may_end.clear()
    first = asyncio.create_task(_walks_of(facts))
    await _until_waiting(world, 1)
    facts.forget()
    second = asyncio.create_task(_walks_of(facts, takes_old=True))
    await asyncio.sleep(0)
    world.may_end.set()
    assert await first == 1  # who asked before the change is not kept waiting
    assert await second == 2


async def test_one_who_leaves_takes_the_reading_from_nobody(known):
    facts, world = known
    world.may_end.clear()
    leaving, staying = (asyncio.create_task(_walks_of(facts)) for _ in range(2))
    await _until_waiting(world, 1)
    leaving.cancel()
    world.may_end.set()
    assert await staying == 1


async def test_a_failure_is_told_and_the_next_tries_again(known):
    facts, world = known
    world.error = MetadataUnavailableError("away")
    with pytest.raises(MetadataUnavailableError):
        await facts.get()
    world.error = None
    assert await _walks_of(facts) == 2


async def test_nobody_hears_of_a_failure_of_what_was_read_ahead(known, caplog):
    facts, world = known
    world.error = MetadataUnavailableError("away")
    facts.read_ahead()
    while not caplog.records:
        await asyncio.sleep(0)
    assert "could not be read: away" in caplog.text
