"""Where the segments of streams lie: as the namespace says, or the stream for itself."""

from __future__ import annotations

import pytest

from doubles.clusters import STORES, local_cluster
from quorumbook.client.context import client_context, client_store
from quorumbook.errors import ConfigError
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams.stream_context import stream_context

cluster = local_cluster(STORES, scope="module")


async def members(ns: Namespace, name: str) -> set[str]:
    """Write two segments, and return the bookies that hold something of the stream."""
    async with ns.stream(name).writer() as writer:
        await writer.append(b"one")
        await writer.roll()
        await writer.append(b"two")
    found: set[str] = set()
    for segment in await ns.stream(name).segments():
        metadata = await ns.client.ledger_metadata(segment.metadata.ledger_id)
        found |= {each for fragment in metadata.fragments for each in fragment.ensemble}
    return found


async def test_placement_is_inherited_and_overridden_option_by_option(ns: Namespace) -> None:
    first, second, third = sorted(await client_context(ns.client).bookies.writable())
    await RackTable(client_store(ns.client)).set({first: "/eu/1", second: "/eu/2", third: "/us/1"})
    await ns.set_policy(
        StreamPolicy(
            ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
            placement="region-aware", regions="eu", min_regions=0,
        )
    )  # fmt: skip
    await ns.create_stream("inherits")
    await ns.create_stream("elsewhere", policy=StreamPolicy(regions="us"))
    both = StreamPolicy(regions="us, eu", disallowed_regions="eu")
    await ns.create_stream("disallows", policy=both)
    await ns.create_stream("wide", policy=StreamPolicy(ensemble_size=2, write_quorum_size=2))
    assert await members(ns, "inherits") <= {first, second}
    assert await members(ns, "elsewhere") == {third}
    assert await members(ns, "disallows") == {third}
    assert await members(ns, "wide") == {first, second}
    # Later segments, and ledgers of snapshots and transactions, are asked for by the same policy.
    await ns.stream("inherits").set_policy(StreamPolicy(regions="us"))
    before = await members(ns, "inherits")
    assert third in before
    policy = (await stream_context(ns.stream("wide")).policy()).placement_metadata()
    assert policy == {
        "quorumbook.placement.options": b'{"min_regions":0,"policy":"region-aware",'
        b'"regions":["eu"]}'
    }


@pytest.mark.parametrize(
    "wrong",
    [{"placement": "nearest"}, {"placement": "local-bookie"}, {"min_racks": -1}],
)
def test_what_is_no_placement_is_refused_where_it_is_said(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        StreamPolicy.of(wrong)


def test_a_policy_without_placement_leaves_it_to_the_client() -> None:
    assert StreamPolicy(placement="", regions="").placement_metadata() == {}
    assert StreamPolicy(bookie_labels="tier=ssd").placement_metadata() == {}
