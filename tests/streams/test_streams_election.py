"""Elections of applications, which only avoid fights: the safety is the fence's."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.client.context import client_store
from quorumbook.errors import LocalProtocolError
from quorumbook.streams import Namespace
from quorumbook.streams.errors import WriterFencedError
from quorumbook.testing import LocalCluster


async def test_two_that_believe_to_lead_are_told_apart_by_the_fence(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with ns.election("indexer", "first") as first:
        await first.wait_to_lead()
        old = await ns.stream("s").writer()
        await old.append(b"1")
        async with other.election("indexer", "second") as second:
            async with asyncio.timeout(60):
                while not second.has_vote:
                    await asyncio.sleep(0.01)
            # As a pause beyond the session does: the other leads, and this one has not heard.
            await client_store(ns.client).delete(first._vote or "")
            await second.wait_to_lead()
            async with other.stream("s").writer(takeover="force") as writer:
                await writer.append(b"2")
                with pytest.raises(WriterFencedError):
                    await old.append(b"lost")
            await old.abort()
            assert await ns.election("indexer").leader() == "second"
    async with ns.stream("s").reader(tail=False) as reader:
        assert [record.payload async for record in reader] == [b"1", b"2"]


async def test_a_client_has_elections_of_its_cluster(
    cluster: LocalCluster, ns: Namespace, other: Namespace
) -> None:
    async with ns.client.election("compactor", "a") as first:
        await first.wait_to_lead()
        assert await other.client.election("compactor").leader() == "a"
        assert await other.election("compactor").leader() is None  # that is the namespace's
    assert [name async for name in ns.streams()] == []
    address = f"{cluster.metadata_uri}#{ns.path}"
    async with Namespace.open(address, read_only=True) as reading:
        with pytest.raises(LocalProtocolError, match="read-only"):
            reading.election("compactor")
