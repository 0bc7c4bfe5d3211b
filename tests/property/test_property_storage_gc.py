"""Garbage collection against a model: ledgers live, die and move, whatever breaks off meanwhile.

What lives is readable at any time; what is dead is gone in the end, from the index and the disk.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from doubles.inside import opened
from doubles.storage_world import World, run_of
from quorumbook.errors import MetadataUnavailableError, StorageError
from quorumbook.storage.options import GcOptions

sys.path.append(str(Path(__file__).parents[1] / "unit" / "storage"))

from test_storage_compaction import watch_moves
from test_storage_gc import Garbage

LEDGERS = st.integers(1, 5)
OPTIONS = GcOptions(
    confirm_interval_s=60, surplus_interval_s=60, surplus_grace_s=60, reserve_size_bytes=20_000
)


class GarbageMachine(RuleBasedStateMachine):
    """``expected`` holds the entries that were acknowledged, of living and of dead ledgers."""

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.mkdtemp()
        self.loop = asyncio.new_event_loop()
        self.world = World(self.directory)
        self.go(self.world.start())
        self.garbage = Garbage(self.world, options=OPTIONS)
        self.cluster = self.garbage.cluster
        self.expected: dict[int, dict[int, bytes]] = {}
        self.dead: set[int] = set()
        # Logs of several directories in which the living lie beside each other.
        for first in (0, 10):
            for ledger_id in range(1, 6):
                self.write(ledger_id, first, 10, b"c" * 300)
            self.flush()

    def go(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.heal()
        finally:
            self.go(self.world.crash())
            self.loop.close()
            shutil.rmtree(self.directory)

    # The cluster

    @rule(
        ledger_id=LEDGERS,
        first=st.integers(0, 30),
        count=st.integers(1, 12),
        payload=st.sampled_from([b"a", b"bb" * 40, b"c" * 3000]),
    )
    def write(self, ledger_id: int, first: int, count: int, payload: bytes) -> None:
        """Make a ledger, or add to it, though it be deleted by now."""
        if ledger_id in self.cluster.kept_elsewhere:
            return
        if ledger_id not in self.dead:
            self.cluster.ledger_ids.add(ledger_id)
        self.add(ledger_id, list(range(first, first + count)), payload)

    def add(self, ledger_id: int, ids: list[int], payload: bytes) -> None:
        run = run_of(ledger_id, ids, payload)

        async def append() -> None:
            await self.world.append(run)

        self.go(append())
        self.expected.setdefault(ledger_id, {}).update(run.entries())

    @rule(ledger_id=LEDGERS)
    def delete(self, ledger_id: int) -> None:
        if ledger_id in self.cluster.ledger_ids:
            self.cluster.ledger_ids.discard(ledger_id)
            self.cluster.kept_elsewhere.discard(ledger_id)
            self.dead.add(ledger_id)

    @rule(ledger_id=LEDGERS)
    def move_elsewhere(self, ledger_id: int) -> None:
        if ledger_id in self.cluster.ledger_ids:
            self.cluster.kept_elsewhere.add(ledger_id)

    @rule(ledger_id=LEDGERS, is_slow=st.booleans())
    def come_back(self, ledger_id: int, is_slow: bool) -> None:
        """Copy a ledger here again, by somebody who takes no lock; published when it is done."""
        if ledger_id not in self.cluster.kept_elsewhere:
            return
        bodies = self.expected.pop(ledger_id, {})
        for place, (entry_id, body) in enumerate(sorted(bodies.items())):
            self.add(ledger_id, [entry_id], body[32:])
            if is_slow and place == len(bodies) // 2:
                self.collect(minutes=2)
        self.cluster.kept_elsewhere.discard(ledger_id)

    @rule(is_away=st.booleans())
    def lose_metadata(self, is_away: bool) -> None:
        self.cluster.error = MetadataUnavailableError("away") if is_away else None

    @rule(ledger_id=LEDGERS)
    def list_too_little(self, ledger_id: int) -> None:
        self.cluster.unlisted = {ledger_id}

    @rule()
    def end_session(self) -> None:
        self.cluster.sessions += 1

    # The bookie

    @rule()
    def flush(self) -> None:
        self.go(self.world.storage.flush())

    @rule(minutes=st.sampled_from([0, 1, 5]), is_forced=st.booleans(), major=st.booleans())
    def collect(self, minutes: int, is_forced: bool = False, major: bool = False) -> None:
        if major:
            self.garbage.collector.trigger(major=True, force=False)
        self.go(self.garbage.collect(minutes, is_forced=is_forced))

    @rule(minutes=st.sampled_from([0, 5]))
    def compact_on_a_full_disk(self, minutes: int) -> None:
        self.go(self.world.storage.flush())
        self.world.disk.capacity_bytes = self.world.disk.used_bytes() + 100
        self.collect(minutes, major=True)
        self.world.disk.capacity_bytes = None
        self.go(self.world.storage.flush())

    @rule(ledger_id=LEDGERS, first=st.integers(0, 20), lose_index=st.booleans())
    def compact_and_replace(self, ledger_id: int, first: int, lose_index: bool) -> None:
        """What is added behind a copy counts, also in an index made of the logs."""
        self.collect(0, major=True)
        self.write(ledger_id, first, 3, b"newer")
        self.flush()
        self.restart(lose_index)

    @rule(
        call=st.integers(1, 40),
        seed=st.integers(0, 99),
        keep=st.sampled_from([0.0, 0.5, 1.0]),
        minutes=st.sampled_from([0, 0, 5]),
    )
    def cut_power_in_a_pass(self, call: int, seed: int, keep: float, minutes: int) -> None:
        self.world.watch_commits()
        watch_moves(self.world)
        self.world.cut_power_at(call)
        self.collect(minutes, major=True)
        self.go(self.world.crash(random.Random(seed), keep=keep))
        self.go(self.begin())

    @rule(lose_index=st.booleans())
    def restart(self, lose_index: bool) -> None:
        self.go(self.world.storage.stop())
        if lose_index:
            Path(self.world.index_path).unlink()
        self.go(self.begin())

    async def begin(self) -> None:
        report = await self.world.start()
        assert not report.needs_limbo_start
        self.garbage.restart()

    @precondition(lambda self: self.expected)
    @rule(nth=st.integers(0, 5))
    def fail_a_commit(self, nth: int) -> None:
        """Let the index fail in the middle of a compaction."""
        index = opened(self.world.storage).index
        move_runs, left = index.move_runs, [nth]

        def failing(*what: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise StorageError("the index fails")
            return move_runs(*what)

        index.move_runs = failing  # type: ignore[method-assign,assignment]
        self.collect(5, major=True)
        index.move_runs = move_runs  # type: ignore[method-assign]

    # What holds

    @invariant()
    def what_lives_is_there(self) -> None:
        if hasattr(self, "loop"):
            self.go(self.check())

    async def check(self) -> None:
        for ledger_id in self.cluster.ledger_ids - self.cluster.kept_elsewhere:
            bodies = self.expected.get(ledger_id, {})
            assert await self.world.ids(ledger_id) == sorted(bodies)
            found = await self.world.read(*((ledger_id, entry_id) for entry_id in bodies))
            assert found == list(bodies.values())
        for ledger_id in self.cluster.kept_elsewhere & set(self.expected):
            left = await self.world.ids(ledger_id)
            assert left in ([], sorted(self.expected[ledger_id])), "a copy goes whole"

    def heal(self) -> None:
        """Let everything answer again: in the end nothing dead is left."""
        self.cluster.error = None
        self.cluster.unlisted = set()
        # What is not in the index yet is looked at when it is.
        self.go(self.world.storage.flush())
        # A copy that compaction moves is looked at anew.
        for _ in range(6):
            self.collect(5, is_forced=True, major=True)
        self.go(self.check())
        storage = self.world.storage
        assert set(storage.ledger_ids()) == self.cluster.ledger_ids & set(self.expected)
        living = self.cluster.ledger_ids - self.cluster.kept_elsewhere
        for ledger_id in self.cluster.kept_elsewhere & set(self.expected):
            assert self.go(self.world.ids(ledger_id)) == []
        on_disk = {int(Path(path).stem, 16) for path in self.garbage.logs()}
        live_bytes = opened(storage).index.live_bytes()
        assert on_disk == set(live_bytes), "no log is kept without runs"
        assert living or not on_disk


GarbageMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


class TestR29S62Garbage(GarbageMachine.TestCase):  # type: ignore[misc,valid-type]
    """Compaction and collection, broken off anywhere, lose nothing and leave nothing."""
