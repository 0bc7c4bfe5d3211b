"""Who writes, whose bookies, who reads: every combination sees the same ledger.

A few combinations in which each pair of choices occurs are run always; ``make interop-full`` runs
them all.
"""

from __future__ import annotations

import os
from itertools import combinations, product

import pytest

from interop.peer_driver import expected
from interop.sides import TRIPLES, Shape, refusal
from quorumbook.ids import MAX_PAYLOAD_SIZE_BYTES
from quorumbook.protocol.digest import DigestType

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

QUORUMS = ((2, 2), (3, 2))
ENDINGS = ("closed", "taken-over")
#: Around what the two sides' digests and buffers are cut into.
SIZES = [0, 1, 31, 32, 33, 1000, 65_535, 65_536, 300_000]
FENCED = -101

Cell = tuple[str, str, str, DigestType, tuple[int, int], str]
IS_FULL = os.environ.get("INTEROP") == "full"


def pairwise(cells: list[Cell]) -> list[Cell]:
    """Return cells in which every pair of values that occurs in any cell occurs."""

    def pairs(cell: Cell) -> set[tuple[object, ...]]:
        return {(i, cell[i], j, cell[j]) for i, j in combinations(range(len(cell)), 2)}

    missing = set().union(*map(pairs, cells))
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(pairs(cell) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


ALL: list[Cell] = [
    (*triple, digest, quorum, ending)
    for triple, digest, quorum, ending in product(TRIPLES, DigestType, QUORUMS, ENDINGS)
]


def name(cell: Cell) -> str:
    writer, bookies, reader, digest, quorum, ending = cell
    return f"{writer}-to-{bookies}-to-{reader}-{digest.name}-Qw{quorum[0]}Qa{quorum[1]}-{ending}"


@pytest.mark.parametrize("cell", ALL if IS_FULL else pairwise(ALL), ids=name)
async def test_a_ledger_is_read_as_it_was_written(connect, cluster_of, cell):
    writer, bookies, reader, digest, (write, ack), ending = cell
    cluster = await cluster_of(bookies)
    writing, reading = await connect(writer, cluster.uri), await connect(reader, cluster.uri)
    members = len(cluster.java) + len(cluster.own)
    shape = Shape(members, write, ack, digest, custom={"application": "tests", "leer": ""})
    ledger = await writing.create(shape)
    await ledger.append("cell", SIZES)
    await ledger.append("cell", SIZES)
    if ending == "closed":
        await ledger.close()
    other = await reading.open(ledger.id, shape)
    last = 2 * len(SIZES) - 1
    assert await other.state() == (last, 2 * sum(SIZES))
    assert await other.read(0, last) == expected("cell", SIZES * 2)
    if ending == "taken-over":
        assert await refusal(ledger.append("cell", [5])) == FENCED
    known = await reading.metadata(ledger.id)
    assert known == await writing.metadata(ledger.id)
    assert (known.state, known.last_entry, known.length) == ("CLOSED", last, 2 * sum(SIZES))
    assert (known.digest, known.quorums) == (digest, (members, write, ack))
    assert known.custom == shape.custom
    assert set(known.ensembles[0]) == {*cluster.java, *cluster.own}
    await other.close()


@pytest.mark.parametrize(("writer", "bookies", "reader"), TRIPLES)
async def test_an_entry_as_large_as_a_frame_allows_is_written_read_and_recovered(
    connect, cluster_of, writer, bookies, reader
):
    cluster = await cluster_of(bookies)
    writing, reading = await connect(writer, cluster.uri), await connect(reader, cluster.uri)
    shape = Shape(digest=DigestType.HMAC)
    sizes = [10, MAX_PAYLOAD_SIZE_BYTES, 10]
    ledger = await writing.create(shape)
    await ledger.append("large", sizes)
    other = await reading.open(ledger.id, shape)
    assert await other.read(0, 2) == expected("large", sizes)
    await other.close()
    await reading.delete(ledger.id)


def test_the_chosen_cells_have_every_pair():
    seen = {pair for cell in pairwise(ALL) for pair in combinations(enumerate(cell), 2)}
    assert seen == {pair for cell in ALL for pair in combinations(enumerate(cell), 2)}
