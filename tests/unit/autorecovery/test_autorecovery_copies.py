"""Copies by the lists of bookies, against counting them one by one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumbook.autorecovery.audits import copies
from quorumbook.autorecovery.audits.copies import (
    ClosedFragment,
    Copies,
    closed_fragments,
    count_copies,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.ledger.placement.schedule import is_stored_at


def metadata(*fragments, last=None, ensemble_size=3, write_quorum_size=3):
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=2,
        fragments=tuple(Fragment(first, ensemble) for first, ensemble in fragments),
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        last_entry_id=-1 if last is None else last,
    )


A, B, C = tuple("abc"), tuple("abd"), tuple("abe")


@pytest.mark.parametrize(
    ("ledger", "found"),
    [
        (metadata((0, A)), []),
        (metadata((0, A), (5, B)), [(0, 4, A)]),
        (metadata((0, A), last=9), [(0, 9, A)]),
        (metadata((0, A), (5, B), last=9), [(0, 4, A), (5, 9, B)]),
        # S66: a closed ledger without entries, S75: fragments beyond the end.
        (metadata((0, A), last=-1), []),
        (metadata((0, A), (5, B), last=4), [(0, 4, A)]),
        (metadata((0, A), (5, B), (9, C), last=4), [(0, 4, A)]),
        (metadata((0, A), (5, B), (9, C), last=6), [(0, 4, A), (5, 6, B)]),
    ],
)
def test_s66_s75_only_fragments_with_settled_entries_are_looked_at(ledger, found):
    assert list(closed_fragments(ledger)) == [ClosedFragment(*fragment) for fragment in found]


def test_s75_an_entry_is_missed_only_where_the_write_quorum_puts_it():
    """E3/Qw2: entry 0 is at 0 and 1, entry 1 at 1 and 2, entry 2 at 2 and 0."""
    striped = [[(0, 0), (2, 2)], [(0, 1)], [(1, 2)]]
    assert count_copies(0, 2, striped, 2) == Copies(2, ())
    assert count_copies(0, 2, [[(0, 0)], [(0, 1)], [(1, 2)]], 2) == Copies(1, (0,))


def test_a_bookie_that_gives_no_list_has_no_copies_but_lacks_nothing():
    assert count_copies(0, 9, [[(0, 9)], None, [(0, 8)]], 3) == Copies(1, (2,))
    assert count_copies(0, 9, [None, None, None], 3) == Copies(0, ())
    assert count_copies(0, 9, [[], [], []], 3) == Copies(0, (0, 1, 2))


def test_a_ledger_of_any_length_is_counted_in_pieces():
    last = 10 * copies._BLOCK_ENTRIES + 7  # the borders of its blocks
    whole = [(0, last)]
    # The borders of its blocks.
    for hole in (0, copies._BLOCK_ENTRIES - 1, copies._BLOCK_ENTRIES, last):
        pieces = [piece for piece in ((0, hole - 1), (hole + 1, last)) if piece[0] <= piece[1]]
        assert count_copies(0, last, [whole, pieces, whole], 3) == Copies(2, (1,))


@st.composite
def fragments(draw):
    ensemble_size = draw(st.integers(1, 5))
    write_quorum_size = draw(st.integers(1, ensemble_size))
    first = draw(st.integers(0, 20))
    last = first + draw(st.integers(0, 12))
    ids = st.sets(st.integers(max(first - 2, 0), last + 2))
    held = draw(
        st.lists(st.none() | ids, min_size=ensemble_size, max_size=ensemble_size)
    )  # fmt: skip
    return first, last, held, write_quorum_size


@given(fragments(), st.sampled_from([1, 3, 64]))
@example((0, 0, [None], 1), 3)
def test_copies_are_counted_as_one_would_by_hand(fragment, block):
    first, last, held, write_quorum_size = fragment
    size = len(held)
    lacking, least = set(), write_quorum_size
    for entry_id in range(first, last + 1):
        has = 0
        for position, ids in enumerate(held):
            if not is_stored_at(entry_id, position, size, write_quorum_size):
                continue
            if ids is not None and entry_id in ids:
                has += 1
            elif ids is not None:
                lacking.add(position)
        least = min(least, has)
    ranges = [None if ids is None else [(i, i) for i in sorted(ids)] for ids in held]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_BLOCK_ENTRIES", block)
        counted = count_copies(first, last, ranges, write_quorum_size)
    assert counted == Copies(least, tuple(sorted(lacking)))
