"""A bookie on a disk that is really full: a small tmpfs, filled to its last page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bookie_harness import RawClient, cluster, entry, options_in, running, v2_adds

from doubles.waiting import until
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.storage.options import GcOptions, StorageOptions

pytestmark = pytest.mark.faults

MIB = 1024 * 1024
PAYLOAD = b"x" * 4000
#: One of so many ledgers is kept, and lies beside the others in every entry log.
LEDGERS, KEPT = range(1, 11), 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MB."""
    yield from _mounted(tmp_path / "small", "40m")


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room, however full the machine's own is."""
    yield from _mounted(tmp_path / "other", "400m")


def _mounted(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"no small disk: {done.stderr}")
        pytest.skip("mounting a small tmpfs needs root; run the tests as root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def options_on(small: Path, journal: Path, **changes: object) -> BookieOptions:
    options = options_in(
        small,
        bookie_id="one",
        journal_directories=(str(journal),),
        storage=StorageOptions(
            write_cache_size_bytes=MIB,
            journal_file_size_bytes=2 * MIB,
            entry_log_size_bytes=4 * MIB,
            retry_interval_s=0.05,
            flush_interval_s=0.2,
        ),
        disk_check_interval_s=0.05,
        max_disk_usage=0.9,
        disk_usage_writable=0.7,
        min_high_priority_free_bytes=MIB,
        gc=GcOptions(
            interval_s=0.1,
            confirm_interval_s=0.1,
            minor_compaction_interval_s=0.1,
            major_compaction_interval_s=0.1,
            reserve_size_bytes=2 * MIB,
        ),
    )
    return replace(options, **changes)


async def create_ledgers(store: MetadataStore) -> None:
    """Make the ledgers, once the bookie is there: it must not be taken for one that came back."""
    for ledger_id in LEDGERS:
        await LedgerManager(store).create(
            LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=1,
                write_quorum_size=1,
                ack_quorum_size=1,
                fragments=(Fragment(0, ("one",)),),
                password=b"",
            )
        )


async def fill(client: RawClient, *, flags: int = 0, first: int = 0) -> list[tuple[int, int]]:
    """Add to all ledgers in turn until an add is refused; return what was acknowledged."""
    taken: list[tuple[int, int]] = []
    refused: set[int] = set()
    for entry_id in range(first, first + 5000):
        for ledger_id in LEDGERS:
            client.send(v2_adds(ledger_id, [entry_id], PAYLOAD, flags=flags))
            [(_, code)] = await client.add_codes(1)
            if code == 0:
                taken.append((ledger_id, entry_id))
            else:
                refused.add(code)
        if refused:
            assert refused == {V2_CODE[Status.READ_ONLY]}
            return taken
    raise AssertionError("the disk is not small")


async def check(client: RawClient, taken: list[tuple[int, int]]) -> None:
    for ledger_id, entry_id in taken[:: max(1, len(taken) // 200)]:
        answer = await client.ask(v2.encode_read(ledger_id, entry_id))
        assert answer.endswith(entry(ledger_id, entry_id, PAYLOAD)), (ledger_id, entry_id)


@contextlib.asynccontextmanager
async def bookie_on(
    options: BookieOptions, store: MetadataStore
) -> AsyncIterator[tuple[Bookie, RawClient]]:
    async with running(Bookie(Env(), options, store)) as bookie:
        client = await RawClient.connect(bookie.address[1])
        yield bookie, client
        client.close()


@pytest.mark.parametrize("limit", [0.9, 1.0], ids=["watermark", "last page"])
async def test_s82_a_full_disk_takes_no_adds_loses_nothing_and_is_given_back_by_deletions(
    small_disk: Path, other_disk: Path, limit: float
) -> None:
    """Without a watermark the disk is full to its last page, and only the reserve can help."""
    async with cluster() as store:
        options = options_on(
            small_disk, other_disk / "journal", max_disk_usage=limit, disk_usage_writable=0.7
        )
        async with bookie_on(options, store) as (bookie, client):
            await create_ledgers(store)
            taken = await fill(client)
            assert bookie.is_read_only
            taken += await fill(client, flags=6, first=10_000)
            await check(client, taken)
            for ledger_id in LEDGERS:
                if ledger_id != KEPT:
                    await LedgerManager(store).delete(ledger_id)
            async with asyncio.timeout(60):
                await until(lambda: not bookie.is_read_only)
            kept = [one for one in taken if one[0] == KEPT]
            await check(client, kept)
            client.send(v2_adds(KEPT, [20_000], PAYLOAD))
            assert await client.add_codes(1) == [(20_000, 0)]
        async with bookie_on(options, store) as (_, client):
            await check(client, [*kept, (KEPT, 20_000)])


async def test_s82_a_full_journal_disk_takes_no_adds_and_loses_nothing(
    small_disk: Path, other_disk: Path
) -> None:
    async with cluster() as store:
        options = options_on(other_disk / "ledgers", small_disk / "journal")
        async with bookie_on(options, store) as (bookie, client):
            await create_ledgers(store)
            client.send(v2_adds(1, [0], PAYLOAD))
            assert await client.add_codes(1) == [(0, 0)]
            filler = small_disk / "filler"
            filler.write_bytes(bytes(34 * MIB))
            await until(lambda: bookie.is_read_only)
            client.send(v2_adds(1, [1], PAYLOAD))
            assert await client.add_codes(1) == [(1, V2_CODE[Status.READ_ONLY])]
            client.send(v2_adds(1, [1], PAYLOAD, flags=6))
            assert await client.add_codes(1) == [(1, 0)]
            filler.unlink()
            await until(lambda: not bookie.is_read_only)
            client.send(v2_adds(1, [2], PAYLOAD))
            assert await client.add_codes(1) == [(2, 0)]
            await check(client, [(1, 0), (1, 1), (1, 2)])


@pytest.mark.parametrize("free_kb", [0, 4, 8])
async def test_s55_a_bookie_starts_on_a_disk_without_a_free_page(
    small_disk: Path, other_disk: Path, free_kb: int
) -> None:
    """What the index needs to be opened is kept in a reserve while there is space."""
    async with cluster() as store:
        options = options_on(small_disk, other_disk / "journal")
        async with bookie_on(options, store) as (bookie, client):
            await create_ledgers(store)
            client.send(v2_adds(1, range(5), PAYLOAD))
            await client.add_codes(5)
        left = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        filler = small_disk / "filler"
        filler.write_bytes(bytes(left - free_kb * 1024))
        for _ in range(2):
            async with bookie_on(options, store) as (bookie, client):
                assert bookie.is_read_only
                await check(client, [(1, entry_id) for entry_id in range(5)])
        async with bookie_on(options, store) as (bookie, client):
            filler.unlink()
            await until(lambda: not bookie.is_read_only)
            client.send(v2_adds(1, [5], PAYLOAD))
            assert await client.add_codes(1) == [(5, 0)]
