"""A writer of ours that appends until it is killed: prints its ledger's id, then what is safe."""

from __future__ import annotations

import asyncio
import sys

import quorumbook
from interop.peer_driver import payload
from interop.sides import PASSWORD

_GROUP = 50


async def write(uri: str) -> None:
    async with quorumbook.connect(uri) as bk:
        writer = await bk.create_ledger(password=PASSWORD.encode())
        print(writer.id, flush=True)
        count = 0
        while True:
            group = [payload("killed", count + i, 100) for i in range(_GROUP)]
            count += _GROUP
            await writer.append_batch_nowait(group)
            print(writer.last_add_confirmed, flush=True)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
