"""Write sets and coverage, against the peer's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorumbook.ledger.placement.schedule import (
    can_reach_quorum,
    entries_at,
    is_covered,
    is_stored_at,
    negatives_needed,
    stripe_mask,
    write_set,
)

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "schedule.json").read_text(encoding="utf-8")
)
TABLES = GOLDEN["tables"]


def quorums(table: dict[str, Any]) -> tuple[int, int, int]:
    return table["ensemble"], table["write_quorum"], table["ack_quorum"]


@pytest.fixture(params=TABLES, ids=lambda t: "e{}-w{}-a{}".format(*quorums(t)))
def table(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_write_sets_are_those_of_the_peer(table: dict[str, Any]) -> None:
    ensemble, write_quorum, _ = quorums(table)
    for row in table["rows"]:
        entry_id = row["entry_id"]
        assert list(write_set(entry_id, ensemble, write_quorum)) == row["write_set"]


def test_stripes_are_those_of_the_peer(table: dict[str, Any]) -> None:
    ensemble, write_quorum, _ = quorums(table)
    for row in table["striped"]:
        index, expected = row["bookie_index"], row["entries_0_to_11"]
        assert list(entries_at(index, 0, 11, ensemble, write_quorum)) == expected
        mask = stripe_mask(index, 0, 12, ensemble, write_quorum)
        assert [e for e in range(12) if mask >> e & 1] == expected
        assert [e for e in range(12) if is_stored_at(e, index, ensemble, write_quorum)] == expected


def test_coverage_is_that_of_the_peer_for_every_set_of_answers(table: dict[str, Any]) -> None:
    expected = table["covered_by_answer_bitmask"]
    assert [is_covered(mask, *quorums(table)) for mask in range(len(expected))] == expected


def test_ids_beyond_31_bits_are_placed_where_readers_look_for_them() -> None:
    # The peer's writer cuts the id to 32 bits before the modulo; its reader does not, nor do we.
    differing = 0
    for row in GOLDEN["entry_ids_beyond_int32"]:
        assert list(write_set(row["entry_id"], 3, 2)) == row["java_getWriteSet"]
        differing += row["java_getWriteSet"] != row["java_getWriteSetBookieIndex"]
    assert differing


@pytest.mark.parametrize(
    ("quorum", "silent", "failed"),
    [
        ((3, 3, 2), 1, 1),
        ((3, 3, 3), 2, 0),
        ((3, 3, 1), 0, 2),
        ((2, 2, 2), 1, 0),
        ((3, 2, 2), 1, 0),
        ((5, 3, 2), 1, 1),
    ],
)
def test_the_tolerated_losses_are_those_of_the_quorum_table(
    quorum: tuple[int, int, int], silent: int, failed: int
) -> None:
    ensemble, write_quorum, ack_quorum = quorum
    everybody = (1 << ensemble) - 1
    # Neighbours are the worst case: one write set holds them all.
    assert is_covered(everybody & ~((1 << silent) - 1), *quorum)
    assert not is_covered(everybody & ~((1 << silent + 1) - 1), *quorum)
    assert can_reach_quorum((1 << failed) - 1, *quorum)
    assert not can_reach_quorum((1 << failed + 1) - 1, *quorum)
    assert negatives_needed(write_quorum, ack_quorum) == write_quorum - silent


def test_the_peers_six_two_two_example_allows_three_silent_bookies_apart() -> None:
    assert is_covered(0b010101, 6, 2, 2)
    assert not is_covered(0b110011, 6, 2, 2)
