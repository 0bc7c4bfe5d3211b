"""From a flipped bit, or a lost disk, to good copies: bookies, their disks and a worker."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from worker_harness import PAYLOADS, working, write

import quorumbook
from doubles.replicas import assert_fully_replicated, copies
from doubles.waiting import until
from quorumbook import BookKeeper
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import DigestType
from quorumbook.storage.options import ScrubOptions, StorageOptions

EAGER = ScrubOptions(interval_s=0.05, heal_interval_s=0.05, rate_bytes=0)
MB = 1024 * 1024


class Machine:
    """Three bookies on real disks, stopped and started by their place."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.uri = uri
        self.bookies: dict[int, Bookie] = {}
        self._stores: dict[int, Any] = {}

    def bookie_id(self, place: int) -> str:
        return f"bookie-{place}"

    async def start(self, place: int, **changes: Any) -> Bookie:
        """Start a bookie that scrubs all the time."""
        env = Env()
        options = BookieOptions(
            journal_directories=(f"{self.root}/{place}/journal",),
            ledger_directories=(f"{self.root}/{place}/ledgers",),
            port=0,
            bookie_id=self.bookie_id(place),
            storage=StorageOptions(read_cache_size_bytes=0, write_cache_size_bytes=MB),
            max_disk_usage=1.0,
            disk_usage_writable=1.0,
            min_high_priority_free_bytes=1,
            scrub=EAGER,
        )
        self._stores[place] = await open_store(self.uri, env)
        bookie = Bookie(env, dataclasses.replace(options, **changes), self._stores[place])
        await bookie.start()
        self.bookies[place] = bookie
        return bookie

    async def stop(self, place: int) -> None:
        await self.bookies.pop(place).stop()
        await self._stores.pop(place).close()

    def flip(self, place: int, ledger_id: int, entry_id: int) -> None:
        """Flip a bit of an entry in a stopped bookie's entry log."""
        for path in (self.root / str(place) / "ledgers" / "current").glob("*.log"):
            data = bytearray(path.read_bytes())
            found = data.find(struct.pack(">qq", ledger_id, entry_id))
            if found >= 0:
                data[found + 33] ^= 1
                path.write_bytes(data)
                return
        raise AssertionError("no entry log has the entry")


@pytest.fixture
async def machine(tmp_path: Path, request: Any) -> AsyncIterator[Machine]:
    name = f"scrub-{request.node.name}"
    store = await open_store(f"memory://{name}", create=True)
    await init_cluster(store)
    machine = Machine(tmp_path, f"memory://{name}")
    try:
        for place in range(3):
            await machine.start(place)
        yield machine
    finally:
        for place in list(machine.bookies):
            await machine.stop(place)
        await store.close()
        forget_memory_tree(name)


@contextlib.asynccontextmanager
async def connected(machine: Machine) -> AsyncIterator[BookKeeper]:
    async with quorumbook.connect(machine.uri) as client:
        yield client


def is_whole(bookie: Bookie) -> bool:
    """Tell whether a bookie has healed something and nothing of it is left to heal."""
    assert bookie.healing is not None
    numbers = bookie.healing.statistics
    return bool(
        numbers.healed_ledgers and not numbers.damaged_ledgers and not numbers.ledgers_in_limbo
    )


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("quorum", [3, 2])
async def test_s76_r32_a_flipped_bit_is_found_by_scrub_and_copied_back_by_a_worker(
    machine: Machine, digest_type: DigestType, quorum: int
) -> None:
    async with connected(machine) as client:
        ledger_id = await write(
            client, ensemble_size=3, write_quorum_size=quorum, ack_quorum_size=quorum,
            digest_type=digest_type, password=b"secret",
        )  # fmt: skip
        metadata = await client.ledger_metadata(ledger_id)
        before = await copies(client, ledger_id)
        # Each bookie has damage of its own: one good replica is left of each entry.
        spoilt = [(0, 30), (0, 33), (1, 36), (2, 39)]
        if digest_type is DigestType.DUMMY:
            # Nothing tells which entries of a run are damaged, so all are doubted.
            spoilt = spoilt[:2]
        for place in range(3):
            await machine.stop(place)
        for place, entry_id in spoilt:
            index = metadata.ensemble.index(machine.bookie_id(place))
            held = next(e for e in range(entry_id, entry_id + 3) if (index - e) % 3 < quorum)
            machine.flip(place, ledger_id, held)
    for place in range(3):
        await machine.start(place)
    async with connected(machine) as client:
        async with working(client, max_retry_s=0.1):
            spoilt_bookies = [machine.bookies[place] for place, _ in spoilt]
            await until(lambda: all(map(is_whole, spoilt_bookies)))
        assert await client.ledger_metadata(ledger_id) == metadata, "the places stay"
        assert await copies(client, ledger_id) == before
        await assert_fully_replicated(client, ledger_id, PAYLOADS)
    for place in range(3):
        await machine.stop(place)
        await machine.start(place)
    async with connected(machine) as client:
        assert await copies(client, ledger_id) == before, "what was copied is on the disk"


async def test_r26_a_bookie_that_lost_its_disk_gets_everything_back(machine: Machine) -> None:
    async with connected(machine) as client:
        ledger_ids = [
            await write(client, ensemble_size=3, write_quorum_size=quorum, ack_quorum_size=quorum)
            for quorum in (3, 2)
        ]
        before = {ledger_id: await copies(client, ledger_id) for ledger_id in ledger_ids}
    await machine.stop(1)
    shutil.rmtree(machine.root / "1")
    bookie = await machine.start(1, stamp_missing_cookies=True)
    async with connected(machine) as client:
        async with working(client, max_retry_s=0.1):
            await until(lambda: is_whole(bookie))
            await until(lambda: bookie.healing.statistics.healed_ledgers == 2)
        for ledger_id in ledger_ids:
            assert await copies(client, ledger_id) == before[ledger_id]
