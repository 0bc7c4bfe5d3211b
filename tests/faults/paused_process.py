"""A client in a process of its own, to be paused; one line out for each fact.

append URI          writes and reads an entry, impatiently, when it is told to; the number of
                    fragments and what was read, or what went wrong
session URI         keeps a metadata session; for each line in, a read, and over which connection

The first argument is the loop, ``asyncio`` or ``uvloop``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import uvloop

from quorumbook.client.client import BookKeeper
from quorumbook.client.options import ClientOptions
from quorumbook.client.reading.entries import Entry
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper.store import ZooKeeperStore

#: Shorter than a pause.
LIMIT_S = 0.5
SESSION_S = 4.0


def say(text: object) -> None:
    os.write(1, f"{text}\n".encode())


async def append(uri: str) -> None:
    options = ClientOptions(
        add_timeout_s=LIMIT_S, read_timeout_s=LIMIT_S, speculative_read_s=0, session_timeout_s=60
    )
    async with BookKeeper(uri, options=options) as bk:
        ledger = await bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        await ledger.append(b"first")
        reader = await bk.open_ledger(ledger.id, recover=False)
        say("ready")
        sys.stdin.readline()
        added = ledger.append_nowait(b"second")
        reading = asyncio.ensure_future(read_all(reader.read_unconfirmed(1, 1)))
        try:
            await added
            say(f"{len(ledger.metadata.fragments)} {await reading}")
        except QuorumbookError as error:
            say(f"{type(error).__name__}: {error}")
        await ledger.abort()


async def read_all(entries: AsyncIterator[Entry]) -> list[bytes]:
    return [entry.payload async for entry in entries]


async def session(uri: str) -> None:
    store = await open_store(uri, session_timeout_s=SESSION_S)
    assert isinstance(store, ZooKeeperStore)
    store.on_session_expired(lambda: say("expired"))
    connections: list[object] = []
    while await asyncio.to_thread(sys.stdin.readline):
        await store.children("/")
        connection = store._session._connection  # the connection that a pause hits
        if connection not in connections:
            connections.append(connection)
        say(f"{store.session_id} {connections.index(connection)}")
    await store.close()


if __name__ == "__main__":
    kind, work, *words = sys.argv[1:]
    runner = uvloop.run if kind == "uvloop" else asyncio.run
    runner({"append": append, "session": session}[work](*words))
