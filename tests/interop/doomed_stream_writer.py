"""A stream writer of ours that appends until it is killed: prints which records are safe."""

from __future__ import annotations

import asyncio
import itertools
import sys

from quorumbook.streams import Namespace


async def write(address: str, name: str, session_timeout_s: float) -> None:
    async with Namespace.open(
        address, client_id="doomed", session_timeout_s=session_timeout_s
    ) as ns:
        writer = await ns.stream(name).writer()
        for number in itertools.count():
            found = await writer.append(b"%d" % number, txid=number)
            print(*found.position, found.sequence_id, flush=True)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], float(sys.argv[3])))
