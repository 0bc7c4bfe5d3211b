"""The file of a dump: every damage is noticed before anything of it is used."""

from __future__ import annotations

import base64
import gc
import hashlib
import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from quorumbook.errors import MetadataFormatError
from quorumbook.metadata.cluster import Layout, init_cluster
from quorumbook.metadata.dump import DumpedNode, DumpHeader, DumpReader, DumpWriter
from quorumbook.metadata.ids import IdCounters
from quorumbook.metadata.store import Create
from quorumbook.metadata.transfer import dump_metadata, restore_metadata
from quorumbook.metadata.uri import open_store

HEADER = DumpHeader(Layout().encode(), b"5c5a5a5a-0000-4000-8000-000000000000", False)
RECORDS = [
    DumpedNode("", b"root", 1),
    DumpedNode("00", b"", 2),
    DumpedNode("00/0000", b"", 3),
    DumpedNode("00/0000/L0001", b"\0\n\xff", 4),
    DumpedNode("00/0001", b"", 5),
    DumpedNode("available", b"", 6),
]


def dumped(records=RECORDS):
    file = io.BytesIO()
    writer = DumpWriter(file, HEADER)
    for record in records:
        writer.add(record)
    writer.end(IdCounters(2, None))
    return file.getvalue()


def sealed(lines):
    """Return lines with the checksum that fits."""
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return text + json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n"


def lines_of(data):
    return [json.loads(line) for line in data.splitlines()[:-1]]


def refused(data, words=None):
    with pytest.raises(MetadataFormatError, match=words):
        DumpReader(io.BytesIO(data), "a dump")


async def test_a_dump_reads_back_as_it_was_written():
    reader = DumpReader(io.BytesIO(dumped()), "a dump")
    assert reader.header == HEADER
    assert reader.nodes == len(RECORDS)
    assert [record async for record in reader.records()] == RECORDS
    assert await reader.finish() == IdCounters(2, None)


def test_the_format_is_what_its_description_says():
    first, *nodes, last, checksum = map(json.loads, dumped().splitlines())
    assert first == {
        "format": "quorumbook metadata",
        "version": 1,
        "layout": HEADER.layout.decode(),
        "instance_id": HEADER.instance_id.decode(),
        "is_online": False,
    }
    assert nodes[3] == {
        "path": "00/0000/L0001",
        "data": base64.b64encode(b"\0\n\xff").decode(),
        "ctime_ms": 4,
    }
    assert last == {"nodes": 6, "ids": {"short": 2, "high_bits": None, "low": 0}}
    before = dumped()[: dumped().rindex(b'{"sha256"')]
    assert checksum == {"sha256": hashlib.sha256(before).hexdigest()}


def test_a_dump_cut_off_anywhere_is_refused():
    data = dumped()
    for length in range(len(data)):
        refused(data[:length])


def test_every_changed_bit_is_noticed():
    data = dumped()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        refused(bytes(changed))


def test_lines_left_out_doubled_or_moved_are_noticed():
    lines = dumped().splitlines(keepends=True)
    for place in range(len(lines)):
        refused(b"".join(lines[:place] + lines[place + 1 :]))
        refused(b"".join(lines[: place + 1] + lines[place:]))
    refused(b"".join([*lines[:2], lines[3], lines[2], *lines[4:]]))


def test_something_behind_the_end_is_refused():
    refused(dumped() + b"\n", "something follows")
    refused(dumped() + dumped(), "something follows")


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b"[]\n", b"\xff\n", b"x" * (3 << 20)])
def test_what_is_no_dump_is_refused(data):
    refused(data, "line 1")


def test_a_newer_format_is_refused_by_its_number():
    lines = lines_of(dumped())
    lines[0]["version"] = 2
    refused(sealed(lines), "newer release")


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, {"layout": "2\norg.example.Other:1"}),
        (0, {"layout": 7}),
        (0, {"instance_id": None}),
        (0, {"instance_id": "\ud800"}),
        (0, {"is_online": "no"}),
        (2, {"path": "../00"}),
        (2, {"path": "/00"}),
        (2, {"path": 5}),
        (2, {"path": "00\ud800"}),
        (2, {"path": "LAYOUT"}),
        (2, {"path": "idgen/ID-1"}),
        (2, {"path": "transfer"}),
        (2, {"path": "02/0000"}),
        (2, {"data": "not base64!"}),
        (2, {"data": base64.b64encode(b"x" * 1_000_001).decode()}),
        (2, {"ctime_ms": "now"}),
        (-1, {"nodes": 5}),
        (-1, {"ids": {"short": -1, "high_bits": None, "low": 0}}),
        (-1, {"ids": {"short": 1, "high_bits": True, "low": 0}}),
        (-1, {"ids": {"short": 1}}),
        (-1, {"ids": []}),
    ],
)
def test_a_dump_that_says_what_cannot_be_is_refused_whatever_its_checksum(number, change):
    lines = lines_of(dumped())
    lines[number] |= change
    refused(sealed(lines))


async def test_a_damaged_dump_leaves_the_target_untouched(store):
    damaged = dumped().replace(b'"path": "available"', b'"path": "unavailable"')
    refused(damaged)
    assert await store.children("/") == []


async def test_a_file_that_changes_after_it_was_checked_makes_no_cluster(store):
    file = io.BytesIO(dumped())
    reader = DumpReader(file, "a dump")
    records = [*RECORDS[:-1], DumpedNode("availablf", b"", 6)]
    file.seek(0)
    file.write(dumped(records))
    with pytest.raises(MetadataFormatError, match="changed while it was read"):
        await restore_metadata(reader, store)
    assert await store.children("/ledgers") == []


async def test_a_restored_backup_gives_no_id_that_the_cluster_gave_later(store):
    from quorumbook.metadata.ids import LedgerIdGenerator

    reader = DumpReader(io.BytesIO(dumped()), "a dump")
    await restore_metadata(reader, store, leap=True)
    generator = LedgerIdGenerator(store)
    assert await generator.next_id() == 1 << 32
    await generator.close()


class Nowhere:
    def write(self, data):
        pass


async def peak_of_a_dump(store):
    gc.collect()
    tracemalloc.start()
    try:
        await dump_metadata(store, Nowhere())
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def peaks():
    """Return what dumps of 1,000 and of 20,000 ledgers take at most."""
    store = await open_store("memory://dumps")
    await init_cluster(store)
    await store.create("/ledgers/00")
    found = []
    for first, last in ((0, 5), (5, 100)):
        for group in range(first, last):
            nodes = [
                Create(f"/ledgers/00/{group:04d}/L{each:04d}", b"x" * 300) for each in range(200)
            ]
            await store.multi([Create(f"/ledgers/00/{group:04d}"), *nodes])
        found.append(await peak_of_a_dump(store))
    await store.close()
    return found


def test_memory_does_not_grow_with_the_number_of_ledgers():
    """In a process of its own: threads that other tests left would be measured with it."""
    words = "import asyncio, test_metadata_dump as t; print(*asyncio.run(t.peaks()))"
    done = subprocess.run(
        [sys.executable, "-c", words],
        cwd=Path(__file__).parent, check=True, capture_output=True, text=True,
    )  # fmt: skip
    small, large = map(int, done.stdout.split())
    assert large < small + 100_000
