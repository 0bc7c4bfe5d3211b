"""Clusters of the peer's bookies, of ours and of both, under roots of one ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from doubles.warm_command import run_command
from interop.peer_driver import LEAN, Peer
from interop.peer_java import Java, free_port
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


class Cluster:
    """Bookies of both kinds registered under one root.

    Those of the peer run in the process that tests drive, or, to be killed, in one of their own.
    """

    def __init__(
        self,
        java: Java,
        peer: Peer,
        zookeeper: str,
        root: str,
        directory: Path,
        *,
        layout: str = "hierarchical",
        is_made_by_us: bool = False,
    ) -> None:
        self._java = java
        self._peer = peer
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.uri = f"zk+{layout}://{zookeeper}/{root}"
        self.java: dict[str, Peer] = {}
        self.own: dict[str, _Process] = {}
        if is_made_by_us:
            run_command("cluster", "init", "--metadata", self.uri).check_returncode()
        else:
            peer.ask("init_cluster", conf={"metadataServiceUri": self.uri})

    async def start(self, *, java: int = 0, own: int = 0) -> Cluster:
        """Start so many bookies of each kind, all at once."""
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

    async def start_own(self, **labels: str) -> str:
        """Start a bookie of ours, which carries these labels, and return its id."""
        directory = self._directory / f"own-{len(self.own)}-{free_port()}"
        process = _Process(self.uri, str(directory), {}, labels)
        await process.start()
        self.own[process.bookie_id] = process
        return process.bookie_id

    async def make_read_only(self, name: str) -> None:
        """Have a bookie take nothing more; one of ours is started again for that."""
        if name in self.java:
            await self.java[name].call("make_read_only", name=name)
            return
        await self.own[name].stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QUORUMBOOK_BOOKIE_FORCE_READ_ONLY", "true")
            await self.own[name].start()

    async def shell(self, *words: str, **conf: Any) -> str:
        """Run a command of the peer's shell and return what it says.

        Raises:
            AssertionError: it failed.
        """
        file = self._directory / f"shell-{free_port()}.conf"
        options = {"metadataServiceUri": self.uri, "allowLoopback": True, **conf}
        file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
        shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(file), *words)
        done = await asyncio.to_thread(
            subprocess.run,
            self._java.command(*shell, options=LEAN, log="info"),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=READY_S,
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-1000:]}"
        # It answers through its log, amid what its libraries say.
        return "\n".join(re.findall(r"Command@\d+\] - (.*)", done.stdout))

    @contextlib.asynccontextmanager
    async def auto_recovery(
        self, process: Peer | None = None, *, part: str = "both", **conf: Any
    ) -> AsyncIterator[str]:
        """Run the peer's auditor, its worker, or both, and yield the name they go by.

        Without a process of their own, which may be killed, they are in the one tests drive.
        """
        port = free_port()
        name = f"127.0.0.1:{port}"
        process = process or self._peer
        await process.call(
            "start_recovery",
            name=name,
            part=part,
            conf={
                "metadataServiceUri": self.uri,
                "allowLoopback": True,
                "advertisedAddress": "127.0.0.1",
                "bookiePort": port,
                "lostBookieRecoveryDelay": 0,
                "openLedgerRereplicationGracePeriod": 500,
                "rwRereplicateBackoffMs": 200,
                "lockReleaseOfFailedLedgerGracePeriod": 500,
                **conf,
            },
        )
        try:
            yield name
        finally:
            if process.is_running:
                stopped = process.send("stop_recovery", name=name)
                if part != "auditor":  # which does nothing more, and ends its client for 10 s
                    await asyncio.wrap_future(stopped)

    def pid(self, name: str) -> int:
        """Return the process id of a bookie; of the peer's only if it is mortal."""
        if name in self.java:
            return self.java[name].pid
        process = self.own[name]._process  # the process is killed, not stopped
        assert process is not None
        return process.pid

    async def kill(self, name: str) -> None:
        """End a bookie's process as a crash would."""
        if name in self.own:
            await self.own.pop(name).kill()
        else:
            await asyncio.to_thread(self.java.pop(name).kill)

    async def stop(self) -> None:
        """Stop all bookies."""
        for name, process in self.java.items():
            await process.call("stop_bookie", name=name)
            if process is not self._peer:
                await asyncio.to_thread(process.stop)
        await asyncio.gather(*(process.stop() for process in self.own.values()))
