"""A bookie that costs next to nothing: it answers reads of one ledger with frames made beforehand.

How fast the peer's client reads from three of it is as fast as that client can read on this
machine.  It knows v2 reads only.

    canned.py PORT LEDGER_ID ENTRY_COUNT PAYLOAD_SIZE_BYTES
"""

from __future__ import annotations

import asyncio
import sys
from struct import Struct

import uvloop

from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.digest import DigestType, digester

_HEAD = Struct(">iiqq")


class Canned(asyncio.Protocol):
    """One connection."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        position = 0
        answers = []
        while len(data) - position >= _HEAD.size:
            size, _, _, entry_id = _HEAD.unpack_from(data, position)
            if len(data) - position < 4 + size:
                break
            answers.append(self.frames[entry_id])
            position += 4 + size
        self.rest = data[position:]
        self.transport.write(b"".join(answers))


async def main(port: int, ledger_id: int, count: int, size: int) -> None:
    seal = digester(DigestType.CRC32C, b"").seal
    frames = [
        v2.encode_read_answer(ledger_id, i, 0, seal(ledger_id, i, i - 1, (i + 1) * size, bytes(size)))
        for i in range(count)
    ]
    server = await asyncio.get_running_loop().create_server(
        lambda: Canned(frames), "127.0.0.1", port
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
