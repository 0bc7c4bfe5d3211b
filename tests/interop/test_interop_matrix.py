"""Who writes, whose bookies, who reads: every combination sees the same ledger."""

from __future__ import annotations

import pytest
from peer_driver import expected
from sides import Shape

from quorumbook.protocol.digest import DigestType

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

#: Around what the two sides' buffers and digests are cut into.
SIZES = [0, 1, 31, 32, 33, 1000, 65_535, 65_536, 300_000]


async def round_trip(connect, cluster, writer, reader, shape):
    w = await connect(writer, cluster.uri)
    r = await connect(reader, cluster.uri)
    ledger = await w.create(shape)
    await ledger.append("closed", SIZES)
    await ledger.append("closed", SIZES)
    await ledger.close()
    other = await r.open(ledger.id, shape)
    assert await other.state() == (2 * len(SIZES) - 1, 2 * sum(SIZES))
    assert await other.read(0, 2 * len(SIZES) - 1) == expected("closed", SIZES * 2)
    known = await r.metadata(ledger.id)
    assert known == await w.metadata(ledger.id)
    assert known.state == "CLOSED"
    await other.close()


@pytest.mark.parametrize("writer", ["java-v2", "java-v3"])
@pytest.mark.parametrize("reader", ["java-v2", "java-v3"])
@pytest.mark.parametrize("bookies", ["own", "mixed"])
@pytest.mark.parametrize("digest", list(DigestType))
async def test_a_closed_ledger_is_read_as_it_was_written(
    connect, cluster_of, writer, bookies, reader, digest
):
    await round_trip(connect, await cluster_of(bookies), writer, reader, Shape(digest=digest))
