"""What a request leaves behind is freed at once.

A bookie's collector of garbage looks at everything very seldom, so a circle of references made by
each request of some kind would fill the memory long before (80 MB a minute by long polls once).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
from bookie_harness import DIGESTER, KEY, WRONG_KEY, cluster, real_bookie, v2_adds

from doubles.raw_client import RawClient
from doubles.waiting import until
from quorumbook.bookie.server import Bookie
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

COUNT = 200
NEVER_MS = 3_600_000


def long_poll(number: int, *, timeout_ms: int) -> bytes:
    return v3.encode_read(number, 1, previous_lac=1 << 40, timeout_ms=timeout_ms)


def lac_packet(number: int) -> bytes:
    return v3.encode_write_lac(number, 1, number, KEY, DIGESTER.lac_packet(1, number))


KINDS = {
    "v2 adds": lambda n: v2_adds(1, [100 + n]),
    "v2 adds with a wrong key": lambda n: v2_adds(1, [100 + n], key=WRONG_KEY),
    "adds of new ledgers": lambda n: v2_adds(1000 + n, [0]),
    "v2 reads": lambda n: v2.encode_read(1, n % 10),
    "v2 reads of what is not there": lambda n: v2.encode_read(77, n),
    "v2 batch reads": lambda n: v2.encode_batch_read(1, 0, n, 5, 0),
    "v2 fences": lambda n: v2.encode_read(5000 + n, 0, master_key=KEY),
    "v3 reads": lambda n: v3.encode_read(n, 1, n % 10),
    "polls that end by time": lambda n: long_poll(n, timeout_ms=1),
    "READ_LAC": lambda n: v3.encode_read_lac(n, 1),
    "WRITE_LAC": lac_packet,
    "lists of entries": lambda n: v3.encode_list_entries(n, 1),
    "FORCE": lambda n: v3.encode_force(n, 1),
    "bookie info": v3.encode_bookie_info,
    "AUTH without a plug-in": lambda n: v3.encode_auth(n, "unknown", b"x"),
}


@pytest.fixture
def left() -> Iterator[Counter[str]]:
    """Return an empty count, which ``leave`` fills; the collector is off.

    What thousands of other tests have left is not gone through, which takes half a minute.
    """
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield Counter()
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()


def leave(left: Counter[str]) -> None:
    """Count what of ours only the collector would free."""
    gc.collect()
    for one in gc.garbage:
        kind = type(one)
        if isinstance(one, FunctionType):
            if one.__module__.startswith("quorumbook."):
                left[one.__qualname__] += 1
        elif kind.__module__.startswith("quorumbook."):
            left[kind.__qualname__] += 1


async def filled(bookie: Bookie) -> RawClient:
    client = await RawClient.connect(bookie.address[1])
    client.send(v2_adds(1, list(range(10))))
    await client.add_codes(10)
    return client


async def answered(client: RawClient, count: int) -> None:
    for _ in range(count):
        await client.frame()


@pytest.mark.parametrize("kind", KINDS)
async def test_requests_leave_nothing_to_the_collector(
    kind: str, tmp_path: Path, left: Counter[str]
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        (await filled(bookie)).close()
        client = await RawClient.connect(bookie.address[1])
        client.send(b"".join(map(KINDS[kind], range(COUNT))))
        await answered(client, COUNT)
        leave(left)
        client.close()
    assert [one for one in left.items() if one[1] >= COUNT // 4] == []


@pytest.mark.parametrize("request_of", ["nothing", "long polls", "half a frame", "reads"])
async def test_connections_that_break_leave_nothing_to_the_collector(
    request_of: str, tmp_path: Path, left: Counter[str]
) -> None:
    data = {
        "nothing": b"",
        "long polls": b"".join(long_poll(n, timeout_ms=NEVER_MS) for n in range(10)),
        "half a frame": v2_adds(1, [100])[:-1],
        "reads": b"".join(v2.encode_read(1, n) for n in range(10)),
    }[request_of]
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        (await filled(bookie)).close()
        connections = bookie.connections
        for _ in range(COUNT // 4):
            client = await RawClient.connect(bookie.address[1])
            client.send(data)
            await until(lambda: len(connections) > 0)
            client.close()
            await until(lambda: not len(connections))
        leave(left)
    assert [one for one in left.items() if one[1] >= COUNT // 8] == []
