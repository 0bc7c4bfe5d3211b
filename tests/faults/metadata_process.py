"""A process that works on a metadata file, to be killed and paused; one line out for each fact.

write URI         one transaction after the other that belongs together; each number when done
init URI          makes a cluster; its instance id when done
hold URI TIMEOUT  an ephemeral node; then for each line in, one write and what came of it
count URI TIMES   increments by compare-and-set; the number of increments when done
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from quorumbook.errors import MetadataError, MetadataVersionConflict
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.store import Create, Delete, Set
from quorumbook.metadata.uri import open_store


def say(text: object) -> None:
    os.write(1, f"{text}\n".encode())


async def write(uri: str) -> None:
    store = await open_store(uri)
    number = int((await store.get("/left")).data)
    while True:
        number += 1
        text = b"%d" % number
        await store.multi(
            [
                Set("/left", text),
                Create(f"/log/{number:09d}", text * 100),
                Delete(f"/log/{number - 20:09d}"),
                Set("/right", text),
            ]
        )
        say(number)


async def init(uri: str) -> None:
    store = await open_store(uri, create=True)
    say(await init_cluster(store))
    await store.close()


async def hold(uri: str, timeout_s: str) -> None:
    store = await open_store(uri, session_timeout_s=float(timeout_s))
    store.on_session_expired(lambda: say("expired"))
    await store.create("/held", b"", ephemeral=True)
    say(store.session_id)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            if line.strip() == "renew":
                say(await store.renew_session())
            else:
                await store.create(line.strip(), ephemeral=True)
                say("created")
        except MetadataError as error:
            say(type(error).__name__)
    await store.close()


async def count(uri: str, times: str) -> None:
    store = await open_store(uri)
    done = 0
    while done < int(times):
        node = await store.get("/counter")
        with contextlib.suppress(MetadataVersionConflict):
            await store.set("/counter", b"%d" % (int(node.data) + 1), node.version)
            done += 1
    await store.close()
    say(done)


if __name__ == "__main__":
    work = {"write": write, "init": init, "hold": hold, "count": count}[sys.argv[1]]
    asyncio.run(work(*sys.argv[2:]))
