from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from quorumbook.env import Env
from quorumbook.errors import CorruptStateError, DiskFullError, InternalError, StorageError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.journal.marks import (
    NO_MARK,
    LastMarks,
    LogMark,
    decode_mark,
    encode_mark,
    has_reached,
    is_mark_file,
    mark_file_name,
    read_mark,
    write_mark,
)

GOLDEN = Path(__file__).parents[2] / "golden"


def disk_with(*directories: str) -> SimDisk:
    disk = SimDisk()
    for directory in directories:
        disk.make_directory(directory)
    return disk


def marks_on(disk: SimDisk, *directories: str, journal_count: int = 1) -> LastMarks:
    marks = LastMarks(Env(disk=disk), directories, journal_count)
    marks.load()
    return marks


def test_golden_marks_are_written_and_read_exactly() -> None:
    for row in json.loads((GOLDEN / "ondisk.json").read_text())["last_mark"]:
        mark = LogMark(row["log_file_id"], row["offset"])
        assert encode_mark(mark).hex() == row["hex"]
        assert decode_mark(bytes.fromhex(row["hex"])) == mark


def test_a_missing_or_empty_mark_is_before_everything() -> None:
    disk = disk_with("/a")
    assert read_mark(disk, "/a") == NO_MARK
    disk.put("/a/lastMark", b"")
    assert read_mark(disk, "/a") == NO_MARK


@pytest.mark.parametrize(
    "data", [b"x", bytes(15), bytes(17), b"\xff" * 16, encode_mark(LogMark(5, 0))[:8] + b"\xff" * 8]
)
def test_a_damaged_mark_is_refused_with_its_path(data: bytes) -> None:
    disk = disk_with("/a")
    disk.put("/a/lastMark", data)
    with pytest.raises(CorruptStateError, match="/a/lastMark"):
        read_mark(disk, "/a")


def test_s41_the_minimum_over_all_directories_counts() -> None:
    disk = disk_with("/a", "/b")
    write_mark(disk, "/a", LogMark(7, 5000))
    write_mark(disk, "/b", LogMark(6, 9000))
    marks = marks_on(disk, "/a", "/b")
    assert marks.minimum() == LogMark(6, 9000)
    assert marks.maximum() == LogMark(7, 5000)


def test_s41_a_directory_without_a_mark_holds_the_minimum_down() -> None:
    disk = disk_with("/a", "/b")
    write_mark(disk, "/a", LogMark(7, 5000))
    assert marks_on(disk, "/a", "/b").minimum() == NO_MARK


def test_s42_a_late_older_mark_does_not_move_back() -> None:
    disk = disk_with("/a", "/b")
    marks = marks_on(disk, "/a", "/b")
    assert marks.advance(LogMark(7, 512)) == LogMark(7, 512)
    assert marks.advance(LogMark(5, 99_999)) == LogMark(7, 512)
    assert read_mark(disk, "/a") == read_mark(disk, "/b") == LogMark(7, 512)


def test_s42_a_mark_behind_one_directory_still_reaches_the_other() -> None:
    disk = disk_with("/a", "/b")
    write_mark(disk, "/a", LogMark(9, 0))
    marks = marks_on(disk, "/a", "/b")
    assert marks.advance(LogMark(7, 512)) == LogMark(7, 512)
    assert read_mark(disk, "/a") == LogMark(9, 0)


def test_s43_marks_of_several_journals_are_compared_one_by_one() -> None:
    one, two = [LogMark(2, 0), LogMark(1, 0)], [LogMark(1, 0), LogMark(2, 0)]
    assert not has_reached(one, two)
    assert not has_reached(two, one)
    assert has_reached([LogMark(2, 0), LogMark(2, 0)], one)
    assert has_reached(one, one)
    with pytest.raises(InternalError):
        has_reached(one, [LogMark(1, 0)])


def test_s44_each_of_several_journals_has_its_own_file() -> None:
    disk = disk_with("/a")
    marks = marks_on(disk, "/a", journal_count=2)
    assert marks.advance_all([LogMark(3, 512), LogMark(2, 1024)]) == (
        LogMark(3, 512),
        LogMark(2, 1024),
    )
    assert disk.list_directory("/a") == ["lastMark.0", "lastMark.1"]
    assert marks.advance_all([LogMark(2, 0), LogMark(4, 0)]) == (LogMark(3, 512), LogMark(4, 0))
    assert mark_file_name() == "lastMark"
    assert is_mark_file("lastMark.1")
    assert not is_mark_file("lastMark.x")


def test_r21_a_mark_is_durable_in_every_directory_when_advance_returns() -> None:
    disk = disk_with("/a", "/b")
    marks_on(disk, "/a", "/b").advance(LogMark(7, 512))
    crashed = disk.crash()
    assert read_mark(crashed, "/a") == read_mark(crashed, "/b") == LogMark(7, 512)


def test_r21_a_mark_is_the_old_or_the_new_one_after_a_power_cut() -> None:
    for seed in range(20):
        disk = disk_with("/a")
        marks = marks_on(disk, "/a")
        marks.advance(LogMark(7, 512))
        disk.faults.fail("sync", "lastMark")
        with pytest.raises(StorageError):
            marks.advance(LogMark(8, 1024))
        crashed = disk.crash(random.Random(seed), keep=0.5)
        assert read_mark(crashed, "/a") in (LogMark(7, 512), LogMark(8, 1024))


def test_a_full_disk_cannot_stop_a_mark() -> None:
    disk = SimDisk(capacity_bytes=1000)
    disk.make_directory("/a")
    marks = marks_on(disk, "/a")
    marks.prepare()
    disk.open("/a/junk", create=True).write([bytes(1000 - 16)], 0)
    with pytest.raises(DiskFullError):
        disk.open("/a/more", create=True).write([b"x"], 0)
    assert marks.advance(LogMark(7, 512)) == LogMark(7, 512)
    assert disk.faults.count("create", ".tmp") == 0, "in place, no temporary file"


def test_r21_a_directory_that_fails_keeps_the_minimum_down_and_the_others_advance() -> None:
    disk = disk_with("/a", "/b", "/c")
    marks = marks_on(disk, "/a", "/b", "/c")
    marks.advance(LogMark(5, 0))
    disk.faults.fail("write", "/b/")
    with pytest.raises(StorageError, match="/b/lastMark"):
        marks.advance(LogMark(6, 0))
    assert marks.minimum() == LogMark(5, 0)
    assert marks.maximum() == LogMark(6, 0)
    assert read_mark(disk, "/c") == LogMark(6, 0)
    assert marks.advance(LogMark(6, 0)) == LogMark(6, 0)


def test_prepare_leaves_existing_marks_alone() -> None:
    disk = disk_with("/a", "/b")
    write_mark(disk, "/a", LogMark(7, 512))
    marks = marks_on(disk, "/a", "/b")
    marks.prepare()
    assert read_mark(disk, "/a") == LogMark(7, 512)
    assert disk.get("/b/lastMark") == bytes(16)
    assert marks.minimum() == NO_MARK


def test_a_mark_that_was_written_but_not_synced_is_durable_before_a_start_relies_on_it() -> None:
    """Found by the simulator: killed in between, then a journal was deleted and the power cut."""
    disk = disk_with("/a")
    write_mark(disk, "/a", LogMark(1, 512))
    disk.faults.fail("sync")
    with pytest.raises(StorageError):
        write_mark(disk, "/a", LogMark(2, 1024))
    disk = disk.after_kill()
    marks = marks_on(disk, "/a")
    assert marks.minima == (LogMark(2, 1024),)
    marks.prepare()
    assert read_mark(disk.crash(), "/a") == LogMark(2, 1024)


def test_a_mark_whose_name_is_not_durable_becomes_so_before_a_start_relies_on_it() -> None:
    disk = disk_with("/a")
    disk.faults.fail("sync_directory")
    with pytest.raises(StorageError):
        write_mark(disk, "/a", LogMark(2, 1024))
    disk = disk.after_kill()
    marks_on(disk, "/a").prepare()
    assert read_mark(disk.crash(), "/a") == LogMark(2, 1024)
