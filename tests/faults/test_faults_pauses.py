"""Processes that are stopped for longer than their limits while their peers keep them.

How long a pause lasts is what is tested here, so these tests do wait for a time: a little more
than limits that are as short as they can be.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from doubles.raw_client import RawClient
from doubles.zookeeper import made_root
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env, RealDisk
from quorumbook.ids import MASTER_KEY_SIZE_BYTES
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v2 import packets as v2
from quorumbook.sim.disks.faults import Faults, FaultyDisk

pytestmark = pytest.mark.faults

PROCESS = Path(__file__).with_name("paused_process.py")
PATIENCE_S = 60
LIMIT_S = 0.5
LOOPS = ("asyncio", "uvloop")
KEY = master_key(b"")
DIGESTER = digester(DigestType.CRC32C, b"")
LARGE = bytes(1024 * 1024)

assert len(KEY) == MASTER_KEY_SIZE_BYTES


class Process:
    """A process that says a line for each fact, and can be paused."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await self._process.stdout.readline()).decode().strip()

    def tell(self, text: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())

    async def pause(self) -> None:
        """Stop it, and wait until it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            while self._state() != "T":
                await asyncio.sleep(0.001)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _state(self) -> str:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


@contextlib.asynccontextmanager
async def started(*words: object) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *map(str, words),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def sqlite_cluster(root: Path) -> AsyncIterator[tuple[str, MetadataStore]]:
    uri = f"sqlite:///{root}/metadata.db"
    store = await open_store(uri, create=True, session_timeout_s=60)
    await init_cluster(store)
    try:
        yield uri, store
    finally:
        await store.close()


def sealed(entry_id: int, payload: bytes) -> bytes:
    return DIGESTER.seal(1, entry_id, -1, len(payload), payload)


async def test_a_bookie_that_was_paused_cuts_nobody_who_kept_its_limits(tmp_path: Path) -> None:
    limits = [
        word
        for name in ("frame_timeout_s", "answer_timeout_s", "login_timeout_s")
        for word in ("--set", f"bookie.{name}={LIMIT_S}")
    ]
    async with (
        sqlite_cluster(tmp_path) as (uri, _),
        started(
            "-m", "quorumbook", "bookie", "run", "-o", "jsonl", "--metadata", uri,
            "--port", "0", "--data-dir", tmp_path / "bookie", "--stop-with-parent",
            "--set", "http.port=0", *limits,
        ) as bookie,
    ):  # fmt: skip
        port = int((await bookie.line()).split('"bookie_id"')[1].split('"')[1].rpartition(":")[2])
        reader = await RawClient.connect(port)
        for entry_id in range(16):
            reader.send(v2.encode_adds(KEY, 0, [sealed(entry_id, LARGE)])[0])
        await reader.add_codes(16)
        writer = await RawClient.connect(port)
        frame = v2.encode_adds(KEY, 0, [sealed(16, b"x" * 1000)])[0]
        # One begins a frame, another one leaves its answers until the bookie sends no more.
        writer.send(frame[:500])
        taking = reader.writer.transport
        assert isinstance(taking, asyncio.ReadTransport)
        taking.pause_reading()
        reader.send(b"".join(v2.encode_read(1, entry_id) for entry_id in range(16)) * 4)
        await asyncio.sleep(LIMIT_S / 3)
        await bookie.pause()
        # Both do in time what they have to.
        writer.send(frame[500:])
        taking.resume_reading()
        await asyncio.sleep(3 * LIMIT_S)
        bookie.go_on()
        assert await writer.add_codes(1) == [(16, 0)]
        for number in range(64):
            assert (await reader.frame()).endswith(sealed(number % 16, LARGE))
        reader.close()
        writer.close()


@pytest.mark.parametrize("loop", LOOPS)
async def test_requests_of_a_client_that_was_paused_do_not_fail_for_it(
    tmp_path: Path, loop: str
) -> None:
    gate = threading.Event()
    gate.set()

    def on_call(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".txn"):
            gate.wait()

    env = Env(disk=FaultyDisk(RealDisk(), Faults(on_call=on_call)))
    async with sqlite_cluster(tmp_path) as (uri, store):
        bookies = [
            Bookie(
                env,
                BookieOptions(
                    journal_directories=(f"{tmp_path}/{name}/journal",),
                    ledger_directories=(f"{tmp_path}/{name}/ledgers",),
                    port=0,
                    bookie_id=name,
                    max_read_delay_s=600,
                    min_high_priority_free_bytes=1,
                    max_disk_usage=1.0,
                    disk_usage_writable=1.0,
                ),
                store,
            )
            for name in ("one", "two", "three")
        ]
        for bookie in bookies:
            await bookie.start()
        try:
            async with started(PROCESS, loop, "append", uri) as client:
                assert await client.line() == "ready"
                gate.clear()
                client.tell()
                async with asyncio.timeout(PATIENCE_S):
                    while sum(b.metrics.adds_in_progress for b in bookies) < 2 or not sum(
                        b.metrics.reads_in_progress for b in bookies
                    ):
                        await asyncio.sleep(0.001)
                await client.pause()
                gate.set()
                await asyncio.sleep(3 * LIMIT_S)
                client.go_on()
                assert await client.line() == "1 [b'second']"
        finally:
            gate.set()
            for bookie in bookies:
                await bookie.stop()


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_pause_within_the_session_costs_neither_it_nor_its_connection(
    zookeeper, loop: str
) -> None:
    uri = f"zk://{zookeeper.address}/ledgers?chroot={await made_root(zookeeper)}"
    async with started(PROCESS, loop, "session", uri) as holder:
        holder.tell()
        before = await holder.line()
        # Two thirds of four seconds without a word would speak against the server.
        await holder.pause()
        await asyncio.sleep(2.9)
        holder.go_on()
        holder.tell()
        assert await holder.line() == before
