"""The auditor and lost bookies, over all metadata drivers."""

from __future__ import annotations

import pytest

from doubles.ledger_book import LedgerBook
from doubles.waiting import until
from quorumbook.autorecovery.audits.auditor import Auditor
from quorumbook.autorecovery.options import AuditorOptions
from quorumbook.metadata.election import current_leader
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

#: What is named here is one away: b in 1 and 2, e in 3.
LEDGERS = {1: "abc", 2: "bcd", 3: "ace"}
DAY_S = 86400


@pytest.fixture
async def book(other):
    return LedgerBook(other)


@pytest.fixture
async def queue(other):
    return UnderreplicationQueue(other)


@pytest.fixture
async def auditors():
    """Start auditors, and stop them all in the end."""
    started = []

    def start(store, name="a1", **options):
        auditor = Auditor(store, name, AuditorOptions(**options), settle_s=0)
        started.append(auditor)
        auditor.start()
        return auditor

    yield start
    for auditor in started:
        await auditor.stop()


async def marks(queue):
    return {mark.ledger_id: set(mark.replicas) async for mark in queue.list()}


async def until_marked(queue, wanted):
    async def is_so():
        return await marks(queue) == wanted

    await until(is_so)


async def until_number(auditor, name, number):
    async def is_so():
        return {**auditor.numbers.gauges, **auditor.numbers.counters}[name] == number

    await until(is_so)


async def until_audited(auditor, times=1):
    async def is_so():
        return auditor.numbers.times["AUDIT_BOOKIES_TIME", True][0] >= times

    await until(is_so)


async def test_s70_what_a_bookie_held_that_died_before_the_auditor_is_marked(
    store, book, queue, auditors
):
    await book.init("abcd", LEDGERS)
    auditor = auditors(store)
    await until_marked(queue, {3: {"e"}})
    await until_audited(auditor)
    assert auditor.numbers.gauges["NUM_LOST_BOOKIES"] == 1
    assert auditor.numbers.gauges["NUM_UNDER_REPLICATED_LEDGERS"] == 1
    assert auditor.numbers.gauges["UNDER_REPLICATED_LEDGERS_TOTAL_SIZE"] == 1000


async def test_what_a_bookie_held_that_goes_is_marked(store, book, queue, auditors):
    await book.init("abcde", LEDGERS)
    auditor = auditors(store)
    await until_audited(auditor)
    assert await marks(queue) == {}
    await book.leave("b")
    await until_marked(queue, {1: {"b"}, 2: {"b"}})
    mark = await queue.read(1)
    assert mark.ctime_ms is not None


async def test_s67_a_delay_is_waited_for_and_a_bookie_that_returns_costs_nothing(
    store, book, queue, auditors
):
    await book.init("abcde", LEDGERS)
    auditor = auditors(store, lost_bookie_delay_s=DAY_S)
    await until_audited(auditor)
    assert await queue.lost_bookie_delay_s() == DAY_S
    await book.leave("b")
    await until_number(auditor, "NUM_AWAY_BOOKIES", 1)
    await book.join("b")
    await until_number(auditor, "NUM_AWAY_BOOKIES", 0)
    assert auditor.numbers.counters["NUM_DELAYED_BOOKIE_AUDITS_DELAYES_CANCELLED"] == 1
    await book.leave("e")
    await until_number(auditor, "NUM_AWAY_BOOKIES", 1)
    assert await marks(queue) == {}
    # Changed while it is waited for.
    await queue.set_lost_bookie_delay_s(0)
    await until_marked(queue, {3: {"e"}})


async def test_the_delay_in_the_metadata_wins_and_setting_it_again_asks_for_an_audit(
    store, book, queue, auditors
):
    await book.init("abcde", LEDGERS)
    await queue.set_lost_bookie_delay_s(DAY_S)
    auditor = auditors(store, lost_bookie_delay_s=0)
    await until_audited(auditor)
    await book.leave("b")
    await until_number(auditor, "NUM_AWAY_BOOKIES", 1)
    assert await marks(queue) == {}
    await queue.set_lost_bookie_delay_s(DAY_S)
    await until_marked(queue, {1: {"b"}, 2: {"b"}})


async def test_nothing_is_marked_while_auditing_is_off(store, book, queue, auditors):
    await book.init("abcd", LEDGERS)
    auditor = auditors(store)
    await until_audited(auditor)
    await queue.disable()
    await book.leave("b")
    await until_number(auditor, "NUM_AWAY_BOOKIES", 1)
    assert await marks(queue) == {3: {"e"}}
    await queue.enable()
    await until_marked(queue, {1: {"b"}, 2: {"b"}, 3: {"e"}})


async def test_s71_s77_an_auditor_whose_session_ends_stops_and_another_goes_on(
    driver, store, book, queue, auditors
):
    await book.init("abcd", LEDGERS)
    second_store = await driver.open()
    path = TreePaths(store.ledgers_root).auditor_election
    first = auditors(store, "first")
    await until_number(first, "IS_AUDITOR", 1)
    second = auditors(second_store, "second")
    await until_marked(queue, {3: {"e"}})
    await driver.end_lease(store)
    await until_number(second, "IS_AUDITOR", 1)
    await until_number(first, "IS_AUDITOR", 0)
    assert await current_leader(second_store, path) == "second"
    before = first.numbers.times["AUDIT_BOOKIES_TIME", True][0]
    await until_audited(second)
    await book.leave("b")
    await until_audited(second, times=2)
    assert await marks(queue) == {1: {"b"}, 2: {"b"}, 3: {"e"}}
    assert first.numbers.times["AUDIT_BOOKIES_TIME", True][0] == before
    # The first one stands again, and is there when it is needed.
    await second.stop()
    await until_number(first, "IS_AUDITOR", 1)
    await book.leave("d")
    await until_marked(queue, {1: {"b"}, 2: {"b", "d"}, 3: {"e"}})
