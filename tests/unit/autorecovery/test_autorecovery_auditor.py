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


class Audit:
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
async def audit():
    uri = f"memory://auditor-{next(_numbers)}"
    stores = [await open_store(uri, create=True) for _ in range(2)]
    made = Audit(*stores)
    yield made
    if made.auditor is not None:
        made.store.is_down = False
        await made.auditor.stop()
    for store in stores:
        await store.close()
    forget_memory_tree(uri.removeprefix("memory://"))


async def until_marked(audit, wanted):
    async with asyncio.timeout(60):
        while await audit.marks() != wanted:
            await asyncio.sleep(0.005)


async def test_r31_s77_nothing_is_decided_while_the_store_does_not_answer(audit):
    await audit.book.init("abcde", LEDGERS)
    audit.start()
    await until(lambda: audit.audits() == 1)
    audit.store.is_down = True
    await audit.book.leave("b")
    await until(lambda: audit.store.refused >= 3)
    assert await audit.marks() == {}
    # What it looked like in between does not count.
    await audit.book.join("b")
    audit.store.is_down = False
    await audit.book.leave("e")
    await until_marked(audit, {3: {"e"}})
    assert audit.auditor.is_leading


async def test_r31_an_audit_that_the_store_cuts_off_begins_anew(audit, monkeypatch):
    monkeypatch.setattr("quorumbook.autorecovery.audits.bookie_audits._RETRY_FIRST_S", 0.01)
    ledgers = dict.fromkeys(range(200), "abc") | {199: "ace"}
    await audit.book.init("abcd", ledgers)
    first = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 5)

    def fail(path):
        if path == first:
            audit.store.is_down = True

    audit.store.on_read = fail
    audit.start()
    await until(lambda: audit.audits(is_good=False) >= 1)
    audit.store.on_read = lambda path: None
    audit.store.is_down = False
    await until_marked(audit, {199: {"e"}})


async def test_r31_s67_a_view_that_may_be_outdated_marks_nothing_further(audit):
    """The bookie is back; the auditor heard of a change, and cannot see yet of which."""
    await audit.book.init("abcd", dict.fromkeys(range(300), "ace"))
    path = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 100)
    joining = []

    def join(read):
        if read == path and not joining:
            audit.store.gate.clear()
            joining.append(asyncio.ensure_future(audit.book.join("e")))

    audit.store.on_read = join
    audit.start()
    await until(lambda: audit.store.waiting)
    marked = len(await audit.marks())
    for _ in range(20):
        await asyncio.sleep(0.005)  # time to do what it must not
    assert 0 < len(await audit.marks()) <= marked + 32 < 300
    audit.store.gate.set()
    await until(lambda: audit.audits() == 1)
    assert len(await audit.marks()) <= marked + 32


async def test_an_audit_stops_in_the_middle_when_auditing_is_switched_off(audit):
    await audit.book.init("abcd", dict.fromkeys(range(300), "ace"))
    path = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 150)
    switching = []

    def switch(read):
        if read == path and not switching:
            switching.append(asyncio.ensure_future(audit.queue.disable()))

    audit.store.on_read = switch
    audit.start()
    await until(lambda: switching)
    await switching[0]
    await until(lambda: audit.audits(is_good=False) == 1)
    marked = len(await audit.marks())
    assert 0 < marked < 300
    await audit.queue.enable()
    await until_marked(audit, {n: {"e"} for n in range(300)})


async def test_a_ledger_whose_metadata_is_damaged_stops_nobody(audit):
    await audit.book.init("abcd", LEDGERS)
    path = TreePaths("/ledgers").ledger(LayoutKind.HIERARCHICAL, 2)
    await audit.other.set(path, b"BookieMetadataFormatVersion\t3\nrubbish")
    audit.start()
    await until_marked(audit, {3: {"e"}})
    await until(lambda: audit.audits() == 1)
    assert audit.auditor.numbers.counters["NUM_LEDGERS_UNREADABLE"] == 1


async def test_a_damaged_mark_stops_no_audit_and_is_named(audit, caplog):
    await audit.book.init("abcd", {1: "abc", 2: "ace", 3: "ace"})
    await audit.queue.mark(2, ["a"])
    path = TreePaths("/ledgers").underreplicated(2)
    await audit.other.set(path, b"damaged")
    audit.start()
    await until(lambda: audit.audits() == 1)
    damaged = []
    marked = {mark.ledger_id async for mark in audit.queue.list(damaged)}
    assert marked == {3}
    assert [error.ledger_id for error in damaged] == [2]
    assert "urL0000000002" in caplog.text


async def test_a_damaged_delay_leaves_the_configured_one(audit):
    await audit.book.init("abcde", LEDGERS)
    await audit.queue.set_lost_bookie_delay_s(5)
    await audit.other.set("/ledgers/underreplication/lostBookieRecoveryDelay", b"soon")
    audit.start(lost_bookie_delay_s=0)
    await until(lambda: audit.audits() == 1)
    await audit.book.leave("b")
    await until_marked(audit, {1: {"b"}, 2: {"b"}})


async def test_a_bug_in_a_term_is_logged_and_the_term_begins_anew(audit, monkeypatch, caplog):
    monkeypatch.setattr("quorumbook.autorecovery.audits.auditor._PAUSE_S", 0.01)
    await audit.book.init("abcd", LEDGERS)
    bugs = [ZeroDivisionError("a bug")]

    def fail(path):
        if path.endswith("L0003") and bugs:
            raise bugs.pop()

    audit.store.on_read = fail
    audit.start()
    await until_marked(audit, {3: {"e"}})
    assert "a bug" in caplog.text


async def test_an_auditor_that_is_stopped_leaves_nothing_behind(audit):
    await audit.book.init("abcd", LEDGERS)
    before = asyncio.all_tasks()
    audit.start()
    await until(lambda: audit.audits() == 1)
    await audit.auditor.stop()
    assert asyncio.all_tasks() == before
    assert await audit.other.children("/ledgers/underreplication/auditorelection") == []
    await audit.book.leave("b")
    assert await audit.marks() == {3: {"e"}}
