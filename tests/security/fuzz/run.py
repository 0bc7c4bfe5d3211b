"""Fuzzes a real bookie while an honest writer works, kills it, and counts what was acknowledged.

Rounds alternate between a plain bookie and one that demands TLS and authentication.  In each round
strangers attack (``conversations.py`` says how) and one writer appends to ledgers of its own.  At
its end the bookie is killed with SIGKILL while both still go on, and started again; then every
acknowledged entry must be there with its own bytes.  The bookie must not have ended before, no
log may have a trace, strangers may have been told OK by no gate and own no ledger behind it, and
its memory and descriptors are watched.
What comes of many rounds is written down by ``__main__.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import quorumbook
from doubles.certificates import Authority
from doubles.ports import free_ports
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env import TlsOptions
from quorumbook.errors import QuorumbookError
from quorumbook.protocol.status import Status
from quorumbook.protocol.v3 import client as v3
from security.fuzz.conversations import HONEST, INSIDE, STRANGE, Conversation, Step
from security.fuzz.strangers import Line, Orders, Seen

MODES = ("plain", "TLS and authentication")
#: Caches small enough for flushes and compaction to take part.
STORAGE = {
    "write_cache_size_bytes": 16 << 20,
    "read_cache_size_bytes": 8 << 20,
    "journal_file_size_bytes": 32 << 20,
    "entry_log_size_bytes": 64 << 20,
    "flush_interval_s": 2,
}
#: What it may take: these caches and 400 MB.
MEMORY_MAX_MB = 2 * 16 + 8 + 400
#: Strangers are few at a time; more than this means that some stay behind.
DESCRIPTORS_MAX = 250
#: Of the honest writer's ledgers one is written at a time, this many entries in a row.
ROW = 50
SHAPE: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
FRAMES_A_ROUND = 250_000
PATIENCE_S = 90


@dataclass
class Round:
    """What one round came to."""

    mode: str
    seconds: float = 0.0
    acknowledged: int = 0
    slowest_ack_ms: float = 0.0
    rss_before_mb: int = 0
    rss_max_mb: int = 0
    descriptors_max: int = 0
    seen: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def frames(self) -> int:
        """How many were sent."""
        return sum(self.seen["frames"].values())


class Subject:
    """The bookie that is attacked: a process, its directory, and how friends reach it."""

    def __init__(self, directory: Path, mode: str) -> None:
        self.directory = directory
        self.is_gated = mode != MODES[0]
        self.uri = f"sqlite:///{directory}/metadata.db"
        self.port = free_ports(1)[0]
        self.process: asyncio.subprocess.Process | None = None
        self.is_killed = False
        #: What is run, and what it says when it serves.
        self.command = [sys.executable, "-m", "quorumbook"]
        self.greeting: dict[str, Any] = {}
        self.client_options: dict[str, Any] = {"add_timeout_s": 60, "add_quorum_timeout_s": 60}
        self._words = ["--port", str(self.port), "--data-dir", str(directory / "data")]
        self._words += ["--set", "http.enabled=false", "--stop-with-parent", "-o", "jsonl"]
        for name, value in STORAGE.items():
            self._words += ["--set", f"storage.{name}={value}"]
        self.ca_file = self.secret_file = ""
        if self.is_gated:
            self._secure()

    def _secure(self) -> None:
        ca = Authority(self.directory)
        own = ca.issue("bookie", ips=["127.0.0.1"])
        secret = self.directory / "secret"
        secret.write_text(f"writer:{random.randbytes(16).hex()}\n")
        secret.chmod(0o600)
        self.ca_file, self.secret_file = ca.ca_file, str(secret)
        self.own = own
        for option in (
            "tls.enabled=true", "tls.require=true", f"tls.certificate_file={own.certificate_file}",
            f"tls.key_file={own.key_file}", "bookie.auth_plugin=shared-secret",
            f"bookie.auth_settings={secret}", "bookie.login_timeout_s=2",
        ):  # fmt: skip
            self._words += ["--set", option]
        self.client_options |= {
            "tls": TlsOptions(ca_file=ca.ca_file, require=True),
            "auth_plugin": "shared-secret", "auth_settings": str(secret),
        }  # fmt: skip

    @property
    def log(self) -> Path:
        """What it said, over all its lives."""
        return self.directory / "bookie.log"

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        if not (self.directory / "data").exists():
            words = ["cluster", "init", "--metadata", self.uri]
            made = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "quorumbook", *words, stdout=asyncio.subprocess.DEVNULL
            )
            assert await made.wait() == 0
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, "bookie", "run", "--metadata", self.uri, *self._words,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self.process.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        self.greeting = json.loads(line)

    async def kill(self) -> int | None:
        """Kill it without warning; return its exit code if it had ended before."""
        assert self.process is not None
        code = self.process.returncode
        self.is_killed = True
        if code is None:
            self.process.kill()
            await self.process.wait()
        return code

    def rss_mb(self) -> int:
        """Resident memory now."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    return int(line.split()[1]) // 1024
        return 0

    def descriptors(self) -> int:
        """Open files now."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return 0


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Bytes that belong to one entry alone, of 100 to 5,000."""
    return b"%d:%d " % (ledger_id, entry_id) * (10 + entry_id * 7 % 400)


class Honest:
    """A writer with ledgers that strangers know of, and what it was told of them."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.acknowledged: Counter[int] = Counter()
        self.slowest_s = 0.0
        self.hindered_by = ""

    async def write(self, is_ready: asyncio.Event) -> None:
        """Append until the bookie is gone."""
        options = self._subject.client_options
        async with quorumbook.connect(self._subject.uri, **options) as client:
            writers = [await client.create_ledger(**SHAPE) for _ in HONEST]
            for writer in writers:
                assert writer.id in HONEST
                await self._row(writer)
            is_ready.set()
            try:
                while True:
                    for writer in writers:
                        await self._row(writer)
                    await asyncio.sleep(0.01)
            except QuorumbookError as error:
                if not self._subject.is_killed:
                    self.hindered_by = f"the writer was hindered: {error}"

    async def _row(self, writer: LedgerWriter) -> None:
        first = self.acknowledged[writer.id]
        begun = time.monotonic()
        futures = [writer.append_nowait(payload(writer.id, i)) for i in range(first, first + ROW)]
        for future in futures:
            assert await future == self.acknowledged[writer.id]
            self.acknowledged[writer.id] += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)

    async def verify(self) -> list[str]:
        """Read everything that was acknowledged; return what is wrong."""
        wrong = []
        options = self._subject.client_options
        async with quorumbook.connect(self._subject.uri, **options) as client:
            for ledger_id, count in self.acknowledged.items():
                async with client.open_ledger(ledger_id) as reader:
                    found = [entry.payload async for entry in reader.read()]
                if found[:count] != [payload(ledger_id, i) for i in range(count)]:
                    wrong.append(f"ledger {ledger_id}: {count} entries were acknowledged, and "
                                 f"{len(found)} are there, not all of them right")  # fmt: skip
        return wrong


async def _watch(subject: Subject, result: Round) -> None:
    while True:
        result.rss_max_mb = max(result.rss_max_mb, subject.rss_mb())
        result.descriptors_max = max(result.descriptors_max, subject.descriptors())
        await asyncio.sleep(0.05)


async def _strangers(orders: Orders) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "security.fuzz.strangers", json.dumps(asdict(orders)),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


async def what_strangers_own(orders: Orders) -> list[str]:
    """Ask as a friend for each ledger of strangers; behind a gate there must be none."""
    talk = Conversation("", [Step("tls"), Step("log in")], is_reading=False)
    line = Line(orders, talk, Seen(), 0)
    known = []
    async with line.opened():
        for step in talk.steps:
            await line.do(step)
        for ledger_id in (*STRANGE, *INSIDE):
            answer = await line.ask(v3.encode_read(1, ledger_id, 0))
            if answer.status is not Status.NO_LEDGER:
                known.append(ledger_id)
    # If none of those who logged in were known either, the question would be the wrong one.
    assert any(ledger_id in INSIDE for ledger_id in known)
    own = [ledger_id for ledger_id in known if ledger_id in STRANGE]
    return [f"strangers own {len(own)} ledgers, {own[:3]} among them"] if own else []


async def fuzz_round(
    directory: Path, mode: str, seed: int, first: int, *, frames: int, seconds: float | None = None
) -> Round:
    """Attack one bookie; see the module's page."""
    result = Round(mode)
    directory.mkdir(parents=True)
    subject = Subject(directory, mode)
    await subject.start()
    honest, is_ready = Honest(subject), asyncio.Event()
    writing = asyncio.create_task(honest.write(is_ready))
    await is_ready.wait()
    result.rss_before_mb = subject.rss_mb()
    watching = asyncio.create_task(_watch(subject, result))
    begun = time.monotonic()
    orders = Orders(
        subject.port, seed, first, frames, ca_file=subject.ca_file, secret_file=subject.secret_file
    )
    strangers = await _strangers(orders)
    assert strangers.stdout is not None
    assert strangers.stdin is not None
    line = asyncio.create_task(strangers.stdout.readline())
    await asyncio.wait([line], timeout=seconds)
    code = await subject.kill()
    if code is not None:
        result.violations.append(f"the bookie ended by itself with {code}")
    strangers.stdin.close()
    result.seen = json.loads(await line)
    await strangers.wait()
    result.seconds = time.monotonic() - begun
    watching.cancel()
    await writing
    if honest.hindered_by:
        result.violations.append(honest.hindered_by)
    await subject.start()
    result.violations += result.seen.pop("violations") + await honest.verify()
    if subject.is_gated:
        result.violations += await what_strangers_own(orders)
    await subject.kill()
    log = subject.log.read_text(errors="replace")
    if "Traceback" in log:
        result.violations.append("a trace in the log: " + log[log.index("Traceback") :][:2000])
    if result.rss_max_mb > MEMORY_MAX_MB:
        result.violations.append(f"{result.rss_max_mb} MB of memory")
    if result.descriptors_max > DESCRIPTORS_MAX:
        result.violations.append(f"{result.descriptors_max} descriptors")
    result.acknowledged = honest.acknowledged.total()
    result.slowest_ack_ms = honest.slowest_s * 1000
    return result


async def rounds(directory: Path, seed: int, first: int, frames: int) -> AsyncIterator[Round]:
    """Attack by turns until so many frames were sent."""
    sent = number = 0
    while sent < frames:
        share = min(FRAMES_A_ROUND, frames - sent)
        place = directory / str(number)
        done = await fuzz_round(place, MODES[number % 2], seed, first, frames=share)
        shutil.rmtree(place)
        sent += done.frames
        first = done.seen["next"]
        number += 1
        yield done
