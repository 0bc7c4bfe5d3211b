from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.records import Recorder, entry, in_journal_order, journal_bytes, lac_packet, run
from doubles.sim_threads import StepClock
from quorumbook.env import Env
from quorumbook.errors import CorruptJournalError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.journal.format import (
    HEADER_SIZE,
    PADDING,
    encode_header,
    fence_record,
    journal_id_of,
    journal_name,
    key_record,
    lac_record,
    padding_record_size,
)
from quorumbook.storage.journal.marks import NO_MARK, LogMark
from quorumbook.storage.journal.replay import ReplayReport, replay

DIRECTORY = "/j"
GOLDEN = Path(__file__).parents[2] / "golden"
KEY = b"k" * 20


def replayed(
    files: dict[int, bytes], mark: LogMark = NO_MARK, *, boot: str = ""
) -> tuple[list[tuple[object, ...]], ReplayReport]:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    for journal_id, data in files.items():
        disk.put(f"{DIRECTORY}/{journal_name(journal_id)}", data)
    recorder = Recorder()
    clock = StepClock()
    clock.boot = boot
    report = replay(Env(disk=disk, clock=clock), DIRECTORY, mark, recorder)
    assert disk.open_files == 0
    return recorder.events, report


def golden_record(record: bytes) -> tuple[object, ...] | None:
    ledger_id, entry_id = struct.unpack_from(">qq", record)
    if entry_id >= 0:
        return ("entry", ledger_id, entry_id, record)
    if entry_id == -0x1000:
        return ("key", ledger_id, record[20:])
    if entry_id == -0x2000:
        return ("fence", ledger_id)
    if entry_id == -0x8000:
        return ("lac", ledger_id, record[20:])
    return None


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return content


# --- the peer's journals --------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 2])
def test_golden_journals_of_versions_4_5_and_6_are_read_exactly(index: int) -> None:
    journal = load("ondisk.json")["journals"][index]
    assert journal["version"] == 4 + index
    data = bytes.fromhex(journal["file_prefix_hex_up_to_data_end"])
    data = data.ljust(journal["file_length_with_preallocation"], b"\0")
    journal_id = journal_id_of(journal["file_name"])
    assert journal_id is not None
    events, report = replayed({journal_id: data})
    records = [bytes.fromhex(r["record_hex"]) for r in journal["records"] if "record_hex" in r]
    expected = [golden_record(record) for record in records]
    assert in_journal_order(events, expected) == expected
    assert report.end == LogMark(journal_id, journal["data_end"])
    assert not report.damaged_tail


@pytest.mark.parametrize("name", ["live_disk_db.json", "live_disk_sorted.json"])
def test_golden_journals_of_running_peers_are_read_exactly(name: str) -> None:
    disk = load(name)
    key = next(key for key in disk if key.startswith("journal ") and key.endswith(".txn"))
    journal = disk[key]
    data = bytearray(journal["file_length"])
    data[:16] = bytes.fromhex(journal["header_first_16_hex"])
    records = []
    for item in journal["records"]:
        at = item["position"]
        if "record_hex" in item:
            record = bytes.fromhex(item["record_hex"])
            data[at : at + 4 + len(record)] = struct.pack(">i", len(record)) + record
            records.append(record)
        else:
            data[at : at + 8] = struct.pack(">ii", PADDING, item["padding_payload_length"])
    journal_id = journal_id_of(key.split()[1])
    assert journal_id is not None
    events, report = replayed({journal_id: bytes(data)})
    expected = [golden_record(record) for record in records]
    assert in_journal_order(events, expected) == expected
    assert not report.damaged_tail
    mark = bytes.fromhex(disk["ledgers/current/lastMark"]["hex"])
    assert report.end >= LogMark(*struct.unpack(">qq", mark))


def test_golden_padding_sizes_are_ours() -> None:
    for row in load("ondisk.json")["journal_padding"]:
        size = padding_record_size(row["position_mod_alignment"], row["alignment"])
        assert size == row["padding_record_total_bytes"]


def plain(version: int, records: list[bytes], zeros: int = 1000) -> bytes:
    header = b"" if version == 1 else b"BKLG" + struct.pack(">i", version)
    if version >= 5:
        header = header.ljust(512, b"\0")
    framed = [struct.pack(">i", len(record)) + record for record in records]
    return header + b"".join(framed) + bytes(zeros)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_version_of_the_peer_is_read(version: int) -> None:
    records = [entry(5, 0, b"a"), entry(5, 1, b"bb"), entry(6, 9)]
    expected: list[tuple[object, ...]] = [
        ("entry", 5, 0, records[0]),
        ("entry", 5, 1, records[1]),
        ("entry", 6, 9, records[2]),
    ]
    for needed, record, event in [
        (3, key_record(5, KEY)[4:], ("key", 5, KEY)),
        (4, fence_record(5)[4:], ("fence", 5)),
        (6, lac_record(5, b"p" * 20)[4:], ("lac", 5, b"p" * 20)),
    ]:
        if version >= needed:
            records.append(record)
            expected.append(event)
    events, report = replayed({7: plain(version, records)})
    assert in_journal_order(events, expected) == expected
    assert report.end == LogMark(7, len(plain(version, records, 0)))
    assert not report.damaged_tail


@pytest.mark.parametrize(
    ("version", "record"),
    [(2, key_record(5, KEY)), (3, fence_record(5)), (3, lac_record(5, b"p"))],
)
def test_a_record_newer_than_its_journal_is_damage(version: int, record: bytes) -> None:
    with pytest.raises(CorruptJournalError):
        replayed({7: plain(version, [entry(5, 0), record[4:]])})


def test_r23_unknown_special_records_are_skipped() -> None:
    unknown = struct.pack(">qq", 5, -0x4000)
    newer = struct.pack(">qq", 5, -0x10000) + b"whatever"
    framed = [struct.pack(">i", len(r)) + r for r in (unknown, newer)]
    expected = [("entry", 5, 0, entry(5, 0)), ("entry", 5, 1, entry(5, 1))]
    assert replayed({7: plain(6, [entry(5, 0), unknown, newer, entry(5, 1)])})[0] == expected
    group = [run(5, 0, [b"payload"]).data, *framed, run(5, 1, [b"payload"]).data]
    assert replayed({7: journal_bytes(7, [group])})[0] == expected


def test_an_empty_or_untouched_file_holds_nothing() -> None:
    for data in (b"", bytes(8), bytes(512), bytes(5000)):
        events, report = replayed({7: data})
        assert events == []
        assert not report.damaged_tail


def test_an_empty_directory_holds_nothing() -> None:
    assert replayed({}) == ([], ReplayReport(0, NO_MARK, False))


def test_the_peer_cut_in_a_record_ends_the_data_and_is_reported() -> None:
    whole = plain(6, [entry(5, 0), entry(5, 1), entry(5, 2)], zeros=0)
    start = 512 + 2 * (4 + len(entry(5, 1)))
    for end in range(start + 4, len(whole)):
        events, report = replayed({7: whole[:end]})
        assert [event[2] for event in events] == [0, 1]
        assert report.damaged_tail
    with pytest.raises(CorruptJournalError):
        replayed({7: whole[:-3], 8: plain(6, [entry(5, 3)])})


@pytest.mark.parametrize("length", [-1, -0x101, -(2**31), 2**31 - 1, 15, 1])
def test_s46_an_impossible_length_before_data_is_refused(length: int) -> None:
    data = bytearray(plain(6, [entry(5, 0), entry(5, 1), entry(5, 2)]))
    at = 512 + 4 + len(entry(5, 0))
    data[at : at + 4] = struct.pack(">i", length)
    with pytest.raises(CorruptJournalError) as caught:
        replayed({7: bytes(data)})
    assert caught.value.offset == at
    assert caught.value.path == "/j/7.txn"


@pytest.mark.parametrize("length", [-1, -0x101, -(2**31), 2**31 - 1, 3])
def test_s46_an_impossible_length_at_the_very_end_stops_cleanly(length: int) -> None:
    data = plain(6, [entry(5, 0)], zeros=0) + struct.pack(">i", length) + bytes(512)
    events, report = replayed({7: data})
    assert [event[2] for event in events] == [0]
    assert report.damaged_tail


def test_bytes_behind_the_end_of_the_peers_records_are_reported() -> None:
    data = plain(6, [entry(5, 0)]) + entry(5, 1)
    events, report = replayed({7: data})
    assert [event[2] for event in events] == [0]
    assert report.damaged_tail
    with pytest.raises(CorruptJournalError):
        replayed({7: data, 8: plain(6, [])})


def test_records_longer_than_a_window_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumbook.storage.journal.scan.WINDOW_BYTES", 1024)
    bodies = [entry(5, i, bytes([i]) * (i * 300)) for i in range(20)]
    expected = [("entry", 5, i, body) for i, body in enumerate(bodies)]
    assert replayed({7: plain(6, bodies)})[0] == expected
    framed = [struct.pack(">i", len(body)) + body for body in bodies]
    assert replayed({7: journal_bytes(7, [[f] for f in framed], zeros=5000)})[0] == expected
    assert replayed({7: journal_bytes(7, [framed], zeros=5000)})[0] == expected


# --- ours -----------------------------------------------------------------------------------


def three_groups() -> tuple[list[list[bytes]], list[tuple[object, ...]]]:
    groups = [
        [key_record(1, KEY), run(1, 0, [b"a" * 40, b"b" * 50]).data],
        [run(1, 2, [b"c"]).data, lac_record(1, lac_packet(1, 1)), run(2, 5, [b"d"]).data],
        [run(1, 3, [b"e" * 60, b"f" * 60]).data, lac_record(1, lac_packet(1, 3))],
    ]
    events: list[tuple[object, ...]] = [
        ("key", 1, KEY),
        ("entry", 1, 0, entry(1, 0, b"a" * 40)),
        ("entry", 1, 1, entry(1, 1, b"b" * 50)),
        ("entry", 1, 2, entry(1, 2, b"c")),
        ("lac", 1, lac_packet(1, 1)),
        ("entry", 2, 5, entry(2, 5, b"d")),
        ("entry", 1, 3, entry(1, 3, b"e" * 60)),
        ("entry", 1, 4, entry(1, 4, b"f" * 60)),
        ("lac", 1, lac_packet(1, 3)),
    ]
    return groups, events


DATA_END = 512 * 4
LAST_GROUP = 512 * 3


def outcome(data: bytes) -> tuple[str, list[tuple[object, ...]]]:
    try:
        events, report = replayed({7: data})
    except CorruptJournalError as error:
        return ("refused" if error.path == "/j/7.txn" and error.offset is not None else "?"), []
    events = in_journal_order(events, three_groups()[1])
    return ("tail" if report.damaged_tail else "clean"), events


def test_the_catalogue_starts_from_a_good_file() -> None:
    groups, events = three_groups()
    data = journal_bytes(7, groups, zeros=2048)
    assert len(data) == DATA_END + 2048
    assert outcome(data) == ("clean", events)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_s51_every_flipped_byte_is_noticed(flip: int) -> None:
    groups, events = three_groups()
    good = journal_bytes(7, groups, zeros=700)
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= flip
        kind, got = outcome(bytes(data))
        if at < LAST_GROUP:
            assert kind == "refused", at
        else:
            assert kind == "tail", at
            least = 6 if at < DATA_END else 9
            assert got == events[: len(got)], at
            assert len(got) >= least, at


def test_every_cut_is_noticed_unless_it_is_where_a_group_ends() -> None:
    groups, events = three_groups()
    good = journal_bytes(7, groups, zeros=700)
    for end in range(len(good)):
        kind, got = outcome(good[:end])
        if end <= 512 or end >= DATA_END or end in (1024, 1536):
            # What is left is a file that a crash could leave, with these groups or none.
            assert kind == "clean", end
            assert got == events[: {1024: 3, 1536: 6}.get(end, 0 if end <= 512 else 9)]
        else:
            # Nothing but zeros of a group is like nothing.
            is_zero = not any(good[end // 512 * 512 : end])
            assert kind == ("clean" if is_zero else "tail"), end
            assert got == events[: len(got)], end


def test_every_cut_is_noticed_when_another_file_follows() -> None:
    groups, events = three_groups()
    good = journal_bytes(7, groups)
    next_file = journal_bytes(8, [[run(9, 0, [b"x"]).data]], previous=(7, DATA_END), is_start=False)
    assert len(replayed({7: good, 8: next_file})[0]) == len(events) + 1
    for end in range(1, DATA_END):
        with pytest.raises(CorruptJournalError):
            replayed({7: good[:end], 8: next_file})


def test_every_zeroed_stretch_is_noticed() -> None:
    groups, events = three_groups()
    good = journal_bytes(7, groups, zeros=700)
    for start in range(0, DATA_END, 64):
        for size in (64, 512, 1024, DATA_END):
            data = bytearray(good)
            end = min(start + size, DATA_END)
            data[start:end] = bytes(end - start)
            if bytes(data) == good:
                continue
            kind, got = outcome(bytes(data))
            assert got == events[: len(got)]
            if start < LAST_GROUP and end <= LAST_GROUP:
                assert kind == "refused", (start, end)
            elif end == DATA_END and (start <= 512 or start in (1024, 1536)):
                # Whole groups that never were and whole groups that are gone look alike.
                assert kind == "clean"
            elif start >= LAST_GROUP:
                assert kind == "tail", (start, end)
            else:
                assert kind in ("refused", "tail"), (start, end)


def test_damage_is_refused_with_file_and_offset() -> None:
    groups, _ = three_groups()
    data = bytearray(journal_bytes(7, groups))
    data[600] ^= 1
    with pytest.raises(CorruptJournalError, match=r"/j/7\.txn at byte 512"):
        replayed({7: bytes(data)})


def test_s55_a_header_that_a_full_disk_cut_short_does_not_stop_the_next_start() -> None:
    header = encode_header(8, previous_id=7, previous_end=DATA_END, is_start=False)
    groups, events = three_groups()
    for end in range(512):
        for zeros in (0, 5000):
            files = {7: journal_bytes(7, groups), 8: header[:end] + bytes(zeros)}
            got, report = replayed(files)
            assert (in_journal_order(got, events), report.damaged_tail) == (events, False)


def test_a_torn_header_with_a_group_behind_it_is_refused() -> None:
    good = journal_bytes(7, [[run(1, 0, [b"a"]).data]])
    for end in range(512):
        if not any(good[end:512]):
            continue
        with pytest.raises(CorruptJournalError):
            replayed({7: good[:end] + bytes(512 - end) + good[512:]})


def test_groups_that_changed_places_are_noticed() -> None:
    groups, _ = three_groups()
    good = journal_bytes(7, groups)
    swapped = good[:512] + good[1024:1536] + good[512:1024] + good[1536:]
    with pytest.raises(CorruptJournalError):
        replayed({7: swapped})


def test_a_file_under_another_name_is_noticed() -> None:
    groups, _ = three_groups()
    with pytest.raises(CorruptJournalError, match=r"7\.txn"):
        replayed({8: journal_bytes(7, groups)})


def test_a_group_of_another_journal_is_noticed() -> None:
    groups, _ = three_groups()
    ours, other = journal_bytes(7, groups), journal_bytes(8, groups)
    assert ours[512:1000] == other[512:1000]
    with pytest.raises(CorruptJournalError):
        replayed({7: ours[:512] + other[512:1024] + ours[1024:]})


def test_a_newer_release_is_refused_in_one_line() -> None:
    header = bytearray(encode_header(7))
    header[16:20] = struct.pack(">i", 3)
    from google_crc32c import value

    header[508:] = struct.pack(">I", value(bytes(header[:508])))
    with pytest.raises(CorruptJournalError, match="newer release") as caught:
        replayed({7: bytes(header)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [-1, 0, 7, 100])
def test_a_version_of_the_peer_that_nobody_knows_is_refused(version: int) -> None:
    data = b"BKLG" + struct.pack(">i", version) + bytes(504) + entry(1, 0)
    with pytest.raises(CorruptJournalError):
        replayed({7: data})


def test_a_header_that_lost_its_mark_does_not_switch_the_checks_off() -> None:
    groups, _ = three_groups()
    good = journal_bytes(7, groups)
    with pytest.raises(CorruptJournalError):
        replayed({7: good[:8] + bytes(504) + good[512:]})


# --- the torn tail --------------------------------------------------------------------------


def test_r23_a_torn_last_group_gives_its_provable_prefix() -> None:
    groups, events = three_groups()
    data = bytearray(journal_bytes(7, groups, zeros=1024))
    second_entry = LAST_GROUP + 4 + len(entry(1, 3, b"e" * 60))
    data[second_entry + 50] ^= 1
    got, report = replayed({7: bytes(data)})
    assert in_journal_order(got, events) == events[:7]
    assert report.damaged_tail
    assert report.damage == (("/j/7.txn", LAST_GROUP),)


@pytest.mark.parametrize("extra", [[], [fence_record(3)], [lac_record(3, lac_packet(3, 2))]])
def test_a_key_ends_the_provable_prefix(extra: list[bytes]) -> None:
    group = [run(1, 0, [b"a"]).data, *extra, key_record(2, KEY), run(2, 0, [b"b"]).data]
    data = bytearray(journal_bytes(7, [group]))
    data[-1] ^= 1
    got, report = replayed({7: bytes(data)})
    assert report.damaged_tail
    assert len(got) == 1 + len(extra)


def test_an_entry_with_a_mac_cannot_be_proven() -> None:
    body = struct.pack(">qqqq", 1, 0, -1, 3) + b"m" * 20 + b"abc"
    data = bytearray(journal_bytes(7, [[struct.pack(">i", len(body)) + body]]))
    assert len(replayed({7: bytes(data)})[0]) == 1
    data[-1] ^= 1
    got, report = replayed({7: bytes(data)})
    assert (got, report.damaged_tail) == ([], True)


def test_an_entry_with_crc32_is_proven_by_it() -> None:
    import zlib

    head = struct.pack(">qqqq", 1, 0, -1, 3)
    body = head + struct.pack(">q", zlib.crc32(head + b"abc")) + b"abc"
    data = bytearray(journal_bytes(7, [[struct.pack(">i", len(body)) + body]]))
    data[-1] ^= 1
    got, report = replayed({7: bytes(data)})
    assert (got, report.damaged_tail) == ([("entry", 1, 0, body)], True)


def test_s45_the_end_of_a_damaged_tail_is_behind_it() -> None:
    groups, _ = three_groups()
    data = bytearray(journal_bytes(7, groups, zeros=4096))
    data[LAST_GROUP + 100] ^= 1
    _, report = replayed({7: bytes(data)})
    assert report.end == LogMark(7, DATA_END)
    events, again = replayed({7: bytes(data)}, report.end)
    assert events == []
    assert not again.damaged_tail


def test_r23_a_torn_tail_that_a_start_has_met_stays_known() -> None:
    groups, events = three_groups()
    torn = bytearray(journal_bytes(7, groups, zeros=4096))
    torn[LAST_GROUP + 8] ^= 1
    _, report = replayed({7: bytes(torn)})
    successor = journal_bytes(8, [[run(9, 0, [b"x"]).data]], previous=report.end, is_start=True)
    got, again = replayed({7: bytes(torn), 8: successor})
    expected = [*events[:6], ("entry", 9, 0, entry(9, 0, b"x"))]
    assert in_journal_order(got, expected) == expected
    assert again.damaged_tail
    assert again.end == LogMark(8, 1024)


@pytest.mark.parametrize(
    "successor",
    [
        journal_bytes(8, [], previous=(7, DATA_END), is_start=False),
        journal_bytes(8, [], previous=(7, LAST_GROUP), is_start=True),
        journal_bytes(8, [], is_start=True),
        plain(6, []),
    ],
)
def test_r23_a_torn_group_before_other_files_is_damage(successor: bytes) -> None:
    groups, _ = three_groups()
    torn = bytearray(journal_bytes(7, groups))
    torn[LAST_GROUP + 8] ^= 1
    with pytest.raises(CorruptJournalError):
        replayed({7: bytes(torn), 8: successor})


def test_two_bad_groups_are_no_torn_tail() -> None:
    groups, _ = three_groups()
    data = bytearray(journal_bytes(7, groups))
    data[1100] ^= 1
    data[1600] ^= 1
    with pytest.raises(CorruptJournalError):
        replayed({7: bytes(data)})


def test_a_torn_first_group_leaves_an_empty_journal() -> None:
    data = bytearray(journal_bytes(7, [[key_record(1, KEY), run(1, 0, [b"a" * 3000]).data]]))
    for start in range(512, len(data), 512):
        torn = bytearray(data)
        torn[start : start + 512] = bytes(512)
        events, report = replayed({7: bytes(torn)})
        assert report.damaged_tail
        assert events == []


# --- marks and files ------------------------------------------------------------------------


def test_replay_starts_at_the_mark() -> None:
    groups, events = three_groups()
    data = journal_bytes(7, groups)
    for offset, index in [(0, 0), (512, 0), (1024, 3), (1536, 6), (2048, 9), (9999, 9)]:
        got, report = replayed({7: data}, LogMark(7, offset))
        assert in_journal_order(got, events) == events[index:]
        assert report.end == LogMark(7, max(offset, DATA_END) if offset < 9999 else 10240)


def test_a_mark_of_the_peer_four_bytes_behind_the_end_is_understood() -> None:
    groups, _ = three_groups()
    events, report = replayed({7: journal_bytes(7, groups, zeros=2048)}, LogMark(7, DATA_END + 4))
    assert events == []
    assert not report.damaged_tail


def test_a_mark_inside_a_group_is_refused() -> None:
    groups, _ = three_groups()
    groups[0].append(run(1, 9, [b"long" * 300]).data)
    with pytest.raises(CorruptJournalError):
        replayed({7: journal_bytes(7, groups)}, LogMark(7, 1024))


def test_files_before_the_mark_are_not_looked_at() -> None:
    groups, events = three_groups()
    files = {6: b"garbage" * 200, 7: journal_bytes(7, groups)}
    assert in_journal_order(replayed(files, LogMark(7, 0))[0], events) == events


@pytest.mark.parametrize(
    ("ids", "mark"),
    [([8], LogMark(7, 512)), ([], LogMark(7, 512)), ([7, 9], LogMark(7, 0)), ([1, 3], NO_MARK)],
)
def test_a_missing_file_is_damage(ids: list[int], mark: LogMark) -> None:
    with pytest.raises(CorruptJournalError, match="missing"):
        replayed({i: journal_bytes(i, []) for i in ids}, mark)


def test_other_files_in_the_directory_do_not_matter() -> None:
    disk = SimDisk()
    for name in ("VERSION", "7.txn.bak", "lock", "X7.txn", "7.TXN"):
        disk.put(f"{DIRECTORY}/{name}", b"junk")
    disk.put(f"{DIRECTORY}/7.txn", journal_bytes(7, [[run(1, 0, [b"a"]).data]]))
    recorder = Recorder()
    replay(Env(disk=disk), DIRECTORY, NO_MARK, recorder)
    assert len(recorder.events) == 1


def test_journals_of_the_peer_and_ours_follow_each_other() -> None:
    files = {
        5: plain(6, [entry(1, 0)]),
        6: journal_bytes(6, [[run(1, 1, [b"payload"]).data]], previous=(5, 557), zeros=600),
        7: plain(5, [entry(1, 2)]),
        8: journal_bytes(8, [[run(1, 3, [b"payload"]).data]], previous=(7, 557)),
    }
    events, report = replayed(files)
    assert events == [("entry", 1, i, entry(1, i)) for i in range(4)]
    assert report.records == 4
    assert len(report.files) == 4


# --- runs -----------------------------------------------------------------------------------


def runs_of(groups: list[list[bytes]]) -> list[tuple[int, int, int, int]]:
    disk = SimDisk()
    disk.put(f"{DIRECTORY}/7.txn", journal_bytes(7, groups))
    recorder = Recorder()
    replay(Env(disk=disk), DIRECTORY, NO_MARK, recorder)
    return [(r.ledger_id, r.first_entry_id, r.last_entry_id, r.count) for r in recorder.runs]


def test_consecutive_entries_are_one_run_across_groups() -> None:
    assert runs_of([[run(1, 0, [b"a"] * 3).data], [run(1, 3, [b"b"] * 2).data]]) == [(1, 0, 4, 5)]


def test_stripes_are_one_run_with_holes() -> None:
    stripes = [run(1, i, [b"a"]).data for i in (0, 2, 5, 6, 22, 40)]
    assert runs_of([stripes]) == [(1, 0, 22, 5), (1, 40, 40, 1)]


def test_a_repeated_entry_starts_a_new_run() -> None:
    data = [run(1, 0, [b"a", b"b"]).data, run(1, 1, [b"c"]).data]
    assert runs_of([data]) == [(1, 0, 1, 2), (1, 1, 1, 1)]


def test_other_records_keep_their_place_between_entries() -> None:
    groups = [[run(1, 0, [b"a"]).data, fence_record(1), run(1, 1, [b"b"]).data]]
    events, _ = replayed({7: journal_bytes(7, groups)})
    assert [event[0] for event in events] == ["entry", "fence", "entry"]


def test_ledgers_that_were_written_in_turn_come_back_as_runs() -> None:
    """An entry each for every ledger, group by group: single entries would cost a run each."""
    groups = [[run(ledger, i, [b"x" * 9]).data for ledger in range(50)] for i in range(20)]
    assert sorted(runs_of(groups)) == [(ledger, 0, 19, 20) for ledger in range(50)]


def test_what_is_collected_of_many_ledgers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumbook.storage.journal.runs.OPEN_SIZE_BYTES", 5000)
    groups = [[run(ledger, i, [b"x" * 9]).data for ledger in range(50)] for i in range(20)]
    found = runs_of(groups)
    assert sum(count for *_, count in found) == 1000
    size = 4 + len(entry(1, 0, b"x" * 9))
    for first in range(0, len(found), 50):
        assert sum(count for *_, count in found[first : first + 50]) * size <= 5000 + size


def test_a_record_of_one_ledger_does_not_part_the_entries_of_another() -> None:
    group = [run(1, 0, [b"a"]).data, fence_record(2), run(1, 1, [b"b"]).data, fence_record(1)]
    assert runs_of([group]) == [(1, 0, 1, 2)]
    events, _ = replayed({7: journal_bytes(7, [group])})
    assert [event[0] for event in events if event[1] == 1] == ["entry", "entry", "fence"]


def test_runs_are_bounded() -> None:
    groups = [[run(1, i * 50, [b"x" * 10_000] * 50).data] for i in range(10)]
    disk = SimDisk()
    disk.put(f"{DIRECTORY}/7.txn", journal_bytes(7, groups))
    recorder = Recorder()
    replay(Env(disk=disk), DIRECTORY, NO_MARK, recorder)
    assert sum(r.count for r in recorder.runs) == 500
    assert 4 <= len(recorder.runs) <= 6
    assert max(len(r.data) for r in recorder.runs) < 1024 * 1024 + 20_000


def test_s47_large_entries_do_not_alias_each_other() -> None:
    groups = [[run(1, i, [bytes([i]) * 1_500_000]).data] for i in range(8)]
    events, _ = replayed({7: journal_bytes(7, groups)})
    assert events == [("entry", 1, i, entry(1, i, bytes([i]) * 1_500_000)) for i in range(8)]


def test_s48_keys_are_replayed_before_the_entries_they_belong_to() -> None:
    groups, _ = three_groups()
    events, _ = replayed({7: journal_bytes(7, groups)})
    assert events[0] == ("key", 1, KEY)


def test_a_record_that_contradicts_its_length_is_damage() -> None:
    bad: list[Callable[[], bytes]] = [
        lambda: struct.pack(">iqqi", 20, 1, -0x1000, 50),
        lambda: struct.pack(">iqqi", 20, 1, -0x8000, -5),
        lambda: struct.pack(">iqq", 16, 1, -0x1000),
        lambda: struct.pack(">i", 8) + bytes(8),
        lambda: struct.pack(">iqq", 5000, 1, 0),
    ]
    for make in bad:
        with pytest.raises(CorruptJournalError):
            replayed({7: journal_bytes(7, [[make()]])})


def test_a_tail_of_many_megabytes_of_zeros_costs_little() -> None:
    data = journal_bytes(7, [[run(1, 0, [b"a"]).data]], zeros=32 * 1024 * 1024)
    before = time.process_time()
    events, report = replayed({7: data})
    assert len(events) == 1
    assert report.end == LogMark(7, 1024)
    assert time.process_time() - before < 60, "a loop that steps byte by byte would take minutes"


def test_a_payload_that_imitates_a_group_check_is_only_a_payload() -> None:
    groups: list[list[bytes]] = []
    for start in (512, 1024):
        fake = b"".join(
            (b"QBG1" + struct.pack(">q", start)).rjust(8 + i, b"\0") + b"fake" for i in range(600)
        )
        groups.append([run(1, start, [fake]).data])
    events, report = replayed({7: journal_bytes(7, groups)})
    assert len(events) == 2
    assert not report.damaged_tail
    assert HEADER_SIZE == 512
