"""A stream writer of ours that dies between its steps, and DistributedLog's own library after it.

It dies at every ninth step, or, with `KILLS=all`, at each; `test_streams_kills.py` does so always.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from doubles.mortal import died
from interop.clusters import Cluster
from interop.stream_sides import fresh_name
from interop.test_interop_stream_matrix import namespace, side
from quorumbook.streams import Namespace, Stream, StreamPolicy
from streams.soundness import assert_sound

__all__ = ["namespace", "side"]

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

STRIDE = 1 if os.environ.get("KILLS") == "all" else 9
PAYLOADS = [b"%d" % number for number in range(8)]


async def write(acknowledged: dict[int, bytes], stream: Stream) -> None:
    """Take a stream over, write and roll; what is acknowledged goes by its sequence id."""
    async with stream.writer(batch_bytes=1) as writer:
        for first in range(0, len(PAYLOADS), 4):
            part = PAYLOADS[first : first + 4]
            futures = [writer.append_nowait(payload) for payload in part]
            for future, payload in zip(futures, part, strict=True):
                acknowledged[(await future).sequence_id] = payload
            await writer.roll()


async def test_java_goes_on_after_a_writer_of_ours_that_died_between_two_steps(
    side: Callable[..., Awaitable[object]],
    namespace: Namespace,
    cluster_of: Callable[[str], Awaitable[Cluster]],
) -> None:
    java, own = await side("java", lockTimeoutSeconds="60"), await side("own")
    cluster = await cluster_of("mixed")
    mortal_address = f"{cluster.uri}#{namespace.path}"
    for dies_before in itertools.count(1, STRIDE):
        name = fresh_name()
        await namespace.create_stream(name, policy=StreamPolicy(roll_entries=3))
        await java.open(name)
        await java.write(name, [b"java"], 1)
        await java.close(name)
        acknowledged: dict[int, bytes] = {}
        live = partial(write, acknowledged)
        async with died(mortal_address, name, live, dies_before) as mortal:
            pass
        # Its session is over: the lock is free, and Java completes what it left.
        await java.open(name)
        await java.write(name, [b"java again"], 100)
        await java.close(name)
        stream = namespace.stream(name)
        count = sum(segment.metadata.record_count for segment in await stream.segments())
        seen = await own.read(name, count)
        assert await java.read(name, count) == seen
        stored = [record.payload for record in seen]
        assert stored == [b"java", *PAYLOADS[: count - 2], b"java again"]
        assert {n: stored[n] for n in acknowledged} == acknowledged
        await assert_sound(stream)
        if not mortal.died.is_set():
            break
    assert dies_before > 20
