"""A bookie and an admin server to attack, and a connection of the attacker's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from quorumbook.protocol.v3 import client as v3
from security.fuzz.run import Subject
from security.fuzz.strangers import what_is_wrong

WATCHED = str(Path(__file__).parent.parent / "limits" / "watched.py")
_LONGEST = struct.Struct("dd")


Attack: TypeAlias = Callable[["Prey", random.Random], Awaitable[None]]


class Prey(Subject):
    """A bookie and an admin server with stopwatches, and what was noticed of them."""

    def __init__(self, directory: Path, mode: str) -> None:
        super().__init__(directory, mode)
        self._longest = {name: directory / f"longest-{name}" for name in ("bookie", "admin")}
        for file in self._longest.values():
            file.write_bytes(bytes(_LONGEST.size))
        self.command = [sys.executable, WATCHED, str(self._longest["bookie"])]
        self.http_port = self.admin_port = 0
        self._words += ["--set", "http.enabled=true", "--set", "http.port=0"]
        self.connections = 0
        self.wrong: list[str] = []

    async def start(self) -> None:
        await super().start()
        self.http_port = int(str(self.greeting["http"]).strip("/").rpartition(":")[2])

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[None]:
        """Serve its cluster over HTTP."""
        words = [WATCHED, str(self._longest["admin"]), "admin", "run", "--port", "0", "-o", "jsonl"]
        words += ["--metadata", self.uri, "--stop-with-parent"]
        if self.is_gated:
            words += ["--set", f"admin.certificate_file={self.own.certificate_file}"]
            words += ["--set", f"admin.key_file={self.own.key_file}"]
        with (self.directory / "admin.log").open("wb") as log:
            self.served = await asyncio.create_subprocess_exec(
                sys.executable, *words,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            assert self.served.stdout is not None
            line = json.loads(await self.served.stdout.readline())
            self.admin_port = int(str(line["url"]).rpartition(":")[2])
            if not self.is_gated:
                async with self.connected(self.admin_port) as wire:
                    await wire.send(b"POST /api/v2/streams HTTP/1.1\r\nHost: localhost\r\n"
                                    b"Connection: close\r\n"
                                    b'Content-Length: 15\r\n\r\n{"name":"kept"}')  # fmt: skip
                    came = await wire.taken(5)
                    assert b"HTTP/1.1 20" in came, came
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                self.served.kill()
            await self.served.wait()

    def stall_ms(self, name: str) -> float:
        """The longest time of the loop's thread between two looks at the clock."""
        return _LONGEST.unpack(self._longest[name].read_bytes())[0] * 1000

    def forget(self) -> None:
        """Begin to look for stalls."""
        for file in self._longest.values():
            with file.open("r+b") as opened:
                opened.write(bytes(_LONGEST.size))

    # What attacks are made of

    @contextlib.asynccontextmanager
    async def connected(self, port: int = 0) -> AsyncIterator[Wire]:
        """Connect for a block; whatever the other side does then is no error."""
        self.connections += 1
        with contextlib.suppress(OSError, TimeoutError, EOFError, ssl.SSLError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port)
            try:
                yield Wire(self, reader, writer)
            finally:
                writer.transport.abort()

    def context(self) -> ssl.SSLContext:
        """Trust it if it has a certificate; no names are checked by who attacks."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        context.check_hostname = False
        return context

    def judge(self, attack: str, came: bytes) -> None:
        """Look at the frames a bookie sent to one who has proven nothing."""
        while len(came) >= 4:
            length = int.from_bytes(came[:4], "big")
            if came[:2] in (b"\x16\x03", b"\x15\x03") or len(came) < 4 + length:
                return
            wrong = what_is_wrong(came[: 4 + length], is_stranger_at_gate=self.is_gated)
            if wrong:
                self.wrong.append(f"{attack}: {wrong}")
                return
            came = came[4 + length :]


@dataclass
class Wire:
    """One connection of the adversary."""

    prey: Prey
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(5):
            await self.writer.drain()

    async def taken(self, patience_s: float = 0.2) -> bytes:
        """Return what comes until nothing does for a moment."""
        parts = []
        with contextlib.suppress(TimeoutError, OSError):
            while True:
                async with asyncio.timeout(patience_s):
                    part = await self.reader.read(1 << 18)
                if not part:
                    break
                parts.append(part)
        return b"".join(parts)

    async def tls(self, *, asks: bool = True) -> None:
        if asks:
            await self.ask(v3.encode_start_tls(1))
        await self.writer.start_tls(self.prey.context(), server_hostname="127.0.0.1")

    async def ask(self, request: bytes) -> v3.V3Response:
        await self.send(request)
        async with asyncio.timeout(5):
            head = await self.reader.readexactly(4)
            body = await self.reader.readexactly(int.from_bytes(head, "big"))
        return v3.ResponseDecoder().feed(head + body)[0]

    def reset(self) -> None:
        """End it so that the other side reads an error instead of an end."""
        one = self.writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
