"""The auditor where the metadata store fails it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from doubles.ledger_book import LedgerBook
from doubles.waiting import until
from quorumbook.autorecovery.audits.auditor import Auditor
from quorumbook.autorecovery.options import AuditorOptions
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.uri import open_store

_numbers = itertools.count()
LEDGERS = {1: "abc", 2: "bcd", 3: "ace"}


class FailingStore:
    """A store that does not answer while it is told not to."""

    def __init__(self, store):
        self._store = store
        self.is_down = False
        self.refused = 0
        #: Called with each path that is read.
        self.on_read = lambda path: None
        #: Who reads below this path waits until it is opened.
        self.gate = asyncio.Event()
        self.gate.set()
        self.gated_path = "/ledgers/available"
        self.waiting = 0

    def __getattr__(self, name):
        attribute = getattr(self._store, name)
        if name not in ("get", "exists", "children", "set", "create", "multi"):
            return attribute

        async def call(path, *arguments, **options):
            if self.is_down:
                self.refused += 1
                raise MetadataUnavailableError("the store does not answer")
            self.on_read(path)
            if path.startswith(self.gated_path) and not self.gate.is_set():
                self.waiting += 1
                await self.gate.wait()
            return await attribute(path, *arguments, **options)

        return call


class World:
    def __init__(self, store, other):
        self.store = FailingStore(store)
        self.other = other
        self.book = LedgerBook(other)
        self.queue = UnderreplicationQueue(other)
        self.auditor = None

    def start(self, **options):
        self.auditor = Auditor(self.store, "a1", AuditorOptions(**options), settle_s=0)
        self.auditor.start()

    async def marks(self):
        return {mark.ledger_id: set(mark.replicas) async for mark in self.queue.list()}

    def audits(self, is_good=True):
        return self.auditor.numbers.times["AUDIT_BOOKIES_TIME", is_good][0]


@pytest.fixture
async def world():
    uri = f"memory://auditor-{next(_numbers)}"
    stores = [await open_store(uri, create=True) for _ in range(2)]
    made = World(*stores)
    yield made
    if made.auditor is not None:
        made.store.is_down = False
        await made.auditor.stop()
    for store in stores:
        await store.close()
    forget_memory_tree(uri.removeprefix("memory://"))


async def until_marked(world, wanted):
    async with asyncio.timeout(60):
        while await world.marks() != wanted:
            await asyncio.sleep(0.005)


async def test_r31_s77_nothing_is_decided_while_the_store_does_not_answer(world):
    await world.book.init("abcde", LEDGERS)
    world.start()
    await until(lambda: world.audits() == 1)
    world.store.is_down = True
    await world.book.leave("b")
    await until(lambda: world.store.refused >= 3)
    assert await world.marks() == {}
    # What it looked like in between does not count.
    await world.book.join("b")
    world.store.is_down = False
    await world.book.leave("e")
    await until_marked(world, {3: {"e"}})
    assert world.auditor.is_leading


async def test_r31_an_audit_that_the_store_cuts_off_begins_anew(world, monkeypatch):
    monkeypatch.setattr("quorumbook.autorecovery.audits.bookie_audits._RETRY_FIRST_S", 0.01)
    ledgers = dict.fromkeys(range(200), "abc") | {199: "ace"}
    await world.book.init("abcd", ledgers)
    first = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 5)

    def fail(path):
        if path == first:
            world.store.is_down = True

    world.store.on_read = fail
    world.start()
    await until(lambda: world.audits(is_good=False) >= 1)
    world.store.on_read = lambda path: None
    world.store.is_down = False
    await until_marked(world, {199: {"e"}})


async def test_r31_s67_a_view_that_may_be_outdated_marks_nothing_further(world):
    """The bookie is back; the auditor heard of a change, and cannot see yet of which."""
    await world.book.init("abcd", dict.fromkeys(range(300), "ace"))
    path = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 100)
    joining = []

    def join(read):
        if read == path and not joining:
            world.store.gate.clear()
            joining.append(asyncio.ensure_future(world.book.join("e")))

    world.store.on_read = join
    world.start()
    await until(lambda: world.store.waiting)
    marked = len(await world.marks())
    for _ in range(20):
        await asyncio.sleep(0.005)  # time to do what it must not
    assert 0 < len(await world.marks()) <= marked + 32 < 300
    world.store.gate.set()
    await until(lambda: world.audits() == 1)
    assert len(await world.marks()) <= marked + 32


async def test_an_audit_stops_in_the_middle_when_auditing_is_switched_off(world):
    await world.book.init("abcd", dict.fromkeys(range(300), "ace"))
    path = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 150)
    switching = []

    def switch(read):
        if read == path and not switching:
            switching.append(asyncio.ensure_future(world.queue.disable()))

    world.store.on_read = switch
    world.start()
    await until(lambda: switching)
    await switching[0]
    await until(lambda: world.audits(is_good=False) == 1)
    marked = len(await world.marks())
    assert 0 < marked < 300
    await world.queue.enable()
    await until_marked(world, {n: {"e"} for n in range(300)})


async def test_a_ledger_whose_metadata_is_damaged_stops_nobody(world):
    await world.book.init("abcd", LEDGERS)
    path = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 2)
    await world.other.set(path, b"BookieMetadataFormatVersion\t3\nrubbish")
    world.start()
    await until_marked(world, {3: {"e"}})
    await until(lambda: world.audits() == 1)
    assert world.auditor.numbers.counters["NUM_LEDGERS_UNREADABLE"] == 1


async def test_a_damaged_mark_stops_no_audit_and_is_named(world, caplog):
    await world.book.init("abcd", {1: "abc", 2: "ace", 3: "ace"})
    await world.queue.mark(2, ["a"])
    path = TreePaths("/ledgers").underreplicated(2)
    await world.other.set(path, b"damaged")
    world.start()
    await until(lambda: world.audits() == 1)
    damaged = []
    marked = {mark.ledger_id async for mark in world.queue.list(damaged)}
    assert marked == {3}
    assert [error.ledger_id for error in damaged] == [2]
    assert "urL0000000002" in caplog.text


async def test_a_damaged_delay_leaves_the_configured_one(world):
    await world.book.init("abcde", LEDGERS)
    await world.queue.set_lost_bookie_delay_s(5)
    await world.other.set("/ledgers/underreplication/lostBookieRecoveryDelay", b"soon")
    world.start(lost_bookie_delay_s=0)
    await until(lambda: world.audits() == 1)
    await world.book.leave("b")
    await until_marked(world, {1: {"b"}, 2: {"b"}})


async def test_a_bug_in_a_term_is_logged_and_the_term_begins_anew(world, monkeypatch, caplog):
    monkeypatch.setattr("quorumbook.autorecovery.audits.auditor._PAUSE_S", 0.01)
    await world.book.init("abcd", LEDGERS)
    bugs = [ZeroDivisionError("a bug")]

    def fail(path):
        if path.endswith("L0003") and bugs:
            raise bugs.pop()

    world.store.on_read = fail
    world.start()
    await until_marked(world, {3: {"e"}})
    assert "a bug" in caplog.text


async def test_an_auditor_that_is_stopped_leaves_nothing_behind(world):
    await world.book.init("abcd", LEDGERS)
    before = asyncio.all_tasks()
    world.start()
    await until(lambda: world.audits() == 1)
    await world.auditor.stop()
    assert asyncio.all_tasks() == before
    assert await world.other.children("/ledgers/underreplication/auditorelection") == []
    await world.book.leave("b")
    assert await world.marks() == {3: {"e"}}
