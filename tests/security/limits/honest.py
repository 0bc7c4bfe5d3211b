"""``python honest.py URI``: an honest writer at a steady pace; prints each latency as it comes.

A line is the moment (monotonic) and the milliseconds that an append of 1 KB took; "ready" first.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import quorumbook
from quorumbook.env import TlsOptions

PACE_S = 0.01
SOLO = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}


async def main(uri: str, options: dict[str, Any]) -> None:
    if "ca_file" in options:
        options["tls"] = TlsOptions(ca_file=options.pop("ca_file"), require=True)
    async with quorumbook.connect(uri, **options) as client:
        writer = await client.create_ledger(**SOLO)
        await writer.append(bytes(1000))
        print("ready", flush=True)
        while True:
            began = time.monotonic()
            await writer.append(bytes(1000))
            now = time.monotonic()
            print(f"{now:.6f} {(now - began) * 1000:.3f}", flush=True)
            await asyncio.sleep(PACE_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
