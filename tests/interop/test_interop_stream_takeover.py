"""The lock of a stream between DistributedLog's own library and ours, when either waits or dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from interop.clusters import Cluster
from interop.peer_driver import PeerError
from interop.stream_sides import JavaStreams, OwnStreams, Seen, fresh_name
from interop.test_interop_stream_matrix import (
    PAYLOADS,
    SIDES,
    address,
    behind,
    namespace,
    side,
    write,
)
from quorumbook.streams import Namespace, Position
from quorumbook.streams.stream_context import stream_context

__all__ = ["namespace", "side"]

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

DOOMED = Path(__file__).with_name("doomed_stream_writer.py")
#: Records that the doomed writer of ours is known to have stored.
SAFE = 20


class Patient(OwnStreams):
    """Ours, as one that waits until the lock is free."""

    async def open(self, name: str) -> None:
        self.writers[name] = await self.namespace.stream(name).writer(wait_for_lock_s=90)


async def lock_members(namespace: Namespace, name: str) -> list[str]:
    nodes = stream_context(namespace.stream(name)).nodes
    return await nodes.store.children(nodes.paths.lock)


async def opening(waiting: JavaStreams | Patient, namespace: Namespace, name: str) -> asyncio.Task:
    """Begin to open a stream that somebody else writes; return when it waits in the queue."""
    task = asyncio.ensure_future(waiting.open(name))
    async with asyncio.timeout(60):
        while len(await lock_members(namespace, name)) < 2 and not task.done():
            await asyncio.sleep(0.02)
    assert not task.done()
    return task


def kinds(waiting: str) -> tuple[str, str]:
    """Return who has the lock, and who waits for it."""
    return ("own" if waiting == "java" else "java"), waiting


async def waiter(side, namespace: Namespace, kind: str) -> JavaStreams | Patient:
    if kind == "own":
        return Patient(namespace)
    return await side("java", lockTimeoutSeconds="90")


@pytest.mark.parametrize("kind", SIDES, ids="{}-waits".format)
async def test_who_waits_for_the_lock_gets_it_when_the_other_closes(side, namespace, kind):
    name = fresh_name()
    await namespace.create_stream(name)
    having = await side(kinds(kind)[0])
    waiting = await waiter(side, namespace, kind)
    await having.open(name)
    task = await opening(waiting, namespace, name)
    records = await write(having, name, "none", 10)
    assert not task.done()
    await having.close(name)
    await task
    if kind == "java":
        # It read the versions of the stream's nodes before it queued up, and is refused, as it is
        # behind another of its own kind.
        with pytest.raises(PeerError) as refused:
            await write(waiting, name, "none", 30)
        assert refused.value.kind == "BadVersionException"
        await waiting.call("abort_writer", name)
        await waiting.open(name)
    records += behind(await write(waiting, name, "none", 30), len(PAYLOADS))
    await waiting.close(name)
    for each in await side("java"), await side("own"):
        assert await each.read(name, len(records)) == records


async def test_ours_takes_over_when_the_session_of_a_java_writer_that_was_killed_is_over(
    side, namespace
):
    name = fresh_name()
    await namespace.create_stream(name)
    doomed = await side("java", is_mortal=True, zkSessionTimeoutSeconds="1")
    waiting = Patient(namespace)
    await doomed.open(name)
    records = await write(doomed, name, "none", 10)
    task = await opening(waiting, namespace, name)
    await doomed.crash(name)
    await task
    records += behind(await write(waiting, name, "none", 30), len(PAYLOADS))
    await waiting.close(name)
    for each in await side("java"), await side("own"):
        assert await each.read(name, len(records)) == records


async def test_java_takes_over_when_the_session_of_a_writer_of_ours_that_was_killed_is_over(
    side, namespace, cluster_of
):
    name = fresh_name()
    await namespace.create_stream(name)
    cluster: Cluster = await cluster_of("mixed")
    process = subprocess.Popen(
        [sys.executable, str(DOOMED), address(cluster), name, "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [await asyncio.to_thread(process.stdout.readline) for _ in range(SAFE)]
        waiting = await waiter(side, namespace, "java")
        task = await opening(waiting, namespace, name)
    finally:
        process.kill()
    # What it was told before it died is safe too.
    lines += await asyncio.to_thread(process.stdout.readlines)
    process.wait()
    await task
    records = [_seen(line, number) for number, line in enumerate(lines) if line.endswith("\n")]
    stored = (await namespace.stream(name).segments())[0].metadata.record_count
    assert len(records) <= stored <= len(records) + 1  # one was on its way
    more = await write(waiting, name, "none", 10 * stored)
    await waiting.close(name)
    for each in await side("java"), await side("own"):
        found = await each.read(name, stored + len(more))
        assert found[: len(records)] == records
        assert found[stored:] == behind(more, stored)


def _seen(line: str, number: int) -> Seen:
    segment, entry, slot, sequence_id = map(int, line.split())
    return Seen(Position(segment, entry, slot), sequence_id, number, b"%d" % number)
