"""Drivers that the metadata contract suites run over.

A driver that joins later implements ``MetadataDriver`` and is added to ``_DRIVERS``; its fixture
skips with a reason when the server it needs is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import struct
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from doubles.etcd_server import EtcdServer
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
        # A number that took two thousand million creations.
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


class EtcdDriver(MetadataDriver):
    """A tree in one of the etcds that the tests of this process share."""

    _idle: ClassVar[list[EtcdServer]] = []
    _all: ClassVar[list[EtcdServer]] = []

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        super().__init__()
        if not self._idle:
            # It outlives the test, whose own directory goes with it.
            server = EtcdServer(directories.mktemp("etcd"), "--unsafe-no-fsync")
            self._all.append(server)
            self._idle.append(server)
        self.server = self._idle.pop()
        self.uri = self.server.uri()

    async def end_lease(self, store: MetadataStore) -> None:
        self.server.call("lease/revoke", ID=store.session_id)

    async def set_counter(self, path: str, count: int) -> None:
        from quorumbook.metadata.etcd.rows import node_key

        key = b64encode(node_key(path)).decode()
        value = bytearray(b64decode(self.server.call("kv/range", key=key)["kvs"][0]["value"]))
        struct.pack_into(">q", value, 9, count)
        self.server.call("kv/put", key=key, value=b64encode(value).decode())

    async def close(self) -> None:
        await super().close()
        self.server.wipe()
        self._idle.append(self.server)

    @classmethod
    def stop_all(cls) -> None:
        for server in cls._all:
            server.kill()


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    EtcdDriver.stop_all()


_NAMES = ["etcd", "memory", "sqlite", "zookeeper"]


def _make(request: pytest.FixtureRequest, directory: Path) -> MetadataDriver:
    if request.param == "zookeeper":
        return ZooKeeperDriver(request.getfixturevalue("zookeeper"))
    if request.param == "etcd":
        return EtcdDriver(request.getfixturevalue("tmp_path_factory"))
    return MemoryDriver(directory) if request.param == "memory" else SqliteDriver(directory)


@pytest.fixture(params=_NAMES)
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataDriver]:
    """One fresh tree on each driver in turn."""
    made = _make(request, tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=_NAMES)
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataDriver]:
    """A second fresh tree, on each driver in turn."""
    directory = tmp_path / "target"
    directory.mkdir()
    made = _make(request, directory)
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
