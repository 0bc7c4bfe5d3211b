"""Entry logs of random runs: a scan finds all, and under damage nothing but what is true."""

from __future__ import annotations

import struct

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.records import entry
from quorumbook.env import Env
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.entrylog.format import entry_log_name
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.entrylog.scan import DamagedStretch, ScannedRun, scan_entry_log
from quorumbook.storage.entrylog.writer import EntryLogs, find_entry_logs

SETTINGS = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def runs(draw: st.DrawFn) -> EntryRun:
    ledger_id = draw(st.integers(0, 2**62))
    first = draw(st.integers(0, 2**40))
    gaps = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    sizes: list[int] = []
    parts: list[bytes] = []
    last = first - 1
    for gap in [0, *gaps[1:]]:
        entry_id = last + 1 + gap
        body = entry(ledger_id, entry_id, draw(st.binary(max_size=60)))
        sizes += [0] * gap + [len(body)]
        parts.append(struct.pack(">i", len(body)) + body)
        last = entry_id
    return EntryRun(ledger_id, first, last, sizes, b"".join(parts))


def written(items: list[EntryRun], size: int) -> tuple[SimDisk, dict[tuple[int, int], EntryRun]]:
    disk = SimDisk()
    for directory in ("/a", "/b"):
        disk.make_directory(directory)
    logs = EntryLogs(Env(disk=disk), ["/a", "/b"], size_bytes_max=size)
    places = {tuple(logs.append_run(item)): item for item in items}
    logs.close()
    return disk, places  # type: ignore[return-value]


def scanned(disk: SimDisk) -> tuple[dict[tuple[int, int], ScannedRun], list[DamagedStretch]]:
    env = Env(disk=disk)
    found, damage = {}, []
    for entry_log_id, directory in find_entry_logs(env, ["/a", "/b"]).items():
        for item in scan_entry_log(env, directory, entry_log_id):
            if isinstance(item, ScannedRun):
                found[entry_log_id, item.position] = item
            else:
                damage.append(item)
    return found, damage


@SETTINGS
@given(items=st.lists(runs(), min_size=1, max_size=20), size=st.integers(1100, 6000))
def test_a_scan_finds_every_run_where_it_was_put(items: list[EntryRun], size: int) -> None:
    disk, places = written(items, size)
    found, damage = scanned(disk)
    assert damage == []
    assert found.keys() == places.keys()
    reader = EntryLogReader(Env(disk=disk), ["/a", "/b"], open_files_max=2)
    for place, item in places.items():
        got = found[place].run
        assert got.ledger_id == item.ledger_id
        assert list(got.entries()) == list(item.entries())
        assert reader.read(*place, len(item.data)) == item.data


@SETTINGS
@given(
    items=st.lists(runs(), min_size=1, max_size=12),
    where=st.integers(0, 2**31),
    kind=st.sampled_from(["flip", "cut", "zero", "insert"]),
)
def test_a_scan_of_a_damaged_log_finds_only_what_was_written_and_says_what_is_lost(
    items: list[EntryRun], where: int, kind: str
) -> None:
    disk, places = written(items, 2**30)
    path = f"/a/{entry_log_name(0)}"
    data = bytearray(disk.get(path))
    at = 1024 + where % (len(data) - 1024)
    if kind == "flip":
        data[at] ^= 1 << where % 8
    elif kind == "cut":
        del data[at:]
    elif kind == "zero":
        data[at : at + 50] = bytes(len(data[at : at + 50]))
    else:
        data[at:at] = b"inserted"
    disk.put(path, bytes(data))
    found, damage = scanned(disk)
    for place, got in found.items():
        if got.is_verified:
            assert got.run.data == places[place].data
            assert list(got.run.entries()) == list(places[place].entries())
    lost = places.keys() - found.keys()
    if kind != "cut":
        # A cut just where a run ends leaves no trace; the index knows better.
        assert not lost or damage


@SETTINGS
@given(data=st.binary(max_size=3000), has_header=st.booleans())
def test_arbitrary_bytes_end_and_raise_nothing(data: bytes, has_header: bool) -> None:
    disk = SimDisk()
    header = struct.pack(">4si", b"BKLO", 1).ljust(1024, b"\0") if has_header else b""
    disk.put("/a/0.log", header + data)
    list(scan_entry_log(Env(disk=disk), "/a", 0))
