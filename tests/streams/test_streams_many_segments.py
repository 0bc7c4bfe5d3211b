"""What is done to a stream of many segments asks for few of them."""

from __future__ import annotations

from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster
from streams.many_segments import measure

SEGMENTS = 250
#: More than a list, a search among the segments, and the opening of some ledgers ever take.
FEW = 50


async def test_what_is_asked_of_the_metadata_store_does_not_grow_with_the_segments(
    cluster: LocalCluster, ns: Namespace
) -> None:
    figures = await measure(f"{cluster.metadata_uri}#{ns.path}", SEGMENTS)
    for what in (
        "open a reader at the end",
        "find a sequence id",
        "find a transaction id",
        "find a time",
        "truncate further",
    ):
        assert figures[what].reads <= FEW, figures[what]
    # Some segments are listed ahead, and those of the last writers looked through for producers.
    for what in "read the first record", "open a writer":
        assert figures[what].reads <= 2 * FEW, figures[what]
    # Each segment's node and its ledger's, once, and a list now and then.
    assert figures["read everything"].reads <= 4 * SEGMENTS
