"""Plans for disks that are about equally full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.autorecovery.copying.balance import BookieDisk, HeldLedger, pieces_of, plan
from quorumbook.ledger.danger import exposure, share_of
from quorumbook.ledger.metadata import Fragment, LedgerMetadata

BOOKIES = "abcde"


def used(disk: BookieDisk) -> float:
    return 1 - disk.free_bytes / disk.total_bytes


@given(
    st.lists(st.tuples(st.integers(100, 200), st.floats(0, 1)), min_size=5, max_size=5),
    st.lists(st.tuples(st.sets(st.sampled_from(BOOKIES), min_size=1), st.integers(1, 40))),
    st.floats(0.01, 0.5),
)
def test_moves_make_disks_more_equal_and_put_no_ledger_twice_on_a_bookie(
    sizes, ledgers, tolerance
) -> None:
    disks = {
        b: BookieDisk(total, round(total * free))
        for b, (total, free) in zip(BOOKIES, sizes, strict=True)
    }
    pieces = [
        HeldLedger(ledger_id, bookie, size, frozenset(members))
        for ledger_id, (members, size) in enumerate(ledgers)
        for bookie in members
    ]
    moves = plan(disks, pieces, tolerance)
    after = {b: used(disk) for b, disk in disks.items()}
    for move in moves:
        piece = next(
            p for p in pieces if (p.ledger_id, p.bookie_id) == (move.ledger_id, move.source)
        )
        assert move.target not in piece.members
        before = abs(after[move.source] - after[move.target])
        assert before > tolerance
        after[move.source] -= move.size_bytes / disks[move.source].total_bytes
        after[move.target] += move.size_bytes / disks[move.target].total_bytes
        assert abs(after[move.source] - after[move.target]) < before
    assert len({move.ledger_id for move in moves}) == len(moves)


def test_the_fullest_gives_its_largest_piece_to_the_emptiest() -> None:
    disks = {"a": BookieDisk(100, 20), "b": BookieDisk(100, 50), "c": BookieDisk(100, 80)}
    pieces = [HeldLedger(i, "a", size, frozenset("ab")) for i, size in enumerate([5, 20, 60])]
    moves = plan(disks, pieces, 0.05)
    assert [(m.ledger_id, m.source, m.target) for m in moves] == [(1, "a", "c"), (0, "a", "c")]


def test_a_ledger_does_not_go_where_it_must_not() -> None:
    disks = {"a": BookieDisk(100, 20), "b": BookieDisk(100, 50), "c": BookieDisk(100, 80)}
    pieces = [HeldLedger(1, "a", 20, frozenset("a"))]
    assert [m.target for m in plan(disks, pieces, 0.05)] == ["c"]
    assert plan(disks, pieces, 0.05, {(1, "c"), (1, "b")}) == []


def ledger(**fields) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=1, ensemble_size=3, write_quorum_size=2, ack_quorum_size=2,
        fragments=(Fragment(0, tuple("abc")), Fragment(30, tuple("abd"))), **fields,
    )  # fmt: skip


def test_what_a_bookie_holds_is_estimated_from_its_places() -> None:
    closed = ledger().closed(59, 6000)
    assert share_of(closed, ["a"]) == 2 / 3
    assert share_of(closed, ["c"]) == 1 / 3
    assert [(p.bookie_id, p.size_bytes) for p in pieces_of(closed, ["a", "c", "x"])] == [
        ("a", 4000), ("c", 2000),
    ]  # fmt: skip
    assert pieces_of(ledger(), ["a"]) == []
    assert share_of(ledger(), ["a"]) == 0


def test_the_fewest_copies_of_an_entry_are_counted() -> None:
    closed = ledger().closed(59, 6000)
    assert [e.copies for e in exposure(closed, "abcd")] == [2, 2]
    assert [e.copies for e in exposure(closed, "bcd")] == [1, 1]
    assert [e.copies for e in exposure(closed, "cd")] == [0, 0]
    assert [e.copies for e in exposure(closed, "abcd", missing=["c"])] == [1, 2]
    # A fragment of one entry stands on one write set only, an empty one on none.
    assert [e.copies for e in exposure(ledger().closed(30, 1), "abc")] == [2, 2]
    assert [e[:3] for e in exposure(ledger().closed(29, 1), "abc")] == [(0, 29, 2)]
    assert [e[:3] for e in exposure(ledger(), "abc")] == [(0, 29, 2), (30, None, 1)]
