"""The index against a plain dict: puts, re-adds, holes, deletions, moves and restarts.

The SQLite file and the simulator's model of it are held to the same.
"""

from __future__ import annotations

import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.disks.index import ModelPlace
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.states.state_file import StoredLedger

LEDGERS = st.integers(0, 2)
FIRST = st.integers(0, 40)


class IndexMachine(RuleBasedStateMachine):
    """``expected`` maps (ledger, entry) to (entry log, position, size)."""

    @staticmethod
    def make_place() -> IndexPlace:
        return IndexPlace()

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.mkdtemp()
        self.path = f"{self.directory}/index"
        self.place = self.make_place()
        assert not self.place.exists(self.path)
        self.index = self.place.open(self.path, create=True)
        self.reader = self.index.another()
        self.expected: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.states: dict[int, StoredLedger] = {}
        self.position = 0
        self.log = 0

    def teardown(self) -> None:
        self.reader.close()
        self.index.close()
        shutil.rmtree(self.directory)

    def run_of(self, ledger_id: int, first: int, sizes: list[int]) -> StoredRun:
        """Lay entries behind each other and expect them there."""
        position = self.position
        for entry_id, size in enumerate(sizes, first):
            if size:
                self.expected[ledger_id, entry_id] = (self.log, self.position, size)
                self.position += size + 4
        uniform = 0 not in sizes and len(set(sizes)) == 1
        last = first + len(sizes) - 1
        stored = sizes[0] if uniform else sizes
        return StoredRun(ledger_id, first, last, self.log, position, stored, 7, last)

    @rule(
        ledger_id=LEDGERS,
        first=FIRST,
        sizes=st.lists(st.sampled_from([0, 20, 21]), max_size=8).map(lambda s: [20, *s, 20]),
    )
    def put_with_holes(self, ledger_id: int, first: int, sizes: list[int]) -> None:
        self.index.commit(runs=[self.run_of(ledger_id, first, sizes)])

    @rule(runs=st.lists(st.tuples(LEDGERS, FIRST, st.integers(1, 12)), max_size=5))
    def put_uniform_ones(self, runs: list[tuple[int, int, int]]) -> None:
        rows = [self.run_of(ledger, first, [30] * count) for ledger, first, count in sorted(runs)]
        self.index.commit(runs=rows)

    @rule(ledger_id=LEDGERS, sizes=st.lists(st.integers(16, 18), min_size=1, max_size=5))
    def put_behind_the_last(self, ledger_id: int, sizes: list[int]) -> None:
        last = max((entry for ledger, entry in self.expected if ledger == ledger_id), default=-1)
        self.index.commit(runs=[self.run_of(ledger_id, last + 1, sizes)])

    @rule(ledger_id=LEDGERS)
    def delete(self, ledger_id: int) -> None:
        self.index.commit(deleted_ledgers=[ledger_id])
        self.expected = {key: at for key, at in self.expected.items() if key[0] != ledger_id}
        self.states.pop(ledger_id, None)

    @rule(ledger_id=LEDGERS, fenced=st.booleans(), lac=st.none() | st.binary(max_size=4))
    def change_state(self, ledger_id: int, fenced: bool, lac: bytes | None) -> None:
        state = StoredLedger(ledger_id, b"key", fenced, not fenced, lac, 3)
        self.index.commit(states=[state])
        self.states[ledger_id] = state

    @rule()
    def begin_another_log(self) -> None:
        self.log += 1
        self.position = 0

    @rule(data=st.data())
    def move_a_run(self, data: st.DataObject) -> None:
        runs = self.index.runs(data.draw(LEDGERS))
        if not runs:
            return
        run = data.draw(st.sampled_from(runs))
        self.log += 1
        self.position = 0
        assert self.index.repoint(run, self.log, 0)
        assert not self.index.repoint(run, self.log, 0)
        for ids in run.ranges():
            for entry_id in ids:
                place = run.position_of(entry_id) - run.position
                size = run.size_of(entry_id)
                self.expected[run.ledger_id, entry_id] = (self.log, place, size)
        self.position = run.size_bytes

    @rule()
    def restart(self) -> None:
        self.reader.close()
        self.index.close()
        self.place.settle(self.path)
        self.index = self.place.open(self.path)
        self.index.check_whole()
        self.reader = self.index.another()

    @invariant()
    def everything_is_where_it_was_put_last(self) -> None:
        for ledger_id in range(3):
            here = {entry for ledger, entry in self.expected if ledger == ledger_id}
            for entry_id in range(-1, 60):
                run = self.reader.find(ledger_id, entry_id)
                assert (run is not None) == (entry_id in here)
                if run is not None:
                    place = (run.entry_log_id, run.position_of(entry_id), run.size_of(entry_id))
                    assert place == self.expected[ledger_id, entry_id]
            last = self.reader.last_entry(ledger_id)
            assert (last[0] if last else -1) == max(here, default=-1)
            if last is not None:
                assert last[1] is not None, "the last run must know its last add confirmed"
            assert self.reader.ledger_state(ledger_id) == self.states.get(ledger_id)

    @invariant()
    def runs_do_not_overlap_and_ends_are_no_holes(self) -> None:
        for ledger_id in range(3):
            before = -1
            for run in self.reader.runs(ledger_id):
                assert run.first_entry_id > before
                assert run.size_of(run.first_entry_id)
                assert run.size_of(run.last_entry_id)
                before = run.last_entry_id
            ids = [i for run in self.reader.runs(ledger_id) for r in run.ranges() for i in r]
            assert ids == sorted(entry for ledger, entry in self.expected if ledger == ledger_id)
            middle = [
                i for run in self.reader.runs(ledger_id, 10, 20) for r in run.ranges() for i in r
            ]
            assert [i for i in middle if 10 <= i <= 20] == [i for i in ids if 10 <= i <= 20]


class ModelMachine(IndexMachine):
    """The same of the model."""

    @staticmethod
    def make_place() -> IndexPlace:
        return ModelPlace(SimDisk())


for _machine in (IndexMachine, ModelMachine):
    _machine.TestCase.settings = settings(
        max_examples=40, stateful_step_count=25, deadline=None, derandomize=True
    )
TestIndex = IndexMachine.TestCase
TestModel = ModelMachine.TestCase
