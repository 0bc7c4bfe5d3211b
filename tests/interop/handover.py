"""One bookie that is now the peer's, now ours, on the same directories and the same port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from doubles.warm_command import run_command
from interop.clusters import LEAN_BOOKIE, READY_S
from interop.peer_driver import Peer, PeerError
from interop.peer_java import Java, free_port
from quorumbook.zookeeper_server import ZooKeeperServer


class Handover:
    """The bookie, alone in its cluster; ``conf`` are the peer's options."""

    def __init__(
        self, java: Java, peer: Peer, zookeeper: ZooKeeperServer, directory: Path, **conf: Any
    ) -> None:
        self._java = java
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.root = f"handover-{free_port()}"
        self.uri = f"zk+hierarchical://{zookeeper.address}/{self.root}"
        port = free_port()
        self.bookie_id = f"127.0.0.1:{port}"
        self.journals = [directory / "journal"]
        self.ledgers = [directory / "ledgers"]
        self.conf = {
            **LEAN_BOOKIE,
            "bookiePort": port,
            "zkTimeout": 3000,
            "metadataServiceUri": self.uri,
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            **conf,
        }
        self.conf_file = directory / "bk_server.conf"
        self.conf_file.write_text(
            "".join(f"{key}={_word(value)}\n" for key, value in self.conf.items())
        )
        self._peer: Peer | None = None
        self._own: subprocess.Popen[str] | None = None
        self._kazoo = KazooClient(zookeeper.address)
        self._kazoo.start(READY_S)
        peer.ask("init_cluster", conf={"metadataServiceUri": self.uri})

    # The peer's

    async def start_java(self) -> None:
        self._peer = Peer(self._java, self.directory / f"java-{free_port()}")
        await self._peer.call("start_bookie", name=self.bookie_id, conf=self.conf)

    async def refusals(self, *confs: dict[str, Any]) -> list[str]:
        """Try to start the peer's bookie with each of these options; return its complaints.

        Raises:
            AssertionError: it started.
        """
        process = Peer(self._java, self.directory / f"java-{free_port()}")
        complaints = []
        try:
            for conf in confs:
                with pytest.raises(PeerError) as refused:
                    await process.call(
                        "start_bookie", name=self.bookie_id, conf={**self.conf, **conf}
                    )
                complaints.append(str(refused.value))
        finally:
            await asyncio.to_thread(process.stop)
        return complaints

    async def stop_java(self) -> None:
        assert self._peer is not None
        await self._peer.call("stop_bookie", name=self.bookie_id)
        await asyncio.to_thread(self._peer.stop)
        self._peer = None

    async def kill_java(self) -> None:
        assert self._peer is not None
        await asyncio.to_thread(self._peer.kill)
        self._peer = None
        self._end_registration()

    def _end_registration(self) -> None:
        """Do what ZooKeeper does when a killed bookie's session is over, in some four seconds."""
        with contextlib.suppress(NoNodeError):  # so slow a machine has seen the session's end
            self._kazoo.delete(f"/{self.root}/available/{self.bookie_id}")

    # Ours

    def done(self, *words: str) -> dict[str, Any]:
        """Run a command that must succeed."""
        done = run_command(*words, "--conf", self.conf_file, "-o", "json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    async def start_own(self) -> None:
        words = [sys.executable, "-m", "quorumbook", "bookie", "run", "--stop-with-parent"]
        words += ["--conf", str(self.conf_file), "-o", "jsonl"]
        with (self.directory / "own.log").open("ab") as log:
            self._own = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._own.stdout is not None
        line = await asyncio.to_thread(self._own.stdout.readline)
        assert line, (self.directory / "own.log").read_text()[-2000:]
        assert json.loads(line)["bookie_id"] == self.bookie_id

    async def stop_own(self, *, is_kill: bool = False) -> None:
        assert self._own is not None
        process, self._own = self._own, None
        (process.kill if is_kill else process.terminate)()
        await asyncio.to_thread(process.wait)
        if is_kill:
            self._end_registration()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def close(self) -> None:
        for process in (self._own,):
            if process is not None:
                process.kill()
                process.wait()
        if self._peer is not None:
            self._peer.kill()
        self._kazoo.stop()
        self._kazoo.close()


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
