"""Clusters in every layout of the metadata, made by either side, and ledger ids beyond 31 bits."""

from __future__ import annotations

import pytest

from interop.peer_driver import expected
from interop.sides import SIDES, Shape
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.uri import open_store

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

ONE = Shape(1, 1, 1)


async def both_write_and_read(connect, cluster) -> list[int]:
    """Let each side write ledgers that the others list and read; return their ids."""
    sides = [await connect(name, cluster.uri) for name in SIDES]
    ids = []
    for round_of in (0, 1):
        for side in sides:
            ledger = await side.create(ONE)
            await ledger.append("layout", [10] * (round_of + 1))
            await ledger.close()
            ids.append(ledger.id)
    for side in sides:
        assert sorted(await side.list()) == ids
        for index, ledger_id in enumerate(ids):
            count = index // len(sides) + 1
            ledger = await side.open(ledger_id, ONE)
            assert await ledger.read(0, count - 1) == expected("layout", [10] * count)
            await ledger.close()
    return ids


@pytest.mark.parametrize("is_made_by_us", [False, True], ids=["by-java", "by-us"])
@pytest.mark.parametrize("layout", ["flat", "hierarchical", "longhierarchical"])
async def test_both_sides_agree_on_where_a_ledgers_metadata_is(
    connect, new_cluster, layout, is_made_by_us
):
    cluster = await new_cluster(layout=layout, is_made_by_us=is_made_by_us)
    await cluster.start(own=1)
    ids = await both_write_and_read(connect, cluster)
    assert len(set(ids)) == len(ids)


async def test_the_peer_finds_the_legacy_layout_in_a_cluster_of_ours(connect, new_cluster):
    cluster = await new_cluster(layout="legacyhierarchical", is_made_by_us=True)
    # Its URIs have no name for this layout; where they name none, it takes the cluster's.
    cluster.uri = cluster.uri.replace("legacyhierarchical", "null")
    await cluster.start(own=1)
    await both_write_and_read(connect, cluster)


async def test_ids_beyond_31_bits_are_given_by_both_sides_without_a_clash(connect, new_cluster):
    cluster = await new_cluster()
    await cluster.start(own=1)
    store = await open_store(cluster.uri)
    # What stands there once the 31 bits are used up.
    await store.create(TreePaths(store.ledgers_root).idgen_long)
    await store.close()
    ids = await both_write_and_read(connect, cluster)
    assert ids == sorted(set(ids))
    assert min(ids) >= 1 << 32
