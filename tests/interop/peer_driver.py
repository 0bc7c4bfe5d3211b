"""A Java process that does what tests tell it, by JSON lines: see ``peer/PeerDriver.java``."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from interop.peer_java import Java

#: Small, quick to start, never beyond what a machine with many tests can spare.
LEAN = (
    "-Xmx256m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
)  # fmt: skip
PATIENCE_S = 100.0

#: An entry as a reader saw it: id, size, SHA-256.
Seen = tuple[int, int, str]


def payload(seed: str, index: int, size: int) -> bytes:
    """Return the bytes both sides agree on: the SHA-256 of ``seed:index``, over and over."""
    block = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def seen(entry_id: int, data: bytes) -> Seen:
    """Return what is compared of an entry."""
    return entry_id, len(data), hashlib.sha256(data).hexdigest()


def expected(seed: str, sizes: list[int], first: int = 0) -> list[Seen]:
    """Return what a reader must see of entries of these sizes."""
    return [seen(first + i, payload(seed, first + i, size)) for i, size in enumerate(sizes)]


class PeerError(Exception):
    """The peer's answer to a request that failed; ``code`` is its own or None."""

    def __init__(self, code: int | None, kind: str, message: str) -> None:
        super().__init__(f"{kind} ({code}): {message}")
        self.code = code
        self.kind = kind


class Peer:
    """The process; requests may be under way at the same time, from any event loop."""

    def __init__(
        self, java: Java, directory: Path, *, log: str = "error", options: Sequence[str] = ()
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "peer.log"
        # One that is killed leaves the libraries that it unpacked.
        unpacked = f"-Djava.io.tmpdir={directory}"
        with self.log.open("wb") as file:
            self._process = subprocess.Popen(
                java.command("PeerDriver", options=(*LEAN, unpacked, *options), log=log),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="peer", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, op: str, **arguments: Any) -> Future[dict[str, Any]]:
        """Send a request; the future has the answer or raises ``PeerError``."""
        future: Future[dict[str, Any]] = Future()
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                self._process.stdin.write(json.dumps({"id": number, "op": op, **arguments}) + "\n")
                self._process.stdin.flush()
            except OSError:
                self._waiting.pop(number, None)
                future.set_exception(self._gone())
        return future

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and block until it is answered."""
        return self.send(op, **arguments).result(PATIENCE_S)

    async def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait until it is answered."""
        answer = asyncio.wrap_future(self.send(op, **arguments))
        return await asyncio.wait_for(answer, PATIENCE_S)

    def kill(self) -> None:
        """End the process as a crash would."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()

    def _gone(self) -> PeerError:
        return PeerError(None, "Gone", f"the Java process ended; its log ends: {self._tail()}")

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if "ok" in answer:
                future.set_result(answer["ok"])
            else:
                error = answer["error"]
                future.set_exception(PeerError(error["code"], error["type"], error["message"]))
        with self._lock:
            for future in self._waiting.values():
                future.set_exception(self._gone())
            self._waiting.clear()
