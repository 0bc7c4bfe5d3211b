"""A client that sends a bookie just what a test gives it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Self

from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

#: Longer than anything here takes.
PATIENCE_S = 60


class RawClient:
    """Frames by hand, over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connect to a port on loopback."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 << 20))

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def frame(self) -> bytes:
        """Receive a frame, its length included."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(int.from_bytes(head, "big"))

    async def ask(self, data: bytes) -> bytes:
        """Send a request and receive a frame."""
        self.send(data)
        return await self.frame()

    async def ask_v3(self, data: bytes) -> v3.V3Response:
        """Send a v3 request and receive its answer."""
        return v3.ResponseDecoder().feed(await self.ask(data))[0]

    async def v3_answer(self) -> v3.V3Response:
        """Receive a v3 answer."""
        return v3.ResponseDecoder().feed(await self.frame())[0]

    async def add_codes(self, count: int) -> list[tuple[int, int]]:
        """Receive v2 add answers; return (entry id, code) in the order they came."""
        found = []
        for _ in range(count):
            frame = await self.frame()
            _, _, code, _, entry_id = v2.ANSWER.unpack_from(frame)
            found.append((entry_id, code))
        return found

    async def is_closed(self) -> bool:
        """Wait for the end of the stream."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await self.reader.read(65536):
                    pass
        except (ConnectionError, ssl.SSLError):
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close."""
        self.writer.close()
