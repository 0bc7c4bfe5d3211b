from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from doubles.records import entry, noted_writes, run
from quorumbook.env import Env
from quorumbook.errors import (
    CorruptEntryLogError,
    DiskFullError,
    LocalProtocolError,
    MissingEntryLogError,
    NoWritableDirectoryError,
    ShortReadError,
    StorageError,
)
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.sim.disks.disk import SimDisk, SimFile
from quorumbook.storage.entrylog import writer
from quorumbook.storage.entrylog.format import (
    Location,
    decode_header,
    decode_last_id,
    encode_last_id,
    encode_ledgers_map,
    entry_log_id_of,
    entry_log_name,
    read_ledgers_map,
)
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.entrylog.scan import (
    DamagedStretch,
    ScannedRun,
    scan_entry_log,
)
from quorumbook.storage.entrylog.writer import (
    EntryLogs,
    delete_entry_log,
    find_entry_logs,
    newest_entry_log_id,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "ondisk.json").read_text())


def disk_of(*directories: str, capacity_bytes: int | None = None) -> tuple[SimDisk, Env]:
    disk = SimDisk(capacity_bytes=capacity_bytes)
    for directory in directories:
        disk.make_directory(directory)
    return disk, Env(disk=disk)


def scanned(env: Env, directory: str, entry_log_id: int = 0) -> list[ScannedRun | DamagedStretch]:
    return list(scan_entry_log(env, directory, entry_log_id))


def runs_of(env: Env, directory: str, entry_log_id: int = 0) -> list[tuple[int, int, int, int]]:
    found = []
    for item in scanned(env, directory, entry_log_id):
        assert isinstance(item, ScannedRun)
        assert item.is_verified
        r = item.run
        found.append((r.ledger_id, r.first_entry_id, r.last_entry_id, item.position))
    return found


def read_plainly(data: bytes) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    """Read a log straight from the text of the peer's format: entries, records of ledger -1."""
    assert data[:8] == b"BKLO\0\0\0\1"
    position, entries, special = 1024, [], []
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        if size <= 0:
            position += 1
            continue
        record = data[position + 4 : position + 4 + size]
        assert len(record) == size
        ledger_id, entry_id = struct.unpack_from(">qq", record)
        if ledger_id == -1:
            special.append((position, entry_id, record))
        else:
            entries.append(record)
        position += 4 + size
    return entries, special


def test_runs_come_back_from_where_they_were_put() -> None:
    _disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    runs = [run(1, 0, [b"a", b"bb"]), run(2, 7, [b"c" * 100] * 3), run(1, 2, [b"d"])]
    places = [logs.append_run(r) for r in runs]
    assert places[0] == Location(0, 1024)
    logs.sync()
    reader = EntryLogReader(env, ["/a"])
    for place, r in zip(places, runs, strict=True):
        assert reader.read(*place, len(r.data)) == r.data
    assert runs_of(env, "/a") == [
        (r.ledger_id, r.first_entry_id, r.last_entry_id, place.position)
        for place, r in zip(places, runs, strict=True)
    ]


def test_a_flush_writes_whole_blocks_that_can_pass_the_cache_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over several flushes; what lies between the last border and the end goes by itself."""
    disk, env = disk_of("/a")
    written: list[tuple[int, int]] = []
    write = SimFile.write

    def noted(file: SimFile, buffers: list[bytes], offset: int) -> None:
        if file.path.endswith(".log"):
            written.append((offset, sum(map(len, buffers))))
        write(file, buffers, offset)

    monkeypatch.setattr(SimFile, "write", noted)
    logs = EntryLogs(env, ["/a"])
    runs = [run(1, i, [bytes([i]) * (50_001 + i)]) for i in range(90)]
    places = []
    for number, r in enumerate(runs, start=1):
        places.append(logs.append_run(r))
        if number % 30 == 0:
            logs.sync()
    large = [(offset, size) for offset, size in written if size > 4096]
    assert sum(size for _, size in large) > 0.99 * sum(len(r.data) for r in runs)
    assert not [place for place in large if place[0] % 4096 or place[1] % 4096]
    crashed = Env(disk=disk.crash())
    reader = EntryLogReader(crashed, ["/a"])
    for place, r in zip(places, runs, strict=True):
        assert reader.read(*place, len(r.data)) == r.data
    assert len(runs_of(crashed, "/a")) == 90


def test_large_runs_are_written_without_a_copy_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To join 5 MB holds the interpreter for milliseconds, and the loop waits for it."""
    _, env = disk_of("/a")
    sizes = (5_000_000, 10, 300_000, 700_000, 10, 1_000_000, 4096 - 8, 600_000)
    runs = [run(1, entry_id, [bytes([entry_id]) * size]) for entry_id, size in enumerate(sizes)]
    large = {id(one.data) for one in runs if len(one.data) > writer.WRITE_BUFFER_BYTES}
    written = noted_writes(monkeypatch)
    logs = EntryLogs(env, ["/a"])
    places = [logs.append_run(one) for one in runs]
    logs.sync()
    reader = EntryLogReader(env, ["/a"])
    for one, place in zip(runs, places, strict=True):
        assert reader.read(place.entry_log_id, place.position, len(one.data)) == one.data
    assert runs_of(env, "/a") == [
        (1, entry_id, entry_id, place.position) for entry_id, place in enumerate(places)
    ]
    objects = [one.obj if isinstance(one, memoryview) else one for one in written]
    assert max(len(one) for one in objects if id(one) not in large) < 512 * 1024
    assert any(id(one) in large for one in objects)


def test_holes_of_a_striped_ledger_come_back() -> None:
    _, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    bodies = [entry(1, i, bytes([i]) * i) for i in (3, 5, 9)]
    sizes = [len(bodies[0]), 0, len(bodies[1]), 0, 0, 0, len(bodies[2])]
    data = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    logs.append_run(EntryRun(1, 3, 9, sizes, data))
    logs.sync()
    (found,) = scanned(env, "/a")
    assert isinstance(found, ScannedRun)
    assert list(found.run.entries()) == list(zip((3, 5, 9), bodies, strict=True))


def test_the_peer_reads_our_logs_without_knowing_of_the_checks() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    runs = [run(1, 0, [b"a", b"bb"]), run(2, 7, [b"c" * 100] * 3)]
    for r in runs:
        logs.append_run(r)
    logs.close()
    data = disk.get("/a/0.log")
    entries, special = read_plainly(data)
    assert entries == [body for r in runs for _, body in r.entries()]
    assert [entry_id for _, entry_id, _ in special] == [-0x5142, -0x5142, -2]
    map_offset, count = struct.unpack_from(">qi", data, 8)
    assert (map_offset, count) == (special[-1][0], 2)
    expected = [(r.ledger_id, len(r.data)) for r in runs]
    assert list(struct.iter_unpack(">qq", special[-1][2][20:])) == expected


def test_golden_entry_log_is_read_exactly() -> None:
    golden = GOLDEN["entry_log"]
    disk, env = disk_of("/a")
    header = bytes.fromhex(golden["header_first_32_hex"]).ljust(golden["header_size"], b"\0")
    data = header + bytes.fromhex(golden["after_header_hex"])
    assert len(data) == golden["length"]
    disk.put(f"/a/{golden['file_name']}", data)
    entries = []
    for item in scanned(env, "/a"):
        assert isinstance(item, ScannedRun)
        assert not item.is_verified
        for entry_id, body in item.run.entries():
            start = item.position + item.run.bounds(entry_id)[0]
            entries.append((item.run.ledger_id, entry_id, body.hex(), start))
    assert entries == [
        (e["ledger_id"], e["entry_id"], e["entry_hex"], e["position"]) for e in golden["entries"]
    ]
    file = disk.open("/a/0.log", read_only=True)
    parsed = decode_header(data[:1024], 0, "")
    assert parsed.map_offset == golden["ledgers_map_offset"]
    assert read_ledgers_map(file, parsed) == {5: 0x82, 6: 0x29}
    assert encode_ledgers_map({5: 0x82, 6: 0x29}) == data[parsed.map_offset :]


@pytest.mark.parametrize("name", ["live_disk_db.json", "live_disk_sorted.json"])
def test_golden_entry_logs_of_running_peers_are_read(name: str) -> None:
    golden = json.loads((Path(__file__).parents[2] / "golden" / name).read_text())
    key = next(key for key in golden if key.startswith("entry log "))
    disk, env = disk_of("/a")
    header = bytes.fromhex(golden[key]["header_first_32_hex"]).ljust(1024, b"\0")
    data = header + bytes.fromhex(golden[key]["body_prefix_hex"])
    disk.put("/a/0.log", data)
    entries = [
        body
        for item in scanned(env, "/a")
        if isinstance(item, ScannedRun)
        for _, body in item.run.entries()
    ]
    assert entries == read_plainly(data)[0]
    assert entries


def test_last_id_is_the_newest_id_in_hex() -> None:
    assert encode_last_id(26) == b"1a\n"
    assert decode_last_id(GOLDEN["entry_log"]["lastId_file_utf8"].encode()) == 1
    assert decode_last_id(b"") == decode_last_id(b"zz\n") == decode_last_id(b"\xff") == -1


def test_names_are_lower_case_hex() -> None:
    assert entry_log_name(255) == "ff.log"
    assert entry_log_id_of("ff.log") == 255
    for name in ("FF.log", "ff.txn", "ff.log.tmp", ".log", "lastId"):
        assert entry_log_id_of(name) is None


# --- rotation and starts --------------------------------------------------------------------


def test_logs_roll_at_their_size_over_all_directories() -> None:
    disk, env = disk_of("/a", "/b", "/c")
    logs = EntryLogs(env, ["/a", "/b", "/c"], size_bytes_max=5000)
    places = [logs.append_run(run(1, i * 10, [b"x" * 100] * 10)) for i in range(9)]
    logs.sync()
    ids = [place.entry_log_id for place in places]
    assert ids == [0, 0, 1, 1, 2, 2, 3, 3, 4] or len(set(ids)) > 3
    where = find_entry_logs(env, ["/a", "/b", "/c"])
    assert set(where.values()) == {"/a", "/b", "/c"}
    assert all(len(disk.get(f"{d}/{i:x}.log")) < 5200 for i, d in where.items())


def test_a_log_takes_no_more_ledgers_than_its_map_may_have_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "LEDGERS_MAX", 3)
    _, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    ids = [
        logs.append_run(run(ledger_id, entry_id, [b"x"])).entry_log_id
        for entry_id in range(2)
        for ledger_id in range(7)
    ]
    logs.sync()
    assert ids == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4]


def test_a_run_larger_than_a_log_goes_into_one_of_its_own() -> None:
    _, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"], size_bytes_max=2000)
    ids = [logs.append_run(run(1, i, [b"x" * size])).entry_log_id for i, size in
           enumerate([10, 5000, 10])]  # fmt: skip
    logs.sync()
    assert ids == [0, 1, 2]


def test_a_run_that_no_scan_could_verify_is_refused() -> None:
    _, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    with pytest.raises(LocalProtocolError):
        logs.append_run(EntryRun(1, 0, 0, 2**26, bytes(2**26 + 4)))


def test_every_start_begins_a_new_log() -> None:
    _, env = disk_of("/a")
    for expected in range(3):
        logs = EntryLogs(env, ["/a"])
        assert logs.append_run(run(1, 0, [b"x"])).entry_log_id == expected
        logs.sync()


def test_an_id_is_never_used_twice_even_when_its_log_is_gone() -> None:
    disk, env = disk_of("/a", "/b")
    logs = EntryLogs(env, ["/a", "/b"])
    logs.append_run(run(1, 0, [b"x"]))
    logs.close()
    delete_entry_log(env, "/a", 0)
    assert newest_entry_log_id(env, ["/a", "/b"]) == 0
    crashed = Env(disk=disk.crash())
    assert EntryLogs(crashed, ["/a", "/b"]).append_run(run(1, 0, [b"x"])).entry_log_id == 1
    later = EntryLogs(env, ["/a", "/b"], least_id=50)
    assert later.append_run(run(1, 0, [b"x"])).entry_log_id == 50


def test_an_idle_start_makes_no_log() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    logs.sync()
    logs.close()
    assert disk.files() == []
    assert logs.current_id is None


def test_a_log_in_two_directories_is_damage() -> None:
    disk, env = disk_of("/a", "/b")
    disk.put("/a/0.log", b"")
    disk.put("/b/0.log", b"")
    with pytest.raises(CorruptEntryLogError, match="also in /a"):
        find_entry_logs(env, ["/a", "/b"])


def test_a_finished_log_has_a_map_and_is_never_written_again() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    logs.append_run(run(1, 0, [b"x"]))
    assert (logs.current_id, logs.open_ids) == (0, {0})
    logs.rotate()
    assert (logs.current_id, logs.open_ids) == (None, {0})
    logs.sync()
    assert logs.open_ids == set()
    data = disk.get("/a/0.log")
    logs.append_run(run(1, 1, [b"y"]))
    logs.sync()
    assert disk.get("/a/0.log") == data


def test_a_map_of_many_ledgers_is_written_in_batches() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    for ledger_id in range(10_050):
        logs.append_run(
            EntryRun(ledger_id, 0, 0, 36, struct.pack(">i", 36) + entry(ledger_id, 0, b""))
        )
    logs.close()
    file = disk.open("/a/0.log", read_only=True)
    header = decode_header(file.read(0, 1024), 0, "")
    ledgers = read_ledgers_map(file, header)
    assert ledgers == dict.fromkeys(range(10_050), 40)
    assert len(runs_of(env, "/a")) == 10_050


@pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 20, 30, 40])
def test_s61_a_map_that_cannot_be_believed_is_none(at: int) -> None:
    data = bytearray(encode_ledgers_map({1: 10, 2: 20}))
    data[at] ^= 0x40
    disk, _env = disk_of("/a")
    log = struct.pack(">4siqi", b"BKLO", 1, 1024, 2).ljust(1024, b"\0") + bytes(data)
    disk.put("/a/0.log", log)
    file = disk.open("/a/0.log", read_only=True)
    found = read_ledgers_map(file, decode_header(log[:1024], 0, ""))
    assert found is None or at >= 24, "the map's content has no check in the peer's format"


@pytest.mark.parametrize(("offset", "count"), [(0, 0), (0, 5), (1024, 0), (9999, 2), (1024, 3)])
def test_s61_an_empty_or_missing_map_is_no_proof_of_an_empty_log(offset: int, count: int) -> None:
    disk, _ = disk_of("/a")
    log = struct.pack(">4siqi", b"BKLO", 1, offset, count).ljust(1024, b"\0")
    disk.put("/a/0.log", log + encode_ledgers_map({1: 10, 2: 20}))
    file = disk.open("/a/0.log", read_only=True)
    assert read_ledgers_map(file, decode_header(log, 0, "")) is None


# --- durability and failures ----------------------------------------------------------------


def test_r21_everything_appended_survives_a_power_cut_after_sync() -> None:
    disk, env = disk_of("/a", "/b")
    logs = EntryLogs(env, ["/a", "/b"], size_bytes_max=3000)
    places = {logs.append_run(run(1, i, [b"x" * 700])): i for i in range(10)}
    logs.sync()
    crashed = Env(disk=disk.crash())
    reader = EntryLogReader(crashed, ["/a", "/b"])
    for place, i in places.items():
        expected = run(1, i, [b"x" * 700]).data
        assert reader.read(*place, len(expected)) == expected


def test_r21_sync_covers_finished_logs_and_names() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"], size_bytes_max=1500)
    for i in range(3):
        logs.append_run(run(1, i, [b"x" * 300]))
    logs.sync()
    for name in ("0.log", "1.log", "2.log"):
        last_write = max(i for i, c in enumerate(disk.faults.calls) if c == ("write", f"/a/{name}"))
        assert ("sync", f"/a/{name}") in disk.faults.calls[last_write:]
    assert disk.faults.calls[-1] == ("sync_directory", "/a")


@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory", "create"])
def test_after_a_failure_everything_is_appended_again_to_new_logs(operation: str) -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    first = run(1, 0, [b"good"])
    if operation in ("write", "sync"):
        good = logs.append_run(first)
        logs.sync()
    disk.faults.fail(operation, "/a")
    second = run(1, 1, [b"again"])

    def append_and_sync() -> None:
        logs.append_run(second)
        logs.sync()

    with pytest.raises(StorageError):
        append_and_sync()
    place = logs.append_run(second)
    logs.sync()
    assert place.entry_log_id >= 1
    reader = EntryLogReader(env, ["/a"])
    assert reader.read(*place, len(second.data)) == second.data
    if operation in ("write", "sync"):
        assert reader.read(*good, len(first.data)) == first.data
    reader.close()
    logs.close()
    assert disk.open_files == 0


def test_a_failure_in_the_ledgers_map_fails_the_append() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"], size_bytes_max=1500)
    logs.append_run(run(1, 0, [b"x" * 300]))
    disk.faults.fail("write", "/a/0.log", at=2, error=DiskFullError)
    with pytest.raises(DiskFullError):
        logs.append_run(run(1, 1, [b"x" * 300]))
    logs.sync()
    assert disk.open_files == 0


def test_a_full_directory_is_passed_over() -> None:
    disk, env = disk_of("/a", "/b")
    disk.faults.fail("create", "/a/", error=DiskFullError, permanent=True)
    logs = EntryLogs(env, ["/a", "/b"])
    logs.append_run(run(1, 0, [b"x"]))
    logs.sync()
    assert list(find_entry_logs(env, ["/a", "/b"]).values()) == ["/b"]
    disk.faults.fail("create", "/b/", error=DiskFullError, permanent=True)
    logs.rotate()
    with pytest.raises(DiskFullError):
        logs.append_run(run(1, 1, [b"x"]))


def test_without_a_directory_nothing_is_appended() -> None:
    _, env = disk_of("/a")
    logs = EntryLogs(env, [], all_directories=["/a"])
    with pytest.raises(NoWritableDirectoryError):
        logs.append_run(run(1, 0, [b"x"]))


# --- single reads ---------------------------------------------------------------------------


def test_a_missing_log_and_a_short_read_are_told_apart() -> None:
    _, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    place = logs.append_run(run(1, 0, [b"x"]))
    logs.sync()
    reader = EntryLogReader(env, ["/a"])
    with pytest.raises(MissingEntryLogError):
        reader.read(5, 1024, 10)
    with pytest.raises(ShortReadError) as caught:
        reader.read(place.entry_log_id, place.position, 10_000)
    assert caught.value.offset == place.position


def test_a_disk_that_does_not_answer_takes_no_logs_of_another_one_along() -> None:
    disk, env = disk_of("/a", "/b")
    logs = EntryLogs(env, ["/b"])
    place = logs.append_run(run(1, 0, [b"x"]))
    logs.sync()
    disk.faults.fail("exists", "/a/", permanent=True)
    reader = EntryLogReader(env, ["/a", "/b"])
    reader.read(place.entry_log_id, place.position, 10)
    # It may lie where nobody can look, and is not to be taken for lost.
    with pytest.raises(StorageError, match="injected") as caught:
        reader.read(5, 1024, 10)
    assert type(caught.value) is StorageError


def test_open_files_are_bounded_and_the_oldest_is_closed() -> None:
    disk, env = disk_of("/a")
    logs = EntryLogs(env, ["/a"])
    for i in range(6):
        logs.append_run(run(1, i, [b"x"]))
        logs.rotate()
    logs.sync()
    reader = EntryLogReader(env, ["/a"], open_files_max=3)
    for entry_log_id in (0, 1, 2, 0, 3, 0):
        reader.read(entry_log_id, 1024, 4)
    assert reader.open_files == disk.open_files == 3
    opened = disk.faults.count("open", "/a/0.log")
    reader.read(0, 1024, 4)
    assert disk.faults.count("open", "/a/0.log") == opened
    reader.forget(0)
    reader.forget(77)
    assert disk.open_files == 2
    reader.close()
    assert disk.open_files == 0
