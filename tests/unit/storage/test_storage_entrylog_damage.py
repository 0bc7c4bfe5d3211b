"""What damage does to a scan: the runs it touched are reported, all others are found."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from doubles.records import entry, run
from quorumbook.env import Env
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.entrylog.format import encode_header, encode_run_record
from quorumbook.storage.entrylog.scan import DamagedStretch, ScannedRun, scan_entry_log
from quorumbook.storage.entrylog.writer import EntryLogs

RUNS = [
    run(1, 0, [b"a" * 20, b"b" * 20]),
    run(2, 7, [b"c", b"dd", b"eee"]),
    run(1, 2, [b"f" * 30]),
    run(3, 0, [b"g" * 10] * 2),
]


def scan(data: bytes, **options: int) -> tuple[list[ScannedRun], list[DamagedStretch]]:
    disk = SimDisk()
    disk.put("/a/0.log", data)
    runs, damage = [], []
    for item in scan_entry_log(Env(disk=disk), "/a", 0, **options):
        (runs if isinstance(item, ScannedRun) else damage).append(item)  # type: ignore[arg-type]
    assert disk.open_files == 0
    return runs, damage


def good_log(*, finished: bool = True) -> tuple[bytes, list[int], int]:
    """Return a log, where its runs start, and where the last run record ends."""
    disk = SimDisk()
    disk.make_directory("/a")
    logs = EntryLogs(Env(disk=disk), ["/a"])
    positions = [logs.append_run(r).position for r in RUNS]
    end = positions[-1] + len(RUNS[-1].data) + 68
    if finished:
        logs.rotate()
    logs.sync()
    return disk.get("/a/0.log"), positions, end


def found(runs: list[ScannedRun]) -> dict[int, bytes]:
    assert all(item.is_verified for item in runs)
    return {item.position: item.run.data for item in runs}


def check_touched(data: bytes, start: int, end: int) -> None:
    """Assert that only runs between two offsets are lost, and that each of them is reported."""
    good, positions, runs_end = good_log()
    runs, damage = scan(data)
    expected = dict(zip(positions, (r.data for r in RUNS), strict=True))
    got = found(runs)
    assert got.items() <= expected.items()
    for index, position in enumerate(positions):
        stop = positions[index + 1] if index + 1 < len(positions) else runs_end
        if not (start < stop and end > position):
            assert position in got, f"a run at {position} was not touched by {start}-{end}"
        elif data[position:stop] != good[position:stop]:
            assert position not in got
            assert any(d.position < stop and d.position + d.size_bytes > position for d in damage)


def test_the_catalogue_starts_from_a_good_log() -> None:
    data, positions, _ = good_log()
    runs, damage = scan(data)
    assert [item.position for item in runs] == positions
    assert damage == []
    assert [item.run.sizes for item in runs] == [r.sizes for r in RUNS]


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_s63_every_flipped_byte_costs_its_run_alone_and_is_reported(flip: int) -> None:
    good, _, runs_end = good_log()
    for at in range(1024, runs_end):
        data = bytearray(good)
        data[at] ^= flip
        check_touched(bytes(data), at, at + 1)


def test_every_flipped_byte_of_the_header_leaves_all_runs_and_is_reported() -> None:
    good, positions, _ = good_log()
    for at in range(32):
        data = bytearray(good)
        data[at] ^= 0x41
        runs, damage = scan(bytes(data))
        assert [item.position for item in runs] == positions, at
        if at not in range(20, 24):
            assert [d.position for d in damage] == [0], at


@pytest.mark.parametrize("size", [8, 64, 300])
def test_every_zeroed_stretch_costs_what_it_touched(size: int) -> None:
    good, _, runs_end = good_log()
    for start in range(1024, runs_end, 4):
        data = bytearray(good)
        end = min(start + size, runs_end)
        data[start:end] = bytes(end - start)
        check_touched(bytes(data), start, end)


def test_every_cut_leaves_the_runs_before_it() -> None:
    good, positions, runs_end = good_log(finished=False)
    ends = [*positions[1:], runs_end]
    for cut in range(1024, len(good)):
        runs, damage = scan(good[:cut])
        whole = sum(1 for end in ends if end <= cut)
        assert [item.position for item in runs] == positions[:whole]
        assert len(damage) == (0 if cut in (1024, *ends) else 1)
        assert all(d.is_tail for d in damage)


@pytest.mark.parametrize("cut", [0, 3, 31, 32, 500, 1023, 1024])
def test_a_log_cut_in_its_header_ends_there(cut: int) -> None:
    good, _, _ = good_log()
    runs, damage = scan(good[:cut])
    assert runs == []
    assert len(damage) == (1 if cut < 32 else 0)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 15, 5_242_881, 1_900_000_000, 2**31 - 1])
def test_s63_an_impossible_size_costs_one_run_and_no_memory(size: int) -> None:
    good, positions, _ = good_log()
    for at in (positions[0], positions[1], positions[1] + 41, positions[3]):
        data = bytearray(good)
        data[at : at + 4] = struct.pack(">i", size)
        tracemalloc.start()
        runs, damage = scan(bytes(data))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(runs) == 3
        (stretch,) = damage
        assert not stretch.is_tail
        assert stretch.path == "/a/0.log"
        assert stretch.ledger_id is not None
        assert peak < 32 * 1024 * 1024


@pytest.mark.parametrize("size", [1, 15, 5_242_881, 1_900_000_000, 2**31 - 1])
def test_s63_an_impossible_size_in_a_log_of_the_peer_ends_it_with_a_report(size: int) -> None:
    header = struct.pack(">4si", b"BKLO", 1).ljust(1024, b"\0")
    data = bytearray(header + RUNS[0].data + RUNS[1].data)
    at = 1024 + len(RUNS[0].data)
    data[at : at + 4] = struct.pack(">i", size)
    runs, damage = scan(bytes(data))
    assert [item.run.data for item in runs] == [RUNS[0].data]
    assert [(d.position, d.is_tail) for d in damage] == [(at, True)]


def test_s63_sizes_that_are_not_positive_are_stepped_over_as_the_peer_does() -> None:
    header = struct.pack(">4si", b"BKLO", 1).ljust(1024, b"\0")
    small = run(1, 0, [b"x"])
    for padding in (b"\xf0" * 17, bytes(1), bytes(3), bytes(70_000), b"\xf0" * 4 + bytes(9)):
        runs, damage = scan(header + small.data + padding + small.data)
        assert [item.run.data for item in runs] == [small.data] * 2
        assert runs[1].position == 1024 + len(small.data) + len(padding)
        assert damage == []


def test_s63_megabytes_of_zeros_are_stepped_over_quickly() -> None:
    header = struct.pack(">4si", b"BKLO", 1).ljust(1024, b"\0")
    runs, damage = scan(header + RUNS[0].data + bytes(20 * 1024 * 1024) + run(1, 0, [b"x"]).data)
    assert [item.run.count for item in runs] == [2, 1]
    assert damage == []


def test_a_record_cut_at_the_end_of_a_log_of_the_peer_is_reported() -> None:
    header = struct.pack(">4si", b"BKLO", 1).ljust(1024, b"\0")
    data = header + RUNS[0].data + RUNS[2].data
    for cut in range(len(header + RUNS[0].data) + 4, len(data)):
        runs, damage = scan(data[:cut])
        assert [item.run.data for item in runs] == [RUNS[0].data]
        assert len(damage) == 1


def test_entries_of_the_peer_are_collected_into_bounded_runs() -> None:
    header = struct.pack(">4si", b"BKLO", 1).ljust(1024, b"\0")
    runs, _ = scan(header + run(1, 0, [b"x" * 10_000] * 400).data)
    assert sum(item.run.count for item in runs) == 400
    assert [item.run.first_entry_id for item in runs] == [
        0,
        *(item.run.last_entry_id + 1 for item in runs[:-1]),
    ]
    assert max(len(item.run.data) for item in runs) <= 1024 * 1024


def test_a_large_run_across_many_windows_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumbook.storage.entrylog.scan.WINDOW_BYTES", 4096)
    big = [run(1, i * 100, [bytes([i]) * 700] * 100) for i in range(5)]
    disk = SimDisk()
    disk.make_directory("/a")
    logs = EntryLogs(Env(disk=disk), ["/a"])
    positions = [logs.append_run(r).position for r in big]
    logs.close()
    runs, damage = scan(disk.get("/a/0.log"))
    assert [(item.position, item.run.data) for item in runs] == list(
        zip(positions, (r.data for r in big), strict=True)
    )
    assert damage == []


def record_of(position: int, r: EntryRun, *, entry_log_id: int = 0) -> bytes:
    return encode_run_record(entry_log_id, position + len(r.data), r)


def test_a_run_record_of_another_place_or_log_proves_nothing() -> None:
    header = encode_header(0).ljust(1024, b"\0")
    r = RUNS[0]
    assert len(scan(header + r.data + record_of(1024, r))[0]) == 1
    for record in (record_of(1032, r), record_of(1024, r, entry_log_id=1)):
        runs, damage = scan(header + r.data + record)
        assert runs == []
        assert len(damage) == 1


def test_a_run_record_that_contradicts_its_entries_is_damage() -> None:
    header = encode_header(0).ljust(1024, b"\0")
    r = RUNS[1]
    for claim in (
        EntryRun(2, 6, 8, [1, 1, 1], r.data),
        EntryRun(2, 7, 10, [1, 1, 0, 1], r.data),
        EntryRun(2, 7, 2**40, [1, 1, 1], r.data),
    ):
        runs, damage = scan(header + r.data + encode_run_record(0, 1024 + len(r.data), claim))
        assert runs == []
        assert [d.reason for d in damage] == ["the run holds other entries"]


def test_a_payload_that_imitates_a_run_record_is_only_a_payload() -> None:
    forged = RUNS[3]
    inner = 1024 + 4 + 36
    payload = forged.data + record_of(inner, forged)
    header = encode_header(0).ljust(1024, b"\0")
    r = run(1, 0, [payload, b"more"])
    runs, damage = scan(header + r.data + record_of(1024, r))
    assert [item.run.data for item in runs] == [r.data]
    assert damage == []


def test_entries_of_several_ledgers_in_one_stretch_prove_nothing() -> None:
    header = encode_header(0).ljust(1024, b"\0")
    mixed = EntryRun(1, 0, 1, 41, run(1, 0, [b"hello"]).data + run(2, 1, [b"hello"]).data)
    runs, damage = scan(header + mixed.data + record_of(1024, mixed))
    assert runs == []
    assert len(damage) == 1


def test_entry_zero_of_ledger_zero_is_an_entry() -> None:
    disk = SimDisk()
    disk.make_directory("/a")
    logs = EntryLogs(Env(disk=disk), ["/a"])
    logs.append_run(EntryRun.of(0, 0, [entry(0, 0, b"")]))
    logs.sync()
    runs, damage = scan(disk.get("/a/0.log"))
    assert [(r.run.ledger_id, r.run.first_entry_id) for r in runs] == [(0, 0)]
    assert damage == []
