"""A simulated disk is as unkind as a real one: failed syncs, names, damage."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from quorumbook.errors import CorruptJournalError, StorageError
from quorumbook.protocol.digest import DigestType
from quorumbook.sim.cluster import SimulatedCluster
from quorumbook.sim.disks.disk import SECTOR, SimDisk
from quorumbook.sim.disks.index import ModelPlace
from quorumbook.sim.disks.mishaps import DiskMishaps
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.kernel import Kernel
from quorumbook.sim.life import Life, Variation, run_seed
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.process import Machine, Process
from quorumbook.sim.threads import ProcessDied
from quorumbook.storage.directories.places import INDEX_NAME

_LOG = "/b0/ledgers/current/0.log"


def _disk_after_a_failed_sync(data: bytes) -> SimDisk:
    disk = SimDisk()
    disk.put("/d/x", b"")
    file = disk.open("/d/x")
    file.write([data], 0)
    disk.faults.fail("sync")
    with pytest.raises(StorageError):
        file.sync()
    file.close()
    return disk


def _crashes(disk: SimDisk, keep: float) -> Counter[bytes]:
    return Counter(disk.crash(random.Random(seed), keep=keep).get("/d/x") for seed in range(300))


def test_what_a_failed_sync_left_is_lost_or_kept_whatever_is_synced_later():
    disk = _disk_after_a_failed_sync(b"a" * 10)
    disk.open("/d/x").sync()
    assert disk.get("/d/x") == b"a" * 10
    assert disk.after_kill().get("/d/x") == b"a" * 10
    assert disk.crash().get("/d/x") == b""
    found = _crashes(disk, keep=1.0)
    assert set(found) == {b"", b"a" * 10}
    assert 100 < found[b""] < 200


def test_what_is_synced_after_a_failed_sync_is_durable_beside_what_is_lost():
    disk = _disk_after_a_failed_sync(b"a" * SECTOR)
    file = disk.open("/d/x")
    file.write([b"b" * 10], SECTOR)
    file.sync()
    assert disk.crash().get("/d/x") == bytes(SECTOR) + b"b" * 10
    file.write([b"c" * SECTOR], 0)
    file.sync()
    assert set(_crashes(disk, keep=0.0)) == {b"c" * SECTOR + b"b" * 10}


def test_damage_lies_over_what_a_failed_sync_left():
    disk = _disk_after_a_failed_sync(b"a" * 10)
    disk.damage("/d/x", 0, b"b")
    assert {found[:1] for found in _crashes(disk, keep=0.0)} == {b"b"}


def _killed_at_a_sync_of(disk: SimDisk, parent: str, path: str) -> SimDisk:
    """Return the disk after the process died in the first sync of a new name in a directory."""

    def die(operation: str, at: str) -> None:
        if operation == "sync_directory" and at == parent and disk.exists(path):
            raise ProcessDied(operation, at)

    disk.faults.on_call = die
    with pytest.raises(ProcessDied):
        disk.make_directory("/a/b")
    return disk.after_kill()


def test_a_directory_needs_a_sync_of_its_parent():
    disk = _killed_at_a_sync_of(SimDisk(), "/a", "/a/b")
    assert disk.exists("/a/b")
    # It is there, and whoever finds it there may believe that it stays.
    file = disk.open("/a/b/x", create=True)
    file.write([b"1"], 0)
    file.sync()
    disk.sync_directory("/a/b")
    assert disk.crash().files() == []
    assert disk.crash().exists("/a")
    assert disk.crash(random.Random(1), keep=1.0).get("/a/b/x") == b"1"
    disk.sync_directory("/a")
    assert disk.crash().get("/a/b/x") == b"1"


@pytest.mark.parametrize("died_at", [("/", "/a"), ("/a", "/a/b")])
def test_a_start_makes_directories_of_a_killed_one_durable(died_at: tuple[str, str]):
    disk = _killed_at_a_sync_of(SimDisk(), *died_at)
    assert not disk.crash().exists(died_at[1])
    disk.make_directory("/a/b")
    assert disk.crash().exists("/a/b")


def test_a_directory_that_was_made_to_the_end_stays():
    disk = SimDisk()
    disk.make_directory("/a/b")
    assert disk.crash().exists("/a/b")


def _striking(disk: SimDisk, mishap: str, seed: int) -> None:
    """Let a mishap come to the only bookie there is."""
    kernel = Kernel(seed)
    machine = SimpleNamespace(disk=disk, name="b0", was_struck=False, can_lose_disk=False)
    plan = SimpleNamespace(digest_type=DigestType.CRC32C, quorums=(3, 3, 2))
    cluster = SimpleNamespace(kernel=kernel, plan=plan, bookies=[machine], victim=None)
    DiskMishaps(cluster).strike(mishap)  # type: ignore[arg-type]


def _damaged(make: Callable[[], SimDisk]) -> list[bytes]:
    found = []
    for seed in range(60):
        disk = make()
        _striking(disk, "damage_log", seed)
        found.append(disk.get(_LOG))
    return found


def _twice_written() -> SimDisk:
    disk = SimDisk()
    disk.put(_LOG, b"h" * 1024 + b"a" * 700)
    file = disk.open(_LOG)
    file.write([b"b" * 700], 1724)
    file.sync()
    return disk


def test_a_sector_turns_to_zeros_as_a_whole():
    assert any(bytes(SECTOR) in found for found in _damaged(_twice_written))


def test_a_stale_sector_is_what_that_sector_was_before():
    # The third one of the entries began with what was there first.
    before = b"a" * (1724 - 3 * SECTOR)
    stale = b"h" * 1024 + b"a" * SECTOR + before.ljust(SECTOR, b"\0")
    assert any(found[: len(stale)] == stale for found in _damaged(_twice_written))
    # One that was written once has no older version.
    fresh = SimDisk()
    fresh.put(_LOG, b"h" * 1024 + b"a" * 3000)
    assert fresh.older_sectors(_LOG) == {}


def test_an_older_version_of_a_sector_outlives_a_loss_of_power():
    disk = _twice_written().crash()
    assert disk.older_sectors(_LOG) == {3: b"a" * (1724 - 3 * SECTOR)}


def test_look_ups_in_an_index_fail_once_or_until_the_disk_is_mended():
    disk = SimDisk()
    index = ModelPlace(disk).open(f"/{INDEX_NAME}", create=True)
    index.commit(meta=[("a", "1")])
    reader = index.another()
    disk.faults.fail("read", INDEX_NAME)
    with pytest.raises(StorageError):
        reader.find(1, 1)
    assert reader.meta("a") == "1"
    disk.faults.fail("read", INDEX_NAME, permanent=True)
    for _ in range(3):
        with pytest.raises(StorageError):
            index.meta("a")
    disk.faults.heal()
    assert index.meta("a") == "1"


async def _live(_: Process) -> None:
    pass


def test_a_disk_that_fails_for_good_fails_the_next_process_as_well():
    kernel = Kernel(1)
    machine = Machine(kernel, SimulatedNetwork(kernel), "b0", lambda *_: None)
    machine.disk.faults.fail("read", permanent=True)
    machine.disk.faults.fail("sync")
    for end in (machine.kill, machine.cut_power):
        machine.start(_live)
        end()
        assert [each.operation for each in machine.disk.faults.planned] == ["read"]


@pytest.mark.parametrize("mishap", ["fail_read", "fail_sync"])
def test_disks_fail_once_or_for_good_and_in_indexes_as_well(mishap: str):
    planned = []
    for seed in range(60):
        disk = SimDisk()
        _striking(disk, mishap, seed)
        planned += disk.faults.planned
    assert {each.is_permanent for each in planned} == {True, False}
    if mishap == "fail_read":
        assert INDEX_NAME in {each.path_contains for each in planned}


_DAMAGES = ("_damage_entries", "_damage_journal", "_damage_states")


def test_all_that_a_bookie_keeps_is_damaged(monkeypatch: pytest.MonkeyPatch):
    struck: list[str] = []
    for name in _DAMAGES:
        monkeypatch.setattr(DiskMishaps, name, lambda _, __, name=name: struck.append(name))
    for seed in range(40):
        _striking(SimDisk(), "damage_log", seed)
    assert set(struck) == {*_DAMAGES}


def _told_of_damage(monkeypatch: pytest.MonkeyPatch, only: str, flush_s: float) -> list[str]:
    """Return what lives tell in which damage is of one kind, and breaks no promise."""
    for name in _DAMAGES:
        monkeypatch.setattr(DiskMishaps, name, getattr(DiskMishaps, only))
    plan = {
        "operations_max": 500,
        "rough_s": 4.0,
        "mishaps": ("damage_log", "kill_bookie"),
        "mishap_interval_s": 0.1,
        "digest_type": DigestType.CRC32C,
        "quorums": (3, 3, 2),
        "bookies": 4,
        "zookeepers": 0,
        "has_etcd": False,
        "flush_interval_s": flush_s,
    }
    told: list[str] = []
    for seed in range(6):
        outcome = run_seed(seed, keep_trace=True, variation=Variation(plan=plan, phase=""))
        assert outcome.violations == ()
        told += outcome.trace
    return told


def test_a_damaged_journal_is_refused_and_the_cluster_is_whole_without_it(
    monkeypatch: pytest.MonkeyPatch,
):
    told = _told_of_damage(monkeypatch, "_damage_journal", 3600.0)
    assert [line for line in told if "has a flipped bit" in line and ".txn" in line]
    refusals = [line for line in told if "refuses its journal" in line]
    assert [line for line in refusals if ".txn at byte " in line] == refusals != []
    assert [line for line in told if "loses its disk for good" in line]


def test_damaged_copies_of_ledger_states_keep_no_bookie_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
):
    told = _told_of_damage(monkeypatch, "_damage_states", 0.05)
    assert [line for line in told if "has a flipped bit" in line and "ledger-states" in line]


def test_a_bookie_that_refuses_a_journal_which_nobody_damaged_breaks_a_promise():
    kernel = Kernel(1)
    history = History(kernel)
    machine = SimulatedCluster(kernel, Life(1).plan, history).bookies[0]
    machine.damaged_journals.add("/b0/journal0/current/1.txn")
    error = CorruptJournalError("a group is damaged", path="/b0/journal0/current/2.txn", offset=512)
    # Its bookie would have to be started, and to find it.
    machine._refuses_journal(error)
    assert len(history.violations) == 1
