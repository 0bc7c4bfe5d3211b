"""A cluster for tests: bookies and metadata in a temporary directory, gone at the end.

    with LocalCluster(bookies=3) as cluster:
        with cluster.connect() as bk:  # a client of quorumbook.sync
            ...

    async with LocalCluster(bookies=3) as cluster:
        async with cluster.connect() as bk:
            ...

The bookies run in this process, on the running event loop, or on a thread with a loop of its own
under a plain ``with``.  ``LocalCluster(processes=True)`` starts each as a process, which can be
killed as a crash would.  Command lines and other processes can join through ``metadata_uri``
either way.

``simulate`` runs a program against a cluster that is simulated, with mishaps, from one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import IO, Any, Protocol, TypeVar

import quorumbook
import quorumbook.sync
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.errors import ConnectFailedError, QuorumbookError
from quorumbook.ids import BookieId
from quorumbook.loop_thread import LoopThread
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.uri import open_store
from quorumbook.sim.program import (
    SimulatedMachine,
    Simulation,
    SimulationError,
    SimulationResult,
    simulate,
)
from quorumbook.storage.options import StorageOptions

T = TypeVar("T")

__all__ = [
    "LocalCluster",
    "SimulatedMachine",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "simulate",
]

#: A share of the machine's disk says nothing about a test; what is free in bytes still counts.
_MAX_DISK_USAGE = 1.0


class _Member(Protocol):
    """One bookie, wherever it runs."""

    bookie_id: BookieId

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...


class LocalCluster:
    """Some bookies of one cluster.

    Args:
        bookies: how many.
        processes: run each as a process of its own instead of in this one.
        data_dir: where the data goes; without it a temporary directory, removed at the end.
        storage: options of the bookies' storage, by the names of the section ``storage``.
        metadata_uri: where to make the cluster; without it a SQLite file among the data.
    """

    def __init__(
        self,
        bookies: int = 3,
        *,
        processes: bool = False,
        data_dir: str | None = None,
        storage: dict[str, Any] | None = None,
        metadata_uri: str | None = None,
    ) -> None:
        self._given_uri = metadata_uri
        self._count = bookies
        self._has_processes = processes
        self._storage = storage or {}
        self._is_temporary = data_dir is None
        self._given_directory = os.path.abspath(data_dir) if data_dir is not None else None
        self._members: dict[BookieId, _Member] = {}
        self._thread: LoopThread | None = None
        self._numbers = 0
        #: Where the data is.
        self.directory = ""
        #: What clients connect to.
        self.metadata_uri = ""

    @property
    def bookie_ids(self) -> list[BookieId]:
        """The bookies started so far, stopped ones included."""
        return list(self._members)

    # Both faces of the same life cycle

    async def __aenter__(self) -> LocalCluster:
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    def __enter__(self) -> LocalCluster:
        self._thread = LoopThread()
        try:
            self._thread.run(self.__aenter__())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        try:
            self._thread.run(self._close())
        finally:
            self._thread.stop()

    # Plain calls under ``with``, coroutines under ``async with``

    def connect(self, **options: Any) -> Any:
        """Return a client: of ``quorumbook.sync`` under ``with``, else of ``quorumbook``."""
        if self._thread is not None:
            return quorumbook.sync.connect(self.metadata_uri, **options)
        return quorumbook.connect(self.metadata_uri, **options)

    def add(self, **labels: str) -> Any:
        """Start another bookie, which carries these labels, and return its id."""
        return self._face(self._add(labels))

    def stop(self, bookie_id: BookieId) -> Any:
        """Stop a bookie cleanly."""
        return self._face(self._members[bookie_id].stop())

    def kill(self, bookie_id: BookieId) -> Any:
        """Kill a bookie without any warning; only processes can be killed."""
        return self._face(self._members[bookie_id].kill())

    def restart(self, bookie_id: BookieId) -> Any:
        """Start a bookie again on its data, after stopping it if it still runs."""
        return self._face(self._restart(bookie_id))

    def _face(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T] | T:
        return self._thread.run(work) if self._thread is not None else work

    async def _open(self) -> None:
        self.directory = self._given_directory or tempfile.mkdtemp(prefix="quorumbook-")
        self.metadata_uri = self._given_uri or f"sqlite:///{self.directory}/metadata.db"
        store = await open_store(self.metadata_uri, create=True)
        try:
            await init_cluster(store)
        finally:
            await store.close()
        for _ in range(self._count):
            await self._add({})

    async def _add(self, labels: Mapping[str, str]) -> BookieId:
        self._numbers += 1
        directory = os.path.join(self.directory, f"bookie-{self._numbers}")
        member: _Member
        if self._has_processes:
            member = _Process(self.metadata_uri, directory, self._storage, labels)
        else:
            member = _InThisProcess(self.metadata_uri, directory, self._storage, labels)
        await member.start()
        self._members[member.bookie_id] = member
        return member.bookie_id

    async def _restart(self, bookie_id: BookieId) -> None:
        await self._members[bookie_id].stop()
        await self._members[bookie_id].start()

    async def _close(self) -> None:
        try:
            for member in self._members.values():
                await member.stop()
        finally:
            if self._is_temporary and self.directory:
                shutil.rmtree(self.directory, ignore_errors=True)


class _InThisProcess:
    """A bookie on the running loop."""

    def __init__(
        self,
        metadata_uri: str,
        directory: str,
        storage: dict[str, Any],
        labels: Mapping[str, str],
    ) -> None:
        self._uri = metadata_uri
        self._labels = labels
        self._directory = directory
        self._storage = storage
        self._stack = contextlib.AsyncExitStack()
        self._port = 0
        self.bookie_id: BookieId = ""

    async def start(self) -> None:
        env = Env()
        async with contextlib.AsyncExitStack() as stack:
            store = await open_store(self._uri, env)
            stack.push_async_callback(store.close)
            options = BookieOptions(
                journal_directories=(os.path.join(self._directory, "journal"),),
                ledger_directories=(os.path.join(self._directory, "ledgers"),),
                storage=StorageOptions(**self._storage),
                port=self._port,
                labels=self._labels,
                max_disk_usage=_MAX_DISK_USAGE,
                disk_usage_writable=_MAX_DISK_USAGE,
            )
            bookie = Bookie(env, options, store)
            await bookie.start()
            stack.push_async_callback(bookie.stop)
            self.bookie_id = bookie.bookie_id
            # A bookie is known by its address, so it comes back where it was.
            self._port = int(self.bookie_id.rpartition(":")[2])
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        await self._stack.aclose()

    async def kill(self) -> None:
        raise QuorumbookError("only LocalCluster(processes=True) has bookies that can be killed")


class _Process:
    """A bookie run by ``quorumbook bookie run``."""

    def __init__(
        self,
        metadata_uri: str,
        directory: str,
        storage: dict[str, Any],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._uri = metadata_uri
        self._labels = labels or {}
        self._directory = directory
        self._storage = storage
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self.bookie_id: BookieId = ""

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._end, is_kill=False)

    async def kill(self) -> None:
        await asyncio.to_thread(self._end, is_kill=True)

    def _start(self) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        words = [sys.executable, "-m", "quorumbook", "bookie", "run", "-o", "jsonl"]
        words += ["--port", str(self._port)]
        words += ["--data-dir", self._directory, "--stop-with-parent", "--set", "http.port=0"]
        for name in ("max_disk_usage", "disk_usage_writable"):
            words += ["--set", f"bookie.{name}={_MAX_DISK_USAGE}"]
        for name, value in self._storage.items():
            words += ["--set", f"storage.{name}={value}"]
        for key, value in self._labels.items():
            words += ["--label", f"{key}={value}"]
        with self._open_log() as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Anybody can read a command line.  A context would name another cluster.
                env={**os.environ, "QUORUMBOOK_CONTEXT": "", "QUORUMBOOK_METADATA_URI": self._uri},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise ConnectFailedError(f"a bookie did not start; see {self._directory}/bookie.log")
        self.bookie_id = json.loads(line)["bookie_id"]
        self._port = int(self.bookie_id.rpartition(":")[2])

    def _open_log(self) -> IO[bytes]:
        return open(os.path.join(self._directory, "bookie.log"), "ab")

    def _end(self, *, is_kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if is_kill:
            process.kill()
        else:
            process.terminate()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
