"""One attack on a bookie of its own: memory, the loop's longest stall, an honest writer's latency.

Memory is the resident set as the system counts it, its peak included.

Attacker, bookie and writer share the processors of one machine, so part of what the writer
notices is the machine.  The control says how much: the same attack on another bookie of this
machine, while the writer goes on with the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import quantiles

from doubles.certificates import Authority
from quorumbook.env.machine import raise_descriptor_limit
from quorumbook.env.tasks import cancel_and_wait
from security.limits.attacks import ATTACKS, Attack, Target, prepare

HERE = Path(__file__).parent
_LONGEST = struct.Struct("dd")
MB = 1024 * 1024
#: Two write caches and the read cache of a bookie as it is by default.
CACHES_BYTES = (2 * 64 + 32) * MB
MEMORY_BYTES_MAX = CACHES_BYTES + 400 * MB
QUIET_S = 5.0
#: Longer than that the control of a long attack says nothing more.
CONTROL_S = 120.0
SECRET = "s" * 24


@dataclass
class Outcome:
    """What an attack came to."""

    attack: str
    by: str
    sent_bytes: int
    before_bytes: int
    peak_bytes: int
    stall_s: float
    wall_stall_s: float
    #: What each append of the honest writer took.
    quiet_ms: list[float]
    #: While another bookie of the machine was attacked; none if that was not asked for.
    control_ms: list[float]
    attacked_ms: list[float]
    has_ended: bool
    #: The most memory seen in each minute, of looks a second apart.
    minutes_bytes: list[int]

    @property
    def appended(self) -> int:
        return len(self.attacked_ms)

    def with_round(self, other: Outcome) -> Outcome:
        """Return what this and another round of the same attack came to."""
        return Outcome(
            self.attack, self.by, max(self.sent_bytes, other.sent_bytes),
            max(self.before_bytes, other.before_bytes), max(self.peak_bytes, other.peak_bytes),
            max(self.stall_s, other.stall_s), max(self.wall_stall_s, other.wall_stall_s),
            self.quiet_ms + other.quiet_ms, self.control_ms + other.control_ms,
            self.attacked_ms + other.attacked_ms, self.has_ended or other.has_ended,
            self.minutes_bytes + other.minutes_bytes,
        )  # fmt: skip


def p50_p99(took_ms: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    cuts = quantiles(took_ms, n=100, method="inclusive")
    return cuts[49], cuts[98]


class Watched:
    """A bookie process with a stopwatch, and the honest writer beside it."""

    def __init__(
        self, directory: Path, *, is_guarded: bool, is_tls: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.uri = f"sqlite:///{directory}/metadata.db"
        self.is_guarded, self.is_tls = is_guarded, is_tls
        self._settings = {"http.port": 0, "storage.flush_interval_s": 20, **(settings or {})}
        self.port = self.http_port = 0
        self.latencies: list[tuple[float, float]] = []
        self._longest = directory / "longest"

    @property
    def options(self) -> dict[str, str]:
        """What the honest writer is told."""
        found: dict[str, str] = {}
        if self.is_guarded:
            secret = str(self.directory / "secret")
            found |= {"auth_plugin": "shared-secret", "auth_settings": secret}
        if self.is_tls:
            found["ca_file"] = self._authority.ca_file
        return found

    @cached_property
    def _authority(self) -> Authority:
        return Authority(self.directory)

    def _security(self) -> list[str]:
        """Make a secret and a certificate, and return the bookie's options for them."""
        words: list[str] = []
        if self.is_guarded:
            secret = self.directory / "secret"
            secret.write_text(f"writer:{SECRET}\n")
            secret.chmod(0o600)
            words += ["bookie.auth_plugin=shared-secret", f"bookie.auth_settings={secret}"]
        if self.is_tls:
            own = self._authority.issue("bookie", ips=["127.0.0.1"])
            words += ["tls.enabled=true", "tls.require=true"]
            words += [
                f"tls.certificate_file={own.certificate_file}",
                f"tls.key_file={own.key_file}",
            ]
        return [part for word in words for part in ("--set", word)]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        self._longest.write_bytes(bytes(_LONGEST.size))
        base = [sys.executable, "-m", "quorumbook"]
        init = [*base, "cluster", "init", "--metadata", self.uri]
        subprocess.run(init, check=True, capture_output=True)
        words = [sys.executable, str(HERE / "watched.py"), str(self._longest)]
        words += ["bookie", "run", "-o", "jsonl", "--metadata", self.uri, "--port", "0"]
        words += ["--data-dir", str(self.directory / "data"), "--stop-with-parent"]
        for name, value in self._settings.items():
            words += ["--set", f"{name}={value}"]
        words += self._security()
        with (self.directory / "bookie.log").open("wb") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        with self.process:
            try:
                assert self.process.stdout is not None
                line = json.loads(await asyncio.to_thread(self.process.stdout.readline))
                self.port = int(line["bookie_id"].rpartition(":")[2])
                self.http_port = int(str(line.get("http", ":0")).rpartition(":")[2].strip("/"))
                yield self
            finally:
                self.process.kill()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Have the honest writer write."""
        words = [str(HERE / "honest.py"), self.uri, json.dumps(self.options)]
        with (self.directory / "writer.log").open("wb") as log:
            writer = await asyncio.create_subprocess_exec(
                sys.executable, *words, stdout=subprocess.PIPE, stderr=log
            )
        assert writer.stdout is not None
        await writer.stdout.readline()
        taking = asyncio.create_task(self._take(writer.stdout))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                writer.kill()
            await taking
            await writer.wait()

    async def _take(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            moment, took = line.split()
            self.latencies.append((float(moment), float(took)))

    def memory(self, name: str) -> int:
        """Return VmRSS, or VmHWM since ``forget``."""
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        found = [line for line in text.splitlines() if line.startswith(name)]
        return int(found[0].split()[1]) * 1024 if found else 0

    def forget(self) -> None:
        """Begin to measure peak and stalls."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        with self._longest.open("r+b") as file:
            file.write(bytes(_LONGEST.size))

    def stalls(self) -> tuple[float, float]:
        return _LONGEST.unpack(self._longest.read_bytes())

    def took(self, since: float, until: float) -> list[float]:
        """Return what each append that ended then took, in milliseconds."""
        took = [ms for moment, ms in self.latencies if since <= moment <= until]
        return took if len(took) > 1 else [(until - since) * 1000] * 2


async def _look(watched: Watched, minutes_bytes: list[int]) -> None:
    began = time.monotonic()
    while True:
        if time.monotonic() - began >= 60 * len(minutes_bytes):
            minutes_bytes.append(0)
        minutes_bytes[-1] = max(minutes_bytes[-1], watched.memory("VmRSS"))
        await asyncio.sleep(1)


async def measure(
    name: str,
    seconds: float,
    scale: float = 1.0,
    *,
    has_control: bool = False,
    quiet_s: float = QUIET_S,
) -> Outcome:
    """Run one attack, before it nothing for a while, and the control if that is asked for."""
    attack = ATTACKS[name]
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as place:
        is_guarded = attack.by == "stranger"
        watched = Watched(Path(place), is_guarded=is_guarded, is_tls=attack.is_tls)
        async with watched.running(), watched.writing():
            target = await _prepared(watched, scale)
            before = watched.memory("VmRSS")
            quiet = time.monotonic()
            await asyncio.sleep(quiet_s)
            quiet_ms = watched.took(quiet, time.monotonic())
            control_ms: list[float] = []
            if has_control:
                control_ms = await _control(watched, attack, min(seconds, CONTROL_S), scale)
            watched.forget()
            minutes_bytes: list[int] = []
            looking = asyncio.create_task(_look(watched, minutes_bytes))
            began, ended = await _attack(attack, target, seconds)
            await cancel_and_wait([looking])
            own, wall = watched.stalls()
            if os.environ.get("LIMITS_LOG"):
                print((Path(place) / "bookie.log").read_text(), file=sys.stderr)
            return Outcome(
                name, attack.by, target.sent_bytes, before, watched.memory("VmHWM"), own, wall,
                quiet_ms, control_ms, watched.took(began, ended),
                watched.process.poll() is not None, minutes_bytes,
            )  # fmt: skip


async def _prepared(watched: Watched, scale: float) -> Target:
    target = Target(watched.port, watched.http_port, scale)
    if not watched.is_guarded:
        await prepare(target)
    return target


async def _attack(attack: Attack, target: Target, seconds: float) -> tuple[float, float]:
    """Attack for so long, and return when that began and ended; an attack that fails raises."""
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        target.stack = stack
        running = asyncio.create_task(attack.run(target))
        done, _ = await asyncio.wait([running], timeout=seconds)
        if done:
            running.result()
            await asyncio.sleep(max(0, seconds - (time.monotonic() - began)))
        ended = time.monotonic()
        running.cancel()
        await asyncio.wait([running])
    return began, ended


async def _control(watched: Watched, attack: Attack, seconds: float, scale: float) -> list[float]:
    """Attack another bookie, and return what the writer of the watched one notices of it."""
    with tempfile.TemporaryDirectory() as place:
        decoy = Watched(Path(place), is_guarded=watched.is_guarded, is_tls=watched.is_tls)
        async with decoy.running():
            began, ended = await _attack(attack, await _prepared(decoy, scale), seconds)
    await asyncio.sleep(1)
    return watched.took(began, ended)
