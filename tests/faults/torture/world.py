"""The servers of the torture: ZooKeeper, bookies, the proxies before them, auto-recovery.

It does what it is told to them and knows what bookies said when they started; what happens when,
``cycles`` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from doubles.ports import free_ports
from doubles.raw_client import RawClient
from doubles.zookeeper import start_zookeeper
from faults.torture.clients import Job
from faults.torture.network import BookieProxy, LosingZooKeeper
from faults.torture.nursery import Nursery, Process
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.v2 import packets as v2

BOOKIES = 4
#: Writers reach the cluster through the proxies of one group, their rivals through the other's.
GROUPS = ("writers", "rivals")
#: What a bookie says when it puts ledgers in limbo at its start.
LIMBO = b"may be incomplete here"
NO_LEDGER, NO_ENTRY = 1, 2
START_S = 60.0
SETTINGS = (
    "http.port=0",
    "metadata.session_timeout_s=4",
    "storage.journal_file_size_bytes=16M",
    "storage.write_cache_size_bytes=8M",
    "storage.flush_interval_s=1",
    "gc.interval_s=1",
    "gc.confirm_interval_s=1",
)


class BookieProcess:
    """One bookie: a directory, a port, and the process that runs it just now."""

    def __init__(self, nursery: Nursery, uri: str, directory: Path, port: int) -> None:
        self._nursery, self._uri, self._port = nursery, uri, port
        self.directory = directory
        self.port = port
        self.process: Process | None = None
        self.is_paused = False
        self.starts = 0
        directory.mkdir(parents=True, exist_ok=True)

    async def start(self) -> None:
        """Start it, and wait until it serves; what ends before it does is started again."""
        deadline = time.monotonic() + START_S
        words = ["bookie", "run", "-o", "jsonl", "--metadata", self._uri, "--port", str(self.port)]
        words += ["--data-dir", str(self.directory)]
        for setting in SETTINGS:
            words += ["--set", setting]
        out = self.directory / "out"
        while True:
            out.unlink(missing_ok=True)
            self.starts += 1
            self.process = await self._nursery.start("command", words, self.directory)
            while self.process.is_alive:
                if out.exists() and out.read_bytes().endswith(b"\n"):
                    assert json.loads(out.read_bytes())["bookie_id"]
                    return
                assert time.monotonic() < deadline, f"no start: see {self.directory}/log"
                await asyncio.sleep(0.005)
            assert time.monotonic() < deadline, f"no start: see {self.directory}/log"

    async def kill(self) -> None:
        """End it without any warning."""
        assert self.process is not None
        await self.process.kill()
        self.is_paused = False

    def pause(self) -> None:
        """Stop it where it stands."""
        assert self.process is not None
        self.process.send(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send(signal.SIGCONT)
        self.is_paused = False

    def limbo_starts(self) -> int:
        """Count the starts at which it put ledgers in limbo."""
        return (self.directory / "log").read_bytes().count(LIMBO)

    async def holds(self, ledger_id: int) -> bool:
        """Tell whether it has anything of a ledger; the sign is its first entry."""
        async with asyncio.timeout(5):
            client = await RawClient.connect(self.port)
            try:
                answer = await client.ask(v2.encode_read(ledger_id, 0))
            finally:
                client.writer.transport.abort()
        return int.from_bytes(answer[8:12], "big") not in (NO_LEDGER, NO_ENTRY)


class World:
    """All servers, and a door for clients."""

    def __init__(self, directory: Path, classpath: str, dice: random.Random) -> None:
        self.directory = directory
        self.history = directory / "history"
        self._classpath = classpath
        self._dice = dice
        self._stack = contextlib.AsyncExitStack()
        self.bookies: list[BookieProcess] = []
        self.proxies: dict[str, list[BookieProxy]] = {}
        self.metadata: dict[str, LosingZooKeeper] = {}
        self._recovery: Process | None = None

    async def __aenter__(self) -> World:
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        self.history.mkdir(parents=True)
        server = start_zookeeper(str(self.directory / "zookeeper"), self._classpath)
        stack.callback(server.kill)
        self._uri = f"zk://{server.address}/ledgers"
        store = await open_store(self._uri, create=True)
        await init_cluster(store)
        await store.close()
        self._nursery = await stack.enter_async_context(Nursery())
        for index, port in enumerate(free_ports(BOOKIES)):
            directory = self.directory / f"bookie-{index + 1}"
            self.bookies.append(BookieProcess(self._nursery, self._uri, directory, port))
        await asyncio.gather(*(bookie.start() for bookie in self.bookies))
        host, _, port_text = server.address.rpartition(":")
        for group in GROUPS:
            proxies = [BookieProxy(bookie.port) for bookie in self.bookies]
            for proxy in proxies:
                await stack.enter_async_context(proxy)
            self.proxies[group] = proxies
            losing = LosingZooKeeper(host, int(port_text), random.Random(self._dice.random()))
            self.metadata[group] = await stack.enter_async_context(losing)

    async def client(
        self, group: str, kind: str, name: str, ledger_id: int, **job: object
    ) -> Process:
        """Start a client that reaches everything through the proxies of a group."""
        if group == "nobody's":  # who looks at the end sees no mishap any more
            uri, proxies = self._uri, []
        else:
            uri = f"zk://127.0.0.1:{self.metadata[group].port}/ledgers"
            proxies = [
                (bookie.port, proxy.port)
                for bookie, proxy in zip(self.bookies, self.proxies[group], strict=True)
            ]
        made = Job(
            kind=kind, name=name, uri=uri, proxies=proxies, history=str(self.history),
            ledger_id=ledger_id, **{"number": 0, **job},  # type: ignore[arg-type]
        )  # fmt: skip
        return await self._nursery.start("client", asdict(made), self.directory)

    async def kill(self, victims: Sequence[BookieProcess]) -> None:
        """Kill bookies at once: all signals are sent before one is waited for."""
        for bookie in victims:
            assert bookie.process is not None
            bookie.process.send(signal.SIGKILL)
        await asyncio.gather(*(bookie.kill() for bookie in victims))

    async def heal(self) -> None:
        """Have everything run and flow again."""
        for group in GROUPS:
            self.metadata[group].lose(0)
            for proxy in self.proxies[group]:
                proxy.heal()
        for bookie in self.bookies:
            if bookie.is_paused:
                bookie.resume()
        dead = [each for each in self.bookies if each.process is None or not each.process.is_alive]
        await asyncio.gather(*(bookie.start() for bookie in dead))

    async def set_recovery(self, *, runs: bool) -> None:
        """Have auto-recovery run, or not; it ends by SIGKILL."""
        if not runs and self._recovery is not None:
            await self._recovery.kill()
            self._recovery = None
        elif runs and (self._recovery is None or not self._recovery.is_alive):
            words = ["recovery", "run", "--metadata", self._uri]
            for setting in ("http.enabled=false", "recovery.open_ledger_grace_s=1",
                            "recovery.max_retry_s=1", "metadata.session_timeout_s=4"):  # fmt: skip
                words += ["--set", setting]
            directory = self.directory / "recovery"
            directory.mkdir(exist_ok=True)
            self._recovery = await self._nursery.start("command", words, directory)
