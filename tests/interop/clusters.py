"""Clusters of the peer's bookies, of ours and of both, under roots of one ZooKeeper."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from peer_driver import LEAN, Peer
from peer_java import Java, free_port

from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.service_info import BookieServiceInfo
from quorumbook.metadata.uri import open_store
from quorumbook.testing import _Process

#: A bookie of the peer in few bytes of memory, that never finds a disk too full for tests.
LEAN_BOOKIE: dict[str, Any] = {
    "allowLoopback": True,
    "advertisedAddress": "127.0.0.1",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": 32,
    "dbStorage_readAheadCacheMaxSizeMb": 8,
    "dbStorage_rocksDB_blockCacheSize": 1 << 20,
    "dbStorage_rocksDB_writeBufferSizeMB": 4,
    "journalMaxSizeMB": 64,
    "journalPreAllocSizeMB": 4,
    "entryLogFilePreallocationEnabled": False,
    "numAddWorkerThreads": 1,
    "numReadWorkerThreads": 1,
    "numHighPriorityWorkerThreads": 1,
    "serverNumIOThreads": 1,
    "httpServerEnabled": False,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
}
READY_S = 60.0


class ZooKeeper:
    """One ZooKeeper server as a process, with its data in a directory of its own."""

    def __init__(self, java: Java, directory: Path) -> None:
        self._java = java
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{free_port()}"
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        config = self._directory / "zoo.cfg"
        host, port = self.address.split(":")
        config.write_text(
            f"tickTime=500\ndataDir={self._directory}/data\nclientPort={port}\n"
            f"clientPortAddress={host}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "minSessionTimeout=1000\n4lw.commands.whitelist=*\n"
        )
        with (self._directory / "zookeeper.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java.command(
                    "org.apache.zookeeper.server.ZooKeeperServerMain", str(config), options=LEAN
                ),
                stdout=log,
                stderr=log,
            )
        client = KazooClient(self.address)
        client.start(READY_S)
        client.stop()
        client.close()

    def kill(self) -> None:
        """End it as a crash would; ``start`` brings it back with its data."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


class Cluster:
    """Bookies of both kinds registered under one root.

    Those of the peer run in the process that tests drive, or, to be killed, in one of their own.
    """

    def __init__(
        self, java: Java, peer: Peer, zookeeper: ZooKeeper, root: str, directory: Path
    ) -> None:
        self._java = java
        self._peer = peer
        self._directory = directory
        self._zookeeper, self._root, self._registrar = zookeeper, root, None
        self.uri = f"zk+hierarchical://{zookeeper.address}/{root}"
        self.java: dict[str, Peer] = {}
        self.own: dict[str, _Process] = {}
        peer.ask("init_cluster", conf={"metadataServiceUri": self.uri})

    async def start(self, *, java: int = 0, own: int = 0) -> Cluster:
        """Start so many bookies of each kind, all at once."""
        await self._own_uri()
        await asyncio.gather(
            *(self.start_java() for _ in range(java)), *(self.start_own() for _ in range(own))
        )
        return self

    async def start_java(self, *, is_mortal: bool = False, **conf: Any) -> str:
        """Start a bookie of the peer and return its id; only a mortal one can be killed."""
        port = free_port()
        name = f"127.0.0.1:{port}"
        data = self._directory / f"java-{port}"
        process = Peer(self._java, data) if is_mortal else self._peer
        await process.call(
            "start_bookie",
            name=name,
            conf={
                "bookiePort": port,
                "metadataServiceUri": self.uri,
                "journalDirectories": str(data / "journal"),
                "ledgerDirectories": str(data / "ledgers"),
                **LEAN_BOOKIE,
                **conf,
            },
        )
        self.java[name] = process
        return name

    async def start_own(self) -> str:
        """Start a bookie of ours and return its id."""
        directory = self._directory / f"own-{len(self.own)}-{free_port()}"
        process = _Process(await self._own_uri(), str(directory), {})
        await process.start()
        self.own[process.bookie_id] = process
        host, _, port = process.bookie_id.partition(":")
        info = BookieServiceInfo.of_bookie(host, int(port)).encode()
        self._registrar.create(
            f"/{self._root}/available/{process.bookie_id}", info, ephemeral=True, makepath=True
        )
        return process.bookie_id

    async def _own_uri(self) -> str:
        uri = f"sqlite:///{self._directory}/metadata.db"
        if self._registrar is None:
            store = await open_store(uri, create=True)
            await init_cluster(store)
            await store.close()
            self._registrar = KazooClient(self._zookeeper.address)
            self._registrar.start(READY_S)
        return uri

    async def kill(self, name: str) -> None:
        """End a bookie's process as a crash would."""
        if name in self.own:
            await self.own.pop(name).kill()
        else:
            await asyncio.to_thread(self.java.pop(name).kill)

    async def stop(self) -> None:
        """Stop all bookies."""
        if self._registrar is not None:
            self._registrar.stop()
            self._registrar.close()
        for name, process in self.java.items():
            await process.call("stop_bookie", name=name)
            if process is not self._peer:
                await asyncio.to_thread(process.stop)
        await asyncio.gather(*(process.stop() for process in self.own.values()))
