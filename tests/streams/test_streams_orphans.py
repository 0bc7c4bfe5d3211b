"""Ledgers that nothing refers to are found, and deleted only when nobody can refer to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from doubles.inside import segment_nodes_of
from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions
from quorumbook.autorecovery.process import AutoRecovery
from quorumbook.streams import Namespace, Orphan, OrphanState, Stream, StreamPolicy
from quorumbook.streams.errors import PolicyConflictError, WriterFencedError
from quorumbook.streams.stream_context import namespace_store, stream_context


async def ledgers(ns: Namespace) -> set[int]:
    return {metadata.ledger_id async for metadata in ns.client.list_ledgers()}


async def left_behind(ns: Namespace, stream: str, **more: bytes) -> int:
    """Leave a ledger as a writer does that dies before it names it."""
    own = {
        "application": b"quorumbook", "component": b"stream", "stream": stream.encode(),
        "namespace": ns.path.encode(),
        "namespace_id": await stream_context(ns.stream("s")).namespace_id(), "segment": b"7",
    }  # fmt: skip
    async with ns.client.create_ledger(custom_metadata=own | more) as ledger:
        await ledger.append(b"x")
    return ledger.id


async def written(ns: Namespace, name: str = "s") -> Stream:
    await ns.create_stream(name)
    async with ns.stream(name).writer() as writer:
        await writer.append(b"kept")
    return ns.stream(name)


async def test_what_nothing_refers_to_is_marked_first_and_deleted_then(
    ns: Namespace, other: Namespace
) -> None:
    await written(ns)
    async with other.stream("s").writer() as writer:
        await writer.append(b"in progress")
        await ns.create_stream("old")
        await ns.rename_stream("old", "nested/new")
        async with ns.stream("nested/new").writer() as renamed:
            await renamed.append(b"y")
        kept = await ledgers(ns)
        orphan, gone = await left_behind(ns, "s"), await left_behind(ns, "never/made")
        foreign = await left_behind(ns, "s", namespace_id=b"another")
        drafted = await left_behind(ns, "s", transaction=b"t")
        found = [(each.ledger_id, each.state) for each in await ns.orphans()]
        assert found == [(orphan, OrphanState.FOUND), (gone, OrphanState.FOUND)]
        assert {each.state for each in await ns.orphans(delete=True)} == {OrphanState.MARKED}
        # Marked, but not for long enough.
        assert {each.state for each in await ns.orphans(delete=True)} == {OrphanState.MARKED}
        # A writer is there that could have made the one, and of the other there is no stream.
        states = {e.ledger_id: e.state for e in await ns.orphans(delete=True, grace_s=0)}
        assert states == {orphan: OrphanState.MARKED, gone: OrphanState.DELETED}
    assert await ns.orphans(delete=True, grace_s=0) == [Orphan(orphan, "s", 1, OrphanState.DELETED)]
    assert await ledgers(ns) == kept | {foreign, drafted}
    assert await ns.orphans() == []
    assert await namespace_store(ns).children(f"{ns.path}/.orphans") == []


def held(writer: Any) -> tuple[asyncio.Event, asyncio.Event]:
    """Have a writer stop between making a ledger and naming it."""
    nodes, reached, go = segment_nodes_of(writer), asyncio.Event(), asyncio.Event()
    set_allocation: Callable[..., Any] = nodes.set_allocation

    async def slow(*args: Any) -> int:
        reached.set()
        await go.wait()
        version: int = await set_allocation(*args)
        return version

    nodes.set_allocation = slow
    return reached, go


async def test_a_writer_that_is_slow_to_name_its_ledger_keeps_it(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        reached, go = held(writer)
        future = writer.append_nowait(b"x")
        await reached.wait()
        for _ in range(3):
            (found,) = await other.orphans(delete=True, grace_s=0)
            assert found.state is OrphanState.MARKED
        go.set()
        await future
        assert await other.orphans(delete=True, grace_s=0) == []


async def test_a_writer_without_a_lock_cannot_name_what_was_deleted(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    writer = await ns.stream("s").writer()
    reached, go = held(writer)
    future = writer.append_nowait(b"x")
    await reached.wait()
    await writer._tenure._lock.release()  # as if its session were over, and it does not know yet
    states = [(await other.orphans(delete=True, grace_s=0))[0].state for _ in range(2)]
    assert states == [OrphanState.MARKED, OrphanState.DELETED]
    go.set()
    with pytest.raises(WriterFencedError):
        await future
    await writer.abort()
    assert await ledgers(ns) == set()


async def test_t2_the_auditor_lets_go_of_what_nobody_writes(ns: Namespace) -> None:
    stream = await written(ns)
    for payload in b"b", b"c":
        async with stream.writer(retention_interval_s=0) as writer:
            await writer.append(payload)
    await ns.set_policy(StreamPolicy(retain_records=1))
    options = AuditorOptions(
        stream_retention_interval_s=0.02, stream_namespaces=("/nowhere", ns.path)
    )
    recovery = AutoRecovery(ns.client, RecoveryOptions(name="test", auditor=options))
    recovery.start()
    try:
        async with asyncio.timeout(60):
            while len(await stream.segments()) > 1:
                await asyncio.sleep(0.02)
    finally:
        await recovery.stop()
    assert [segment.metadata.number for segment in await stream.segments()] == [3]
    assert len(await ledgers(ns)) == 1


async def test_a_policy_is_changed_as_it_was_read(ns: Namespace) -> None:
    stream = await written(ns)
    before = await ns.policy()
    await ns.set_policy(StreamPolicy(roll_bytes=7), expected=before)
    with pytest.raises(PolicyConflictError):
        await ns.set_policy(StreamPolicy(roll_bytes=8), expected=before)
    await stream.set_policy(StreamPolicy(compression="lz4"), expected=StreamPolicy())
    with pytest.raises(PolicyConflictError):
        await stream.set_policy(StreamPolicy(), expected=StreamPolicy())
    policy = (await stream.info()).policy
    assert (policy.roll_bytes, policy.compression) == (7, "lz4")
