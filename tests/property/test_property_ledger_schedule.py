"""The quorum arithmetic against a second, deliberately dumb implementation."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.ledger.machines.append import AppendState, Confirmed
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.schedule import (
    can_reach_quorum,
    entries_at,
    is_covered,
    is_stored_at,
    negatives_needed,
    stripe_mask,
    write_set,
)


@st.composite
def quorums(draw: st.DrawFn) -> tuple[int, int, int]:
    ensemble = draw(st.integers(1, 7))
    write_quorum = draw(st.integers(1, ensemble))
    return ensemble, write_quorum, draw(st.integers(1, write_quorum))


def walk(entry_id: int, ensemble: int, write_quorum: int) -> list[int]:
    """Walk around the ensemble one seat at a time."""
    seat, seats = 0, []
    for _ in range(entry_id % ensemble):
        seat = seat + 1 if seat + 1 < ensemble else 0
    for _ in range(write_quorum):
        seats.append(seat)
        seat = seat + 1 if seat + 1 < ensemble else 0
    return seats


@given(quorums(), st.integers(0, 2**63 - 1))
def test_write_sets_agree_with_a_walk_around_the_ensemble(quorum, entry_id) -> None:
    ensemble, write_quorum, _ = quorum
    expected = walk(entry_id, ensemble, write_quorum)
    assert list(write_set(entry_id, ensemble, write_quorum)) == expected
    for index in range(ensemble):
        assert is_stored_at(entry_id, index, ensemble, write_quorum) == (index in expected)


@given(quorums(), st.integers(0, 2**40), st.integers(0, 90), st.data())
def test_stripes_agree_with_write_sets(quorum, first, count, data) -> None:
    ensemble, write_quorum, _ = quorum
    index = data.draw(st.integers(0, ensemble - 1))
    expected = [e for e in range(first, first + count) if index in walk(e, ensemble, write_quorum)]
    assert list(entries_at(index, first, first + count - 1, ensemble, write_quorum)) == expected
    mask = stripe_mask(index, first, count, ensemble, write_quorum)
    assert [first + i for i in range(mask.bit_length()) if mask >> i & 1] == expected


@given(quorums(), st.data())
def test_coverage_means_that_no_ack_quorum_is_left_unasked(quorum, data) -> None:
    ensemble, write_quorum, ack_quorum = quorum
    answered = data.draw(st.sets(st.integers(0, ensemble - 1)))
    hidden = [
        acks
        for entry_id in range(ensemble)
        for acks in combinations(walk(entry_id, ensemble, write_quorum), ack_quorum)
        if not set(acks) & answered
    ]
    mask = sum(1 << index for index in answered)
    assert is_covered(mask, *quorum) == (not hidden)


@given(quorums(), st.data())
def test_reaching_the_quorum_means_that_every_write_set_has_enough_working_bookies(
    quorum, data
) -> None:
    ensemble, write_quorum, ack_quorum = quorum
    failed = data.draw(st.sets(st.integers(0, ensemble - 1)))
    expected = all(
        len(set(walk(e, ensemble, write_quorum)) - failed) >= ack_quorum for e in range(ensemble)
    )
    assert can_reach_quorum(sum(1 << i for i in failed), *quorum) == expected


@given(quorums())
def test_enough_negatives_leave_no_room_for_an_ack_quorum(quorum) -> None:
    _, write_quorum, ack_quorum = quorum
    needed = negatives_needed(write_quorum, ack_quorum)
    assert write_quorum - needed < ack_quorum
    assert write_quorum - (needed - 1) >= ack_quorum


@given(quorums(), st.integers(1, 40), st.data())
def test_what_succeeds_agrees_with_counting_the_acks_of_each_entry(quorum, count, data) -> None:
    ensemble, write_quorum, ack_quorum = quorum
    names = tuple(f"b{i}" for i in range(ensemble))
    state = AppendState(
        LedgerMetadata(
            ledger_id=1,
            ensemble_size=ensemble,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            fragments=(Fragment(0, names),),
        )
    )
    state.push(count, count)
    acks: list[set[int]] = [set() for _ in range(count)]
    confirmed = -1
    ranges = st.tuples(st.integers(0, ensemble - 1), st.integers(0, 45), st.integers(0, 45))
    for index, first, last in data.draw(st.lists(ranges, max_size=30)):
        state.on_acks(index, names[index], first, last)
        for entry_id in range(first, min(last, count - 1) + 1):
            if index in walk(entry_id, ensemble, write_quorum):
                acks[entry_id].add(index)
        expected = confirmed
        while expected + 1 < count and len(acks[expected + 1]) >= ack_quorum:
            expected += 1
        effects = state.poll()
        state.check()
        assert effects == ([Confirmed(expected)] if expected > confirmed else [])
        confirmed = expected
