"""The whole storage against a dict: appends, re-adds, states, flushes, power cuts, lost indexes."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from doubles.inside import opened
from doubles.records import lac_packet
from doubles.storage_world import KEY, World, run_of
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.checkpoint import checkpoint as flush

LEDGERS = st.integers(1, 2)


class StorageMachine(RuleBasedStateMachine):
    """``expected`` holds what was acknowledged; everything else must not be there."""

    journals = 1

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.mkdtemp()
        self.loop = asyncio.new_event_loop()
        self.world = World(self.directory, journals=self.journals)
        self.go(self.world.start())
        self.expected: dict[tuple[int, int], bytes] = {}
        self.fenced: set[int] = set()
        self.lacs: dict[int, int] = {}
        self.packets: dict[int, int] = {}
        self.known: set[int] = set()

    def go(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.go(self.world.crash())
            self.loop.close()
            shutil.rmtree(self.directory)

    def heard(self, ledger_id: int, lac: int) -> None:
        self.known.add(ledger_id)
        self.lacs[ledger_id] = max(self.lacs.get(ledger_id, -1), lac)

    @rule(
        ledger_id=LEDGERS,
        first=st.integers(0, 12),
        holes=st.lists(st.booleans(), max_size=10),
        payload=st.sampled_from([b"a", b"bb" * 40, b"c" * 3000]),
        lac=st.integers(-1, 20),
        deferred=st.booleans(),
    )
    def append(
        self,
        ledger_id: int,
        first: int,
        holes: list[bool],
        payload: bytes,
        lac: int,
        deferred: bool,
    ) -> None:
        ids = [first, *(first + 1 + i for i, here in enumerate(holes) if here)]
        run = run_of(ledger_id, ids, payload, lac)

        async def append_and_force() -> None:
            future = self.world.append(run, deferred_sync=deferred)
            forced = self.loop.create_future()
            self.world.storage.force(lambda _: forced.set_result(None))
            await future
            await forced

        self.go(append_and_force())
        self.expected.update({(ledger_id, i): body for i, body in run.entries()})
        self.heard(ledger_id, lac)

    @rule(ledger_id=LEDGERS)
    def fence(self, ledger_id: int) -> None:
        async def fence() -> None:
            await self.world.fence(ledger_id)

        self.go(fence())
        self.fenced.add(ledger_id)
        self.known.add(ledger_id)

    @rule(ledger_id=LEDGERS, lac=st.integers(0, 20))
    def write_lac(self, ledger_id: int, lac: int) -> None:
        async def write() -> None:
            await self.world.write_lac(ledger_id, lac)

        self.go(write())
        self.packets[ledger_id] = max(self.packets.get(ledger_id, -1), lac)
        self.heard(ledger_id, lac)

    @rule(ledger_id=LEDGERS, sure=st.integers(0, 3))
    def delete(self, ledger_id: int, sure: int) -> None:
        if sure:
            return
        self.go(self.world.storage.delete_ledgers([ledger_id]))
        self.expected = {key: b for key, b in self.expected.items() if key[0] != ledger_id}
        self.fenced.discard(ledger_id)
        self.known.discard(ledger_id)
        self.lacs.pop(ledger_id, None)
        self.packets.pop(ledger_id, None)

    @rule()
    def flush(self) -> None:
        self.go(self.world.storage.flush())

    @rule()
    def evict(self) -> None:
        table = opened(self.world.storage).visible.table
        table._limit = 0  # no handle stays in memory
        table.evict()

    @rule(seed=st.integers(0, 99), keep=st.sampled_from([0.0, 0.5, 1.0]))
    def cut_power(self, seed: int, keep: float) -> None:
        self.go(self.world.crash(random.Random(seed), keep=keep))
        assert not self.go(self.world.start()).needs_limbo_start

    @rule(lose_index=st.booleans())
    def restart(self, lose_index: bool) -> None:
        self.go(self.world.storage.stop())
        if lose_index:
            Path(self.world.index_path).unlink()
        report = self.go(self.world.start())
        assert report.replayed_entries == 0
        assert not report.needs_limbo_start

    @invariant()
    def everything_acknowledged_is_there_and_nothing_else(self) -> None:
        self.go(self.check())

    async def check(self) -> None:
        storage = self.world.storage
        assert storage.ledger_ids() == sorted(self.known)
        for ledger_id in self.known:
            handle = storage.handle(ledger_id)
            assert handle is not None
            assert handle.master_key == KEY
            assert handle.is_fenced == (ledger_id in self.fenced)
            assert handle.last_add_confirmed == self.lacs.get(ledger_id, -1)
            packet = self.packets.get(ledger_id)
            assert handle.explicit_lac == (
                None if packet is None else lac_packet(ledger_id, packet)
            )
            bodies = {i: b for (ledger, i), b in self.expected.items() if ledger == ledger_id}
            assert handle.last_entry_id == max(bodies, default=-1)
            assert await self.world.ids(ledger_id) == sorted(bodies)
            wanted = list(bodies)[:5]
            found = await self.world.read(*((ledger_id, i) for i in wanted))
            assert found == [bodies[i] for i in wanted]
            await self.check_batches(ledger_id, bodies)

    async def check_batches(self, ledger_id: int, bodies: dict[int, bytes]) -> None:
        """Read everything by batches."""
        missing = sorted(bodies)
        while missing:
            data, count = await self.world.read_batch(ledger_id, missing[0])
            batch = [missing.pop(0) for _ in range(count)]
            assert data == b"".join(len(bodies[i]).to_bytes(4, "big") + bodies[i] for i in batch)


class KeepingMachine(StorageMachine):
    """The same with readers who find every flushed stretch in the read cache, however short."""

    @initialize()
    def open(self) -> None:
        self.patch = self.patched()
        self.patch.start()
        super().open()

    def patched(self) -> Any:
        return mock.patch.object(flush, "_KEPT_SIZE_BYTES", 1)

    def teardown(self) -> None:
        super().teardown()
        self.patch.stop()


class SeveralJournalsMachine(StorageMachine):
    """The same with a journal for each ledger, of which a crash may tear any."""

    journals = 2


class PeekingMachine(KeepingMachine):
    """The same with single reads that need no worker, wherever a row is known."""

    def patched(self) -> Any:
        return mock.patch.object(SimDisk, "reads_without_waiting", True)

    @rule(entry_ids=st.lists(st.integers(0, 22)))
    def read_at_random(self, entry_ids: list[int]) -> None:
        async def read() -> None:
            for entry_id in entry_ids:
                (found,) = await self.world.read((1, entry_id))
                wanted = self.expected.get((1, entry_id))
                assert found == wanted or (wanted is None and isinstance(found, BaseException))

        self.go(read())


PeekingMachine.TestCase.settings = KeepingMachine.TestCase.settings = (
    StorageMachine.TestCase.settings
) = SeveralJournalsMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStorage = StorageMachine.TestCase
TestKeepingStorage = KeepingMachine.TestCase
TestSeveralJournals = SeveralJournalsMachine.TestCase
TestPeekingStorage = PeekingMachine.TestCase
