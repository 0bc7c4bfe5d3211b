"""Metadata that are put back to a backup: what was made since is kept until the operator speaks."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from bookie_harness import KEY, ask_http, options_in, running
from test_bookie_garbage import command

from doubles.sim_threads import StepClock
from doubles.storage_world import run_of
from doubles.zookeeper import start_zookeeper
from quorumbook.bookie.options import HttpOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.ids import LedgerIdGenerator
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store

MINUTE_NS = 60 * 1_000_000_000


class InFile:
    """Metadata in one file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._file = root / "metadata.db"
        self.uri = f"sqlite:///{self._file}"

    def copy(self, name: str) -> None:
        shutil.copyfile(self._file, self._root / name)

    def put_back(self, name: str) -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{self._file}{suffix}").unlink(missing_ok=True)
        shutil.copyfile(self._root / name, self._file)


class InZooKeeper:
    """Metadata in a ZooKeeper of their own, whose snapshots and logs are put back."""

    def __init__(self, root: Path, classpath: str) -> None:
        self._root = root
        self._data = root / "zookeeper"
        self._server = start_zookeeper(str(self._data), classpath)
        self.uri = f"zk://{self._server.address}/ledgers"

    def copy(self, name: str) -> None:
        self.kill()
        shutil.copytree(self._data, self._root / name)
        self._start()

    def put_back(self, name: str) -> None:
        self.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._root / name, self._data)
        self._start()

    def _start(self) -> None:
        self._server.start()
        self._server.wait_ready()

    def kill(self) -> None:
        self._server.kill()


class Restored:
    """A bookie, and metadata that can be put back."""

    def __init__(self, root: Path, metadata: InFile | InZooKeeper) -> None:
        self.root = root
        self.clock = StepClock()
        self.uri = metadata.uri
        self.copy, self.put_back = metadata.copy, metadata.put_back

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[tuple[Bookie, MetadataStore]]:
        store = await open_store(self.uri, create=True)
        with contextlib.suppress(Exception):
            await init_cluster(store)
        options = options_in(self.root, bookie_id="one", http=HttpOptions())
        try:
            async with running(Bookie(Env(clock=self.clock), options, store)) as bookie:
                yield bookie, store
        finally:
            await store.close()

    async def collect(self, bookie: Bookie, passes: int = 3) -> None:
        assert bookie.collector is not None
        await bookie.storage.flush()
        for _ in range(passes):
            self.clock.now += 6 * MINUTE_NS
            await bookie.collector.collect()


@pytest.fixture
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InFile | InZooKeeper]:
    """Metadata that can be put back."""
    if request.param == "sqlite":
        yield InFile(tmp_path)
        return
    server = InZooKeeper(tmp_path, request.getfixturevalue("zookeeper_classpath"))
    yield server
    server.kill()


async def make(bookie: Bookie, store: MetadataStore, count: int) -> list[int]:
    """Make ledgers, and write to each."""
    ids = LedgerIdGenerator(store)
    made = []
    for _ in range(count):
        ledger_id = await ids.next_id()
        await LedgerManager(store).create(
            LedgerMetadata(
                ledger_id=ledger_id, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
                fragments=(Fragment(0, ("one",)),), password=b"",
            )
        )  # fmt: skip
        handle = bookie.storage.create_handle(ledger_id, KEY)
        bookie.storage.append([(handle, run_of(ledger_id, range(5)))], lambda _: None)
        made.append(ledger_id)
    await ids.close()
    return made


@pytest.mark.parametrize(
    ("metadata", "end"),
    [
        ("sqlite", "approved"),
        ("sqlite", "right metadata again"),
        ("zookeeper", "approved"),  # each way to put it back takes a Java of its own
    ],
    indirect=["metadata"],
)
async def test_r27_ledgers_made_since_the_backup_that_was_put_back_wait_for_the_operator(
    tmp_path: Path, metadata: InFile | InZooKeeper, end: str
) -> None:
    world = Restored(tmp_path, metadata)
    async with world.run() as (bookie, store):
        old = await make(bookie, store, 3)
        await world.collect(bookie)
    world.copy("backup")
    async with world.run() as (bookie, store):
        lost = await make(bookie, store, 4)
        await world.collect(bookie)
    world.copy("right")
    world.put_back("backup")
    for _ in range(2):
        async with world.run() as (bookie, store):
            await world.collect(bookie)
            assert bookie.storage.ledger_ids() == old + lost
            # What was deleted before the backup, or is older than it, goes as ever.
            for ledger_id in old[:1]:
                await LedgerManager(store).delete(ledger_id)
            await world.collect(bookie)
            old = [each for each in old if each in bookie.storage.ledger_ids()]
            assert bookie.storage.ledger_ids() == old + lost
            assert f"bookie_HELD_LEDGER_COUNT {len(lost)}.0" in bookie.render_metrics().decode()
    assert len(old) == 1
    if end == "right metadata again":
        world.put_back("right")
    async with world.run() as (bookie, store):
        if end == "approved":
            shown = await command(bookie, "gc-hold")
            assert shown["held_ledgers"] == len(lost)
            assert shown["ledgers"] == [[lost[0], lost[-1]]]
            assert "put back" in shown["reason"]
            assert (await command(bookie, "gc"))["held_ledgers"] == len(lost)
            assert bookie.http_port is not None
            path = "/api/v1/bookie/gc_hold?approve=another"
            status, body = await ask_http(bookie.http_port, f"PUT {path} HTTP/1.1\r\n\r\n")
            assert (status, json.loads(body)["set"]) == (409, shown["set"])
            done = await command(bookie, "gc-hold", "--approve", shown["set"])
            assert (done["held_ledgers"], done["approved_ledgers"]) == (0, len(lost))
        await world.collect(bookie)
        assert bookie.storage.ledger_ids() == (old if end == "approved" else old + lost)
        assert (await command(bookie, "gc-hold"))["held_ledgers"] == 0
        # Afterwards all is as before.
        [last] = await make(bookie, store, 1) if end != "approved" else [old[-1]]
        await world.collect(bookie)
        await LedgerManager(store).delete(last)
        await world.collect(bookie)
        assert last not in bookie.storage.ledger_ids()


async def test_r27_a_deletion_of_most_of_a_bookies_ledgers_waits_for_the_operator(
    tmp_path: Path,
) -> None:
    world = Restored(tmp_path, InFile(tmp_path))
    async with world.run() as (bookie, store):
        made = await make(bookie, store, 30)
        await world.collect(bookie)
        for ledger_id in made[:15]:
            await LedgerManager(store).delete(ledger_id)
        await world.collect(bookie)
        assert bookie.storage.ledger_ids() == made[15:]
        for ledger_id in made[15:27]:
            await LedgerManager(store).delete(ledger_id)
        await world.collect(bookie)
        assert bookie.storage.ledger_ids() == made[15:]
        shown = await command(bookie, "gc-hold")
        await command(bookie, "gc-hold", "--approve", shown["set"])
        await world.collect(bookie)
        assert bookie.storage.ledger_ids() == made[27:]
