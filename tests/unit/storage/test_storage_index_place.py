"""What an index answers and what is left of it, be it the SQLite file or the simulator's model."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumbook.errors import StorageError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.disks.index import ModelIndex, ModelPlace
from quorumbook.sim.threads import ProcessDied
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.index.stored_run import DAMAGED, StoredExtent, StoredRun
from quorumbook.storage.index.tables import DamagedIndexError, Index
from quorumbook.storage.states.state_file import Deletion, StoredLedger


@pytest.fixture(params=["sqlite", "model"])
def place(request: pytest.FixtureRequest) -> IndexPlace:
    return IndexPlace() if request.param == "sqlite" else ModelPlace(SimDisk())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/index"


@pytest.fixture
def index(place: IndexPlace, path: str) -> Iterator[Index]:
    opened = place.open(path, create=True)
    yield opened
    opened.close()


def run(ledger_id: int, first: int, last: int, log: int = 0, position: int = 1024) -> StoredRun:
    return StoredRun(ledger_id, first, last, log, position, 10, 7, last - 1)


def test_where_runs_lie(index: Index):
    holes = StoredRun(3, 5, 7, 1, 2048, [10, 0, 12], 7, 6)
    runs = [run(3, 0, 4, 0, 1024), holes, run(4, 0, 0, 1, 1024)]
    assert index.commit(runs=runs, entry_logs=[(0, "a"), (1, "b"), (2, "c")]) == []
    reader = index.another()
    assert reader.find(3, 4) == runs[0]
    assert reader.find(3, 6) is None
    found = reader.find(3, 7)
    assert found is not None
    assert (found.position, list(found.sizes)) == (2048, [10, 0, 12])
    assert reader.find(3, 8) is reader.find(5, 0) is None
    assert reader.last_entry(3) == (7, 6)
    assert reader.last_entry(5) is reader.last_run(5) is None
    assert [each.first_entry_id for each in reader.runs(3)] == [0, 5]
    assert [each.first_entry_id for each in reader.runs(3, 2, 5, limit=1)] == [0]
    assert reader.runs(3, 8) == []
    assert reader.extents([4, 3, 9]) == {
        3: StoredExtent(2, 8, 1, 3072),
        4: StoredExtent(1, 1, 1, 1024),
    }
    assert reader.entry_logs() == {0: "a", 1: "b", 2: "c"}
    assert reader.entry_logs_without_runs() == [2]
    assert reader.live_bytes() == {0: (70, 1, 1), 1: (44, 2, 2)}
    assert reader.live_bytes(behind=0, logs_max=1) == {1: (44, 2, 2)}
    assert [each.ledger_id for each in reader.runs_in(1)] == [4, 3]
    assert [each.ledger_id for each in reader.runs_behind(1, 1025, 5)] == [3]
    assert reader.end_of_entry_log(1) == 2048 + 30
    assert reader.end_of_entry_log(9) == 0
    assert reader.ledger_ids_without_state() == [3, 4]
    reader.close()


def test_a_later_run_lies_over_an_earlier_one(index: Index):
    index.commit(runs=[run(1, 0, 9)])
    later = StoredRun(1, 3, 6, 1, 1024, [10, 0, 0, 10], 7, 5)
    assert index.commit(runs=[later]) == [(1, 3, 6)]
    places = {
        i: (found.entry_log_id, found.checksum) for i in range(10) if (found := index.find(1, i))
    }
    assert places == {
        **dict.fromkeys((0, 1, 2, 4, 5, 7, 8, 9), (0, None)),
        3: (1, None),
        6: (1, None),
    }
    assert index.last_entry(1) == (9, 8)


def test_what_is_known_of_ledgers(index: Index):
    states = [StoredLedger(i, b"key", i == 2, i == 7, None, 3, i << 32) for i in (7, 2)]
    index.commit(states=states, meta=[("a", "1"), ("b", "2")])
    index.commit(meta=[("b", None)], deletions=[Deletion(9, 50), Deletion(4, 60)])
    reader = index.another()
    assert list(reader.ledger_states()) == states[::-1]
    assert list(reader.ledger_ids()) == [2, 7]
    assert reader.ledger_ids_above(2, 5) == reader.ledgers_in_limbo() == [7]
    assert reader.ledger_ids_above(None, 1) == [2]
    assert reader.count_in_limbo() == 1
    assert reader.births([7, 8]) == {7: 7 << 32}
    assert (reader.ledger_state(2), reader.ledger_state(3)) == (states[1], None)
    assert (reader.meta("a"), reader.meta("b")) == ("1", None)
    assert reader.highest_ledger_id() == 9
    assert list(reader.deletions()) == [Deletion(4, 60), Deletion(9, 50)]
    assert (reader.was_deleted(4), reader.was_deleted(2)) == (True, False)
    assert index.forget_deletions(55, 10) == 1
    assert index.forget_deletions(0, 0) == 1
    assert index.forget_deletions(0, 0) == 0
    index.commit(deleted_ledgers=[2, 7])
    assert reader.highest_ledger_id() == -1
    reader.close()


def test_runs_move_and_are_divided_as_long_as_they_are_what_they_were(index: Index):
    old = run(1, 0, 9)
    index.commit(runs=[old])
    assert index.move_runs([(old, 4, 2048), (old, 5, 0)], [(4, "a")]) == 1
    assert not index.repoint(old, 6, 0)
    moved = old._replace(entry_log_id=4, position=2048)
    assert index.find(1, 5) == moved
    damaged = moved._replace(checksum=DAMAGED)
    assert index.divide([(moved, [damaged]), (old, [])]) == 1
    assert index.damaged_runs() == index.damaged_runs(1) == [damaged]
    assert index.damaged_runs(2) == []
    assert index.divide([(damaged, [])]) == 1
    assert index.runs(1) == []


def test_an_index_goes_out_of_the_way_and_gets_its_name(place: IndexPlace, path: str):
    building = f"{path}.building"
    place.remove(building)
    index = place.open(building, create=True)
    index.commit(meta=[("a", "1")])
    index.truncate_wal()
    index.close()
    place.move(building, path)
    assert (place.exists(building), place.exists(path)) == (False, True)
    assert not place.is_distrusted(path)
    place.distrust(path)
    assert place.is_distrusted(path)
    index = place.open(path)
    assert index.meta("a") == "1"
    index.check_whole()
    assert index.is_small
    index.close()
    assert place.set_aside(path) == f"{path}.damaged"
    assert not place.exists(path)
    with pytest.raises(DamagedIndexError):
        place.open(path)


def _committed(disk: SimDisk) -> str | None:
    index = ModelPlace(disk).open("/index")
    return index.meta("a")


def test_a_commit_of_the_model_that_did_not_end_is_there_after_a_kill_and_not_durable():
    disk = SimDisk()
    index = ModelPlace(disk).open("/index", create=True)
    index.commit(meta=[("a", "1")])

    def die(operation: str, path: str) -> None:
        if operation == "sync":
            raise ProcessDied(operation, path)

    disk.faults.on_call = die
    with pytest.raises(ProcessDied):
        index.commit(meta=[("a", "2")])
    assert index.meta("a") == "1"
    assert _committed(disk.crash()) == "1"
    after = disk.after_kill()
    assert _committed(after) == "2"
    assert _committed(after.crash()) == "1"
    assert _committed(after.crash(random.Random(1), keep=1.0)) == "2"
    ModelPlace(after).settle("/index")
    assert _committed(after.crash()) == "2"


def _with_a_failed_commit() -> tuple[SimDisk, Index]:
    disk = SimDisk()
    index = ModelPlace(disk).open("/index", create=True)
    disk.faults.fail("sync")
    with pytest.raises(StorageError):
        index.commit(meta=[("a", "1")])
    assert index.meta("a") is None
    return disk, index


def _after_power_cuts(disk: SimDisk) -> set[str | None]:
    return {_committed(disk.crash(random.Random(seed), keep=0.0)) for seed in range(20)}


def test_a_commit_of_the_model_whose_sync_fails_is_not_made():
    disk, index = _with_a_failed_commit()
    index.commit(meta=[("b", "2")])
    assert _committed(disk.after_kill()) is None
    disk, index = _with_a_failed_commit()
    index.close()
    assert _committed(disk.after_kill()) is None
    index.commit(meta=[("a", "2")])
    assert _after_power_cuts(disk) == {"2"}


def test_a_commit_of_the_model_whose_sync_failed_is_found_after_a_kill_and_never_durable():
    disk, _ = _with_a_failed_commit()
    disk = disk.after_kill()
    assert _committed(disk) == "1"
    ModelPlace(disk).settle("/index")
    assert _after_power_cuts(disk) == {None, "1"}
    # Commits that lie behind it in the log go with it, as long as there is that log.
    index = ModelPlace(disk).open("/index")
    index.commit(meta=[("a", "2")])
    assert _after_power_cuts(disk) == {None, "2"}
    index.truncate_wal()
    assert _after_power_cuts(disk) == {"2"}


def test_the_model_is_not_settled_by_a_sync_after_one_that_failed():
    disk = SimDisk()
    ModelPlace(disk).open("/index", create=True).commit(meta=[("a", "1")])

    def die(operation: str, path: str) -> None:
        if operation == "sync":
            raise ProcessDied(operation, path)

    disk.faults.on_call = die
    with pytest.raises(ProcessDied):
        ModelPlace(disk).open("/index").commit(meta=[("a", "2")])
    disk = disk.after_kill()
    disk.faults.fail("sync")
    with pytest.raises(StorageError):
        ModelPlace(disk).settle("/index")
    ModelPlace(disk).settle("/index")
    assert _committed(disk) == "2"
    assert _after_power_cuts(disk) == {"1", "2"}


def test_a_commit_of_many_new_ledgers_is_a_few_steps_and_all_of_it(index: Index):
    statements: list[str] = []
    if not isinstance(index, ModelIndex):
        index._connection.set_trace_callback(statements.append)  # SQLite alone sees its steps
    old = [run(ledger_id, 0, 4) for ledger_id in (7, 8)]
    index.commit(runs=old, states=[StoredLedger(7, b"k", born_at=1), StoredLedger(8, b"k")])
    statements.clear()
    ids = range(1000)
    runs = [run(ledger_id, 0, 1, position=ledger_id) for ledger_id in ids if ledger_id != 8]
    # A ledger has older entries, another one more than one run.
    runs[8:8] = [run(8, 0, 1), run(8, 5, 6)]
    replaced = index.commit(
        runs=runs, states=[StoredLedger(each, b"key", born_at=each) for each in ids]
    )
    assert replaced == [(7, 0, 1), (8, 0, 1)]
    assert len(statements) < 150
    reader = index.another()
    assert [(each, reader.find(each, 1)) for each in ids if each != 8] == [
        (each.ledger_id, each) for each in runs if each.ledger_id != 8
    ]
    assert [each[1:3] for each in reader.runs(8)] == [(0, 1), (2, 4), (5, 6)]
    assert [each[1:3] for each in reader.runs(7)] == [(0, 1), (2, 4)]
    assert list(reader.ledger_states()) == [
        StoredLedger(each, b"key", born_at=each) for each in ids
    ]
    # What was put there just now is known.
    assert index.commit(runs=[run(3, 1, 2), run(4, 2, 3)]) == [(3, 1, 2)]
    reader.close()


def test_damage_that_an_earlier_release_noted_down_is_found(path: str):
    opened = Index(path, create=True)
    opened.commit(runs=[run(3, 0, 4), run(4, 0, 4)], entry_logs=[(0, "a")])
    opened.divide([(run(3, 0, 4), [run(3, 0, 4)._replace(checksum=DAMAGED)])])
    opened.close()
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX condemned_run")
    connection.execute("CREATE INDEX damaged_run ON run (ledger, first) WHERE checksum = -1")
    connection.commit()
    connection.close()
    opened = Index(path, create=False)
    opened.divide([(run(4, 0, 4), [run(4, 0, 4).condemned(was_read=True)])])
    assert [each.ledger_id for each in opened.another().damaged_runs()] == [3, 4]
    names = "SELECT name FROM sqlite_master WHERE type = 'index'"
    connection = sqlite3.connect(path)
    assert ("condemned_run",) in connection.execute(names).fetchall()
    assert ("damaged_run",) not in connection.execute(names).fetchall()
    connection.close()
    opened.close()
