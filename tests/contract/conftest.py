"""Drivers that the metadata contract suites run over.

A driver that joins later (ZooKeeper, etcd) implements ``MetadataDriver`` and is added to
``_DRIVERS``; its fixture skips with a reason when the server it needs is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from doubles.zookeeper import end_session, fresh_root
from quorumbook.metadata.memory import forget_memory_tree, memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.zookeeper_server import ZooKeeperServer

_numbers = itertools.count()


class MetadataDriver:
    """Opens stores on one fresh tree and can do to them what the outside world does."""

    uri: str
    #: A name as strange as it may be.
    strange_name = "ä€😀"

    def __init__(self) -> None:
        self._stores: list[MetadataStore] = []

    async def open(self, **options: float) -> MetadataStore:
        """Open one more session on the tree."""
        store = await open_store(self.uri, create=True, **options)
        self._stores.append(store)
        return store

    async def end_lease(self, store: MetadataStore) -> None:
        """Let the lease of a session be over, as if its process had been paused."""
        raise NotImplementedError

    async def set_counter(self, path: str, count: int) -> None:
        """Pretend that so many children were created below a node."""
        raise NotImplementedError

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class MemoryDriver(MetadataDriver):
    def __init__(self, _directory: Path) -> None:
        super().__init__()
        self._name = f"contract-{next(_numbers)}"
        self.uri = f"memory://{self._name}"

    async def end_lease(self, store: MetadataStore) -> None:
        memory_tree(self._name).extend(store.session_id, 0)

    async def set_counter(self, path: str, count: int) -> None:
        memory_tree(self._name)._rows._rows[path].created_count = count

    async def close(self) -> None:
        await super().close()
        forget_memory_tree(self._name)


class SqliteDriver(MetadataDriver):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._path = directory / "metadata.db"
        self.uri = f"sqlite:///{self._path}"

    def _execute(self, statement: str, *values: object) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=10)) as connection, connection:
            assert connection.execute(statement, values).rowcount == 1

    async def end_lease(self, store: MetadataStore) -> None:
        self._execute("UPDATE session SET lease_end_ns = 0 WHERE id = ?", store.session_id)

    async def set_counter(self, path: str, count: int) -> None:
        parent, _, name = path.rpartition("/")
        self._execute(
            "UPDATE node SET created_count = ? WHERE parent = ? AND name = ?",
            count,
            parent or "/",
            name,
        )


class ZooKeeperDriver(MetadataDriver):
    #: The servers refuse whatever takes two units of UTF-16.
    strange_name = "ä€"

    def __init__(self, server: ZooKeeperServer) -> None:
        super().__init__()
        self._root = fresh_root()
        self._server = server
        self.uri = f"zk://{server.address}/ledgers?chroot={self._root}"
        self._is_made = False

    async def open(self, **options: float) -> MetadataStore:
        if not self._is_made:
            self._is_made = True
            everything = await open_store(f"zk://{self._server.address}/ledgers")
            await everything.create(self._root)
            await everything.close()
        return await super().open(**options)

    async def end_lease(self, store: MetadataStore) -> None:
        await end_session(store)

    async def set_counter(self, path: str, count: int) -> None:
        pytest.skip("a ZooKeeper's counter cannot be set")


_DRIVERS = {"memory": MemoryDriver, "sqlite": SqliteDriver}


@pytest.fixture(params=[*sorted(_DRIVERS), "zookeeper"])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataDriver]:
    """One fresh tree on each driver in turn."""
    made: MetadataDriver
    if request.param == "zookeeper":
        made = ZooKeeperDriver(request.getfixturevalue("zookeeper"))
    else:
        made = _DRIVERS[request.param](tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=sorted(_DRIVERS))
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataDriver]:
    """A second fresh tree, on each driver in turn."""
    directory = tmp_path / "target"
    directory.mkdir()
    made = _DRIVERS[request.param](directory)
    yield made
    await made.close()


@pytest.fixture
async def store(driver: MetadataDriver) -> MetadataStore:
    """A session on the tree."""
    return await driver.open()


@pytest.fixture
async def other(driver: MetadataDriver, store: MetadataStore) -> MetadataStore:
    """A second session on the same tree."""
    return await driver.open()
