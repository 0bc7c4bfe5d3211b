"""Files of offloaded segments: what goes in comes out, and no other bytes pass for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pip install 'quorumbook[spark]'")

from quorumbook.client.reading.entries import EntryBatch
from quorumbook.env import Env
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.streams.errors import (
    CorruptRecordsError,
    FilesUnavailableError,
    UnsupportedFormatError,
)
from quorumbook.streams.tier import copying, part_file
from quorumbook.streams.tier.manifest import Manifest, OffloadedFile, TierState
from quorumbook.streams.tier.part_file import PartFacts, PartFile

LEDGER = 7
PASSWORD = b"secret"
kinds = st.sampled_from(DigestType)
payloads = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.integers(4096, 9000).map(lambda size: b"x" * size),
        st.just(b"twelve bytes"),
    ),
    min_size=1,
    max_size=30,
)


def batches_of(
    kind: DigestType, values: list[bytes], cuts: list[int]
) -> tuple[list[EntryBatch], list[bytes]]:
    """Batches as a reader yields them, and the whole entries."""
    seal = digester(kind, PASSWORD)
    entries, _ = seal.seal_many(LEDGER, 0, -1, 0, values)
    found = []
    first = 0
    for end in [*sorted({cut % len(values) for cut in cuts} - {0}), len(values)]:
        data = EntryRun.of(LEDGER, first, entries[first:end]).data
        found.append(EntryBatch(LEDGER, first, data, values[first:end], seal.payload_offset))
        first = end
    return found, entries


async def written(
    env: Env, directory: str, kind: DigestType, batches: list[EntryBatch], part_bytes: int
) -> Manifest:
    """What is known of files that were just written."""
    seal = digester(kind, PASSWORD)

    async def read() -> AsyncGenerator[EntryBatch, None]:
        for batch in batches:
            yield batch

    async def at_once(size_bytes: int) -> None:
        del size_bytes

    facts = PartFacts("cluster", LEDGER, kind, seal.size_bytes, 3, 3, 2)
    parts = await copying.write_parts(env, read(), directory, facts, part_bytes, at_once)
    ledger = LedgerMetadata(
        ledger_id=LEDGER, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2,
        fragments=(Fragment(0, ("a", "b", "c")),), state=LedgerState.CLOSED,
        last_entry_id=batches[-1].last_entry_id, digest_type=kind, password=PASSWORD,
    )  # fmt: skip
    return Manifest(
        state=TierState.COPYING, token="", location=directory, ledger=ledger, parts=tuple(parts)
    )


def entries_in(manifest: Manifest) -> list[bytes]:
    """The whole entries of all files, as ``restore`` and readers put them together."""
    found = []
    for part in manifest.parts:
        with contextlib.closing(PartFile(manifest.path(part))) as file:
            for group in file.groups:
                heads, values = file.read_group(group)
                found += [head + value for head, value in zip(heads, values, strict=True)]
                seal = copying.digester_of(manifest)
                assert file.read_run(group, seal)[2] == values
    return found


@settings(deadline=None, max_examples=60)
@given(
    kind=kinds,
    values=payloads,
    cuts=st.lists(st.integers(0, 29)),
    group_bytes=st.sampled_from([1, 200, 5000, 1 << 20]),
    part_bytes=st.sampled_from([1, 2000, 1 << 20]),
)
def test_entries_come_back_byte_by_byte(kind, values, cuts, group_bytes, part_bytes) -> None:
    batches, entries = batches_of(kind, values, cuts)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "ROW_GROUP_BYTES", group_bytes)

        async def run() -> None:
            env = Env()
            manifest = await written(env, directory, kind, batches, part_bytes)
            assert manifest.verified(manifest.parts, 0).parts == manifest.parts
            assert await copying.verify(env, manifest) == len(entries)
            assert entries_in(manifest) == entries

        asyncio.run(run())


@settings(deadline=None, max_examples=60)
@given(
    kind=kinds,
    values=payloads,
    place=st.integers(0),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_found_or_changes_no_entry(kind, values, place, bit) -> None:
    batches, entries = batches_of(kind, values, [5, 12])
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_file, "ROW_GROUP_BYTES", 5000)

        async def run() -> None:
            env = Env()
            manifest = await written(env, directory, kind, batches, 1 << 20)
            path = manifest.path(manifest.parts[0])
            with open(path, "r+b") as file:
                at = place % os.path.getsize(path)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << bit]))
            try:
                await copying.verify(env, manifest)
            except (CorruptRecordsError, FilesUnavailableError, UnsupportedFormatError):
                return
            assert entries_in(manifest) == entries

        asyncio.run(run())


@pytest.mark.parametrize("changed", ["value", "lac", "order", "ledger", "missing"])
def test_entries_that_are_others_than_the_digests_say_are_found(tmp_path, changed) -> None:
    values = [b"payload %d" % number for number in range(40)]
    batches, _ = batches_of(DigestType.CRC32C, values, [10, 20, 30])
    last = batches[-1]
    data = bytearray(last.buffer)
    payloads = list(last.payloads)
    if changed == "value":
        payloads[4] = payloads[4][::-1]
    elif changed == "lac":
        data[4 + 16] ^= 1
    elif changed == "ledger":
        data[4] ^= 1
    batches[-1] = EntryBatch(
        LEDGER, last.first_entry_id, bytes(data), payloads, last.payload_offset
    )
    if changed == "order":
        batches[1:3] = batches[2:0:-1]

    async def run() -> None:
        env = Env()
        with pytest.raises(CorruptRecordsError):
            manifest = await written(env, str(tmp_path), DigestType.CRC32C, batches, 1 << 20)
            if changed == "missing":
                part: OffloadedFile = manifest.parts[0]
                wrong = part._replace(last=part.last + 1)
                manifest = Manifest(
                    state=manifest.state, token="", location=manifest.location,
                    ledger=manifest.ledger, parts=(wrong,),
                )  # fmt: skip
            await copying.verify(env, manifest)

    asyncio.run(run())


def test_without_digests_the_checksum_tells_other_entries(tmp_path) -> None:
    async def run() -> None:
        env = Env()
        found = []
        for number, text in enumerate((b"one", b"two")):
            batches, _ = batches_of(DigestType.DUMMY, [b"first", text], [])
            directory = str(tmp_path / str(number))
            found.append(await written(env, directory, DigestType.DUMMY, batches, 1 << 20))
        for manifest in found:
            assert await copying.verify(env, manifest) == 2
        with pytest.raises(CorruptRecordsError, match="checksum"):
            await copying.verify(env, replace(found[0], location=found[1].location))

    asyncio.run(run())


def test_reading_waits_for_files_that_are_written_slowly(tmp_path, monkeypatch) -> None:
    batches, _ = batches_of(DigestType.CRC32C, [b"payload"] * 20, list(range(20)))
    monkeypatch.setattr(part_file, "ROW_GROUP_BYTES", 1)
    go_on = threading.Event()
    taken: list[EntryBatch] = []
    add = copying.PartWriter.add

    def slowly(writer: copying.PartWriter, group: list[EntryBatch]) -> None:
        go_on.wait()
        add(writer, group)

    monkeypatch.setattr(copying.PartWriter, "add", slowly)

    async def run() -> None:
        ahead = asyncio.Event()

        class Noted(list[EntryBatch]):
            def __iter__(self):
                for batch in list.__iter__(self):
                    taken.append(batch)
                    if len(taken) > copying._GROUPS_AHEAD:  # how far it reads ahead
                        ahead.set()
                    yield batch

        env = Env()
        work = asyncio.ensure_future(
            written(env, str(tmp_path), DigestType.CRC32C, Noted(batches), 1 << 20)
        )
        try:
            await ahead.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(taken) == copying._GROUPS_AHEAD + 1  # how far it reads ahead
        finally:
            go_on.set()
        assert await copying.verify(env, await work) == len(batches)

    asyncio.run(run())
