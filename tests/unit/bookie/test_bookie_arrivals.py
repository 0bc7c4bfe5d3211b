"""Reads behind adds that are accepted and not yet synced: a bookie with a journal that is held."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import KEY, Bookie, cluster, entry, options_in, running, settle, v2_adds

from doubles.inside import reads_of
from doubles.raw_client import RawClient
from doubles.virtual_time import run_virtually
from doubles.waiting import until
from quorumbook.bookie.requests import arrivals
from quorumbook.bookie.requests.arrivals import Arrivals
from quorumbook.env import Env, RealDisk
from quorumbook.protocol import availability
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.sim.disks.faults import Faults, FaultyDisk
from quorumbook.storage.states.ledgers import LedgerHandle

OK = V2_CODE[Status.OK]
LEDGER, OTHER = 7, 8
#: Also an entry with a hole before it: ids need not come in order.
ADDED = (5, 6)
RECOVERY = 2


class Held:
    """A bookie whose journal syncs nothing until the test lets it."""

    def __init__(self, root: Path) -> None:
        self.faults = Faults(on_call=self._on_call)
        self.root = root
        self.bookie: Bookie
        self._gate = threading.Event()
        self._gate.set()

    def _on_call(self, operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".txn"):
            self._gate.wait()

    def hold(self) -> None:
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    @contextlib.asynccontextmanager
    async def run(self, **changes: object) -> AsyncIterator[Held]:
        env = Env(disk=FaultyDisk(RealDisk(), self.faults))
        async with cluster() as store:
            self.bookie = Bookie(env, options_in(self.root, **changes), store)
            async with running(self.bookie):
                try:
                    yield self
                finally:
                    self.let_go()

    async def connect(self) -> RawClient:
        return await RawClient.connect(self.bookie.address[1])

    async def held_adds(self, *, flags: int = 0) -> RawClient:
        """Have adds of entries 5 and 6 on their way; returns their writer."""
        writer = await self.connect()
        self.hold()
        writer.send(v2_adds(LEDGER, ADDED, flags=flags))
        await until(lambda: self.bookie.metrics.adds_in_progress == len(ADDED))
        return writer


def _v2_code(frame: bytes) -> int:
    return v2.ANSWER.unpack_from(frame)[2]


def _v3(frame: bytes) -> v3.V3Response:
    return v3.ResponseDecoder().feed(frame)[0]


def _listed(frame: bytes) -> list[int]:
    answer = _v3(frame)
    assert answer.status is Status.OK
    assert answer.availability is not None
    return availability.decode(answer.availability)


#: How an entry is asked for, and whether an answer gives it.
READS: dict[str, tuple[bytes, Callable[[bytes], bool]]] = {
    "v2 read": (v2.encode_read(LEDGER, 6), lambda frame: frame.endswith(entry(LEDGER, 6))),
    "v2 last entry": (v2.encode_read(LEDGER, -1), lambda frame: frame.endswith(entry(LEDGER, 6))),
    "v2 batch read": (
        v2.encode_batch_read(LEDGER, 5, 1, 2, 0),
        lambda frame: entry(LEDGER, 5) in frame and frame.endswith(entry(LEDGER, 6)),
    ),
    "v2 fencing read": (
        v2.encode_read(LEDGER, 6, master_key=KEY),
        lambda frame: frame.endswith(entry(LEDGER, 6)),
    ),
    "v3 read": (v3.encode_read(1, LEDGER, 6), lambda frame: _v3(frame).body == entry(LEDGER, 6)),
    "v3 fencing read": (
        v3.encode_read(1, LEDGER, 6, master_key=KEY),
        lambda frame: _v3(frame).body == entry(LEDGER, 6),
    ),
    "v3 read of the last add confirmed": (
        v3.encode_read_lac(1, LEDGER),
        lambda frame: entry(LEDGER, 6) in frame,
    ),
    "v3 list of entries": (
        v3.encode_list_entries(1, LEDGER),
        lambda frame: {5, 6} <= set(_listed(frame)),
    ),
}


@pytest.mark.parametrize("past", ["unknown", "known", "fenced"])
@pytest.mark.parametrize("name", READS)
async def test_r09_a_read_behind_adds_on_their_way_is_answered_with_them(
    tmp_path: Path, name: str, past: str
) -> None:
    request, gives = READS[name]
    async with Held(tmp_path).run() as held:
        reader, before = await held.connect(), await held.connect()
        if past != "unknown":
            assert _v2_code(await before.ask(v2_adds(LEDGER, [0]))) == OK
        if past == "fenced":
            await before.ask(v2.encode_read(LEDGER, 0, master_key=KEY))
        writer = await held.held_adds(flags=RECOVERY if past == "fenced" else 0)
        if "last" in name and past != "unknown":
            # An older entry is a true answer, as long as nobody asks for more.
            frame = await reader.ask(request)
            assert entry(LEDGER, 0) in frame
            return
        reader.send(request)
        await settle()
        held.let_go()
        assert gives(await reader.frame())
        assert await writer.add_codes(2) == [(5, OK), (6, OK)]
        assert held.bookie.metrics.reads_in_progress == 0


def _begun(held: Held) -> int:
    return held.bookie.metrics.reads_in_progress


async def test_r09_what_is_here_and_other_ledgers_do_not_wait(tmp_path: Path) -> None:
    async with Held(tmp_path).run() as held:
        reader = await held.connect()
        reader.send(v2_adds(LEDGER, [0]))
        await reader.add_codes(1)
        await held.held_adds()
        # In front of all others stands a read that waits.
        reader.send(v2.encode_read(LEDGER, 6))
        assert (await reader.ask(v2.encode_read(LEDGER, 0))).endswith(entry(LEDGER, 0))
        code = _v2_code(await reader.ask(v2.encode_read(OTHER, 0)))
        assert code == V2_CODE[Status.NO_LEDGER]
        held.let_go()
        assert (await reader.frame()).endswith(entry(LEDGER, 6))


async def test_r09_an_entry_that_does_not_come_is_denied_when_the_group_is_there(
    tmp_path: Path,
) -> None:
    async with Held(tmp_path).run() as held:
        reader = await held.connect()
        await held.held_adds()
        reader.send(v2.encode_read(LEDGER, 4) + v2.encode_batch_read(LEDGER, 4, 1, 9, 0))
        await until(lambda: _begun(held) == 2)
        held.let_go()
        for _ in range(2):
            assert _v2_code(await reader.frame()) == V2_CODE[Status.NO_ENTRY]


async def test_r09_reads_behind_a_group_that_never_ends_are_denied_after_their_time(
    tmp_path: Path,
) -> None:
    async with Held(tmp_path).run(max_read_delay_s=0.01) as held:
        reader = await held.connect()
        await held.held_adds()
        code = _v2_code(await reader.ask(v2.encode_read(LEDGER, 6)))
        assert code == V2_CODE[Status.NO_LEDGER]
        lister = await held.connect()
        listed = _v3(await lister.ask(v3.encode_list_entries(1, LEDGER)))
        assert listed.status is Status.OK
        handle = held.bookie.storage.handle(LEDGER)
        assert handle is not None
        assert not handle._arrivals  # what is on its way shows in no other way


async def test_r09_entries_of_a_group_that_failed_are_unknown_and_not_denied(
    tmp_path: Path,
) -> None:
    async with Held(tmp_path).run(max_read_delay_s=600) as held:
        reader = await held.connect()
        await held.held_adds()
        reader.send(v2.encode_read(LEDGER, 6) + v2.encode_batch_read(LEDGER, 6, 1, 1, 0))
        await until(lambda: _begun(held) == 2)
        # It is written, and may be there after the next start.
        held.faults.fail("sync", ".txn")
        held.faults.fail("write", ".txn", permanent=True)
        held.let_go()
        codes = {_v2_code(await reader.frame()) for _ in range(2)}
        assert codes == {V2_CODE[Status.IO_ERROR]}
        held.bookie.fatal_error = None


async def test_r09_an_entry_that_comes_while_the_index_is_looked_through_is_not_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Held(tmp_path).run() as held:
        reader = await held.connect()
        reader.send(v2_adds(LEDGER, [0, 9]))
        await reader.add_codes(2)
        writer = await held.held_adds()
        loader = reads_of(held.bookie.storage)._loader  # what is on its way shows in no other way
        looked, may_end = threading.Event(), threading.Event()
        load = loader.load_entries

        def slow(*wanted: Any) -> Any:
            found = load(*wanted)
            looked.set()
            may_end.wait()
            return found

        monkeypatch.setattr(loader, "load_entries", slow)
        try:
            reader.send(v2.encode_read(LEDGER, 5))
            await until(looked.is_set)
            held.let_go()
            await writer.add_codes(2)
        finally:
            may_end.set()
        assert (await reader.frame()).endswith(entry(LEDGER, 5))


async def test_a_reader_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    async with Held(tmp_path).run() as held:
        reader = await held.connect()
        await held.held_adds()
        reader.send(v2.encode_read(LEDGER, 6))
        await until(lambda: _begun(held) == 1)
        reader.close()
        await until(lambda: len(held.bookie.connections) == 1)
        held.let_go()
        await until(lambda: _begun(held) == 0)


class _OneLedger:
    """As much of a storage as is asked for."""

    def __init__(self) -> None:
        self.one = LedgerHandle(LEDGER, KEY)
        self.one.in_flight = 1

    def handle(self, ledger_id: int) -> LedgerHandle | None:
        return self.one if ledger_id == LEDGER else None


def test_r09_no_more_wait_than_is_bounded_and_none_longer_than_its_time() -> None:
    async def main() -> None:
        storage = _OneLedger()
        options = options_in("/nowhere", max_read_delay_s=2.0)
        waiting = Arrivals(options, storage)  # type: ignore[arg-type]
        called: list[int] = []
        limit = arrivals._WAITING_MAX  # what is on its way shows in no other way
        assert waiting.wait(LEDGER, lambda: called.append(1), limit - 1)
        assert waiting.wait(LEDGER, lambda: called.append(2))
        assert not waiting.wait(LEDGER, lambda: called.append(3))
        assert not waiting.wait(OTHER, lambda: called.append(4))
        await asyncio.sleep(1.9)
        assert not called
        await asyncio.sleep(0.2)
        assert sorted(called) == [1, 2]
        called.clear()
        # Room again, and adds that begin later are not waited for.
        assert waiting.wait(LEDGER, lambda: called.append(5))
        storage.one.in_flight += 1
        assert storage.one.end_record()
        for callback in storage.one.take_arrived():
            callback()
        assert called == [5]
        await asyncio.sleep(5)
        assert called == [5]

    run_virtually(main())
