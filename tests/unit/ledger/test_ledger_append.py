"""Scripted dialogues with the append machine."""

from __future__ import annotations

import pytest

from quorumbook.errors import (
    ConnectionLostError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    TooManyRequestsError,
    WriteFailedError,
)
from quorumbook.ledger.machines.append import (
    AppendFailed,
    AppendState,
    ChangeEnsemble,
    Confirmed,
    DegradedWarning,
    Send,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.ledger.transitions import changed_metadata

LOST = ConnectionLostError("gone")


def ledger(
    ensemble: str = "abc", write_quorum: int | None = None, ack_quorum: int = 2
) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=len(ensemble),
        write_quorum_size=write_quorum or len(ensemble),
        ack_quorum_size=ack_quorum,
        fragments=(Fragment(0, tuple(ensemble)),),
    )


def writer(ensemble: str = "abc", write_quorum: int | None = None, **options) -> AppendState:
    ack_quorum = options.pop("ack_quorum", 2)
    return AppendState(ledger(ensemble, write_quorum, ack_quorum), **options)


def ack(state: AppendState, index: int, first: int, last: int | None = None) -> None:
    last = first if last is None else last
    state.on_acks(index, state.ensemble[index], first, last)
    state.check()


def fail(state: AppendState, index: int, error=LOST) -> None:
    state.on_failure(index, state.ensemble[index], error)
    state.check()


def change(state: AppendState, effect: ChangeEnsemble, chosen: dict[int, str]) -> None:
    state.on_ensemble_changed(*changed_metadata(state.metadata, effect, chosen))
    state.check()


# R1, R2: success and the last add confirmed ---------------------------------------------------


def test_r01_an_entry_succeeds_with_its_ack_quorum() -> None:
    state = writer()
    assert state.push(10, 1) == (0, -1, 0)
    ack(state, 0, 0)
    assert state.poll() == []
    ack(state, 2, 0)
    assert state.poll() == [Confirmed(0)]
    assert (state.last_add_confirmed, state.pending_count) == (0, 0)


@pytest.mark.parametrize("ack_quorum", [1, 2, 3, 4, 5])
def test_r01_an_ack_quorum_is_counted_right_for_every_set_of_acks(ack_quorum: int) -> None:
    for acked in range(1 << 5):
        state = writer("abcde", ack_quorum=ack_quorum)
        state.push(10, 1)
        for index in range(5):
            if acked >> index & 1:
                ack(state, index, 0)
        assert (state.poll() == [Confirmed(0)]) == (acked.bit_count() >= ack_quorum)


def test_r01_the_same_bookie_counts_once() -> None:
    state = writer()
    state.push(10, 1)
    ack(state, 0, 0)
    ack(state, 0, 0)
    assert state.poll() == []


def test_r01_a_chunk_of_answers_is_one_confirmation() -> None:
    state = writer()
    state.push(1000, 100)
    state.push(1000, 100)
    ack(state, 0, 0, 149)
    ack(state, 1, 0, 199)
    assert state.poll() == [Confirmed(149)]
    ack(state, 2, 100, 199)
    assert state.poll() == [Confirmed(199)]


def test_r01_entries_succeed_in_order() -> None:
    state = writer()
    state.push(30, 3)
    ack(state, 0, 1, 2)
    ack(state, 1, 1, 2)
    assert state.poll() == []
    ack(state, 0, 0)
    ack(state, 2, 0)
    assert state.poll() == [Confirmed(2)]


def test_r01_acks_out_of_the_write_set_count_nothing() -> None:
    state = writer("abc", 2)  # entry 0 is stored at a and b
    state.push(10, 1)
    ack(state, 2, 0)
    ack(state, 0, 0)
    assert state.poll() == []
    ack(state, 1, 0)
    assert state.poll() == [Confirmed(0)]


def test_r01_acks_of_entries_never_pushed_count_nothing() -> None:
    state = writer()
    state.push(10, 1)
    ack(state, 0, 0, 50)
    ack(state, 1, 0, 50)
    assert state.poll() == [Confirmed(0)]
    state.push(10, 1)
    assert state.poll() == []


def test_r01_late_acks_of_succeeded_entries_are_harmless() -> None:
    state = writer()
    state.push(20, 2)
    ack(state, 0, 0, 0)
    ack(state, 1, 0, 0)
    assert state.poll() == [Confirmed(0)]
    ack(state, 2, 0, 1)
    assert state.poll() == []
    ack(state, 1, 1)
    assert state.poll() == [Confirmed(1)]


def test_r01_acks_of_a_replaced_bookie_are_dropped_and_its_entries_sent_to_the_new_one() -> None:
    state = writer()
    state.push(20, 2)
    ack(state, 0, 0, 1)
    fail(state, 0)
    [effect] = state.poll()
    assert effect == ChangeEnsemble({0: "a"}, 0, 1)
    change(state, effect, {0: "d"})
    assert state.poll() == [Send(0, "d", range(2))]
    ack(state, 1, 0, 1)
    assert state.poll() == []
    state.on_acks(0, "a", 0, 1)
    assert state.poll() == []
    ack(state, 0, 0, 1)
    assert state.poll() == [Confirmed(1)]


def test_r02_pushed_entries_carry_the_last_add_confirmed_of_that_moment() -> None:
    state = writer()
    assert state.push(10, 1) == (0, -1, 0)
    assert state.push(20, 1) == (1, -1, 10)
    ack(state, 0, 0, 1)
    ack(state, 1, 0, 1)
    assert state.push(5, 1) == (2, -1, 30)
    state.poll()
    assert state.push(5, 1) == (3, 1, 35)


def test_r02_with_deferred_sync_only_a_force_moves_the_last_add_confirmed() -> None:
    state = writer(is_deferred_sync=True)
    state.push(30, 3)
    ack(state, 0, 0, 1)
    ack(state, 1, 0, 1)
    assert state.poll() == [Confirmed(1)]
    assert (state.last_add_confirmed, state.last_add_succeeded) == (-1, 1)
    assert state.push(10, 1)[1] == -1
    state.on_forced(1)
    assert state.last_add_confirmed == 1
    assert state.close_point() == (1, 20)
    state.on_forced(0)
    assert state.last_add_confirmed == 1
    state.check()


def test_with_deferred_sync_a_failed_bookie_ends_the_writer() -> None:
    state = writer(is_deferred_sync=True)
    state.push(10, 1)
    fail(state, 1)
    [effect] = state.poll()
    assert isinstance(effect, AppendFailed)
    assert isinstance(effect.error, WriteFailedError)


# R3: ensemble changes -------------------------------------------------------------------------


def test_r03_a_change_starts_behind_the_last_add_confirmed() -> None:
    state = writer()
    state.push(50, 5)
    ack(state, 0, 0, 2)
    ack(state, 1, 0, 2)
    fail(state, 2)
    assert state.poll() == [Confirmed(2), ChangeEnsemble({2: "c"}, 3, 1)]


def test_r03_nothing_succeeds_between_the_sample_and_the_result() -> None:
    state = writer()
    state.push(50, 5)
    fail(state, 2)
    [effect] = state.poll()
    ack(state, 0, 0, 4)
    ack(state, 1, 0, 4)
    assert state.poll() == []
    assert state.last_add_confirmed == -1
    change(state, effect, {2: "d"})
    assert state.poll() == [Send(2, "d", range(5)), Confirmed(4)]


def test_r03_failures_during_a_change_queue_for_the_next_one() -> None:
    state = writer("abcd", ack_quorum=2)
    state.push(10, 1)
    fail(state, 0)
    [first] = state.poll()
    fail(state, 1)
    assert state.poll() == []
    change(state, first, {0: "x"})
    assert state.poll() == [Send(0, "x", range(1)), ChangeEnsemble({1: "b"}, 0, 2)]


def test_s24_no_ack_relies_on_an_ensemble_that_is_not_recorded() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 0)
    [effect] = state.poll()
    state.on_acks(0, "d", 0, 0)  # the bookie that is being recorded
    ack(state, 1, 0)
    assert state.poll() == []
    change(state, effect, {0: "d"})
    assert Confirmed(0) not in state.poll()


def test_s25_entries_that_complete_during_a_change_are_on_the_recorded_ensemble() -> None:
    state = writer("ab", ack_quorum=1)
    state.push(70, 7)
    ack(state, 0, 0, 4)
    fail(state, 1)
    assert state.poll() == [Confirmed(4), ChangeEnsemble({1: "b"}, 5, 1)]
    fail(state, 0)
    ack(state, 0, 5, 6)  # both complete, but only in the old ensemble
    change(state, ChangeEnsemble({1: "b"}, 5, 1), {1: "c"})
    assert state.poll() == [
        Send(1, "c", range(5, 7)),
        Confirmed(6),
    ]
    # a is recorded still, and has them: replaced from 7 on when there is something to write
    state.push(10, 1)
    assert state.poll() == [ChangeEnsemble({0: "a"}, 7, 2)]


def test_s26_after_chained_changes_every_entry_is_on_its_recorded_write_set() -> None:
    state = writer("abcdef", 2)
    state.push(120, 12)
    for index in range(6):
        ack(state, index, 0, 11)
        if index == 1:
            fail(state, 0)
            [_, first] = state.poll()
    fail(state, 1)
    assert first == ChangeEnsemble({0: "a"}, 1, 1)
    assert state.poll() == []
    change(state, first, {0: "g"})
    sent_to_g, confirmed, second = state.poll()
    assert sent_to_g == Send(0, "g", [5, 6, 11])  # the stripe of position 0, from the fragment on
    assert confirmed == Confirmed(4)
    assert second == ChangeEnsemble({1: "b"}, 5, 2)
    change(state, second, {1: "h"})
    assert state.poll() == [Send(1, "h", [6, 7])]
    ack(state, 0, 5, 6)
    assert state.poll() == [Confirmed(5)]
    ack(state, 1, 6, 7)
    assert state.poll() == [Confirmed(10)]
    ack(state, 0, 11)
    assert state.poll() == [Confirmed(11)]


def test_s27_the_same_position_fails_twice_while_its_change_is_outstanding() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 0)
    [effect] = state.poll()
    fail(state, 0)
    change(state, effect, {0: "d"})
    state.on_failure(0, "a", LOST)
    assert state.poll() == [Send(0, "d", range(1))]
    fail(state, 0)
    assert state.poll() == [ChangeEnsemble({0: "d"}, 0, 2)]


def test_s27_a_bookie_that_comes_back_into_its_old_place_gets_everything_again() -> None:
    state = writer()
    state.push(10, 1)
    ack(state, 0, 0)
    fail(state, 0)
    [first] = state.poll()
    change(state, first, {0: "d"})
    state.poll()
    fail(state, 0)
    [second] = state.poll()
    change(state, second, {0: "a"})
    assert state.poll() == [Send(0, "a", range(1))]
    ack(state, 1, 0)
    assert state.poll() == []  # what a acknowledged before it was replaced is gone
    ack(state, 0, 0)
    assert state.poll() == [Confirmed(0)]


def test_s28_metadata_that_replication_changed_is_taken_over() -> None:
    state = writer()
    state.push(20, 2)
    ack(state, 0, 0, 0)
    ack(state, 1, 0, 0)
    fail(state, 2)
    [_, effect] = state.poll()
    change(state, effect, {2: "d"})
    state.poll()
    fail(state, 2)
    [second] = state.poll()
    theirs = state.metadata.replace_bookie(0, "c", "z")
    state.on_ensemble_changed(*changed_metadata(theirs, second, {2: "e"}))
    assert state.metadata.fragments == (
        Fragment(0, ("a", "b", "z")),
        Fragment(1, ("a", "b", "e")),
    )


def test_s29_an_entry_whose_write_set_excludes_the_replaced_bookie_goes_on() -> None:
    state = writer("abc", 2)
    state.push(20, 2)  # 0 at a, b; 1 at b, c
    fail(state, 2)
    [effect] = state.poll()
    ack(state, 0, 0)
    ack(state, 1, 0, 1)
    change(state, effect, {2: "d"})
    assert state.poll() == [Send(2, "d", [1]), Confirmed(0)]
    ack(state, 2, 1)
    assert state.poll() == [Confirmed(1)]


def test_s29_a_new_ensemble_equal_to_the_old_one_still_resends() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 0)
    [effect] = state.poll()
    state.on_ensemble_changed(state.metadata, {0})
    assert state.poll() == [Send(0, "a", range(1))]
    assert effect.attempt == 1


def test_s29_a_crashed_bookie_is_replaced_twice_and_every_add_completes() -> None:
    state = writer("ab", ack_quorum=2)
    state.push(20, 2)
    ack(state, 1, 0, 1)
    for attempt, replacement in enumerate("cd", start=1):
        fail(state, 0)
        effect = state.poll()[-1]
        assert effect == ChangeEnsemble({0: state.ensemble[0]}, 0, attempt)
        change(state, effect, {0: replacement})
        assert state.poll() == [Send(0, replacement, range(2))]
    ack(state, 0, 0, 1)
    assert state.poll() == [Confirmed(1)]


def test_s30_a_failure_behind_the_last_pending_entry_is_handled_with_the_next_push() -> None:
    state = writer()
    state.push(10, 1)
    ack(state, 0, 0)
    ack(state, 1, 0)
    assert state.poll() == [Confirmed(0)]
    fail(state, 2)
    assert state.poll() == []
    assert state.failed == {2: "c"}
    state.push(10, 1)
    assert state.targets() == [(0, "a"), (1, "b")]
    assert state.poll() == [ChangeEnsemble({2: "c"}, 1, 1)]


def test_s31_the_number_of_ensemble_changes_is_bounded() -> None:
    state = writer(max_ensemble_changes=2)
    state.push(10, 1)
    for replacement in "de":
        fail(state, 0)
        change(state, state.poll()[-1], {0: replacement})
        state.poll()
    fail(state, 0, TooManyRequestsError("busy"))
    assert state.poll() == [DegradedWarning({0: "e"})]
    fail(state, 1, TooManyRequestsError("busy"))
    [effect] = state.poll()
    assert isinstance(effect, AppendFailed)
    assert isinstance(effect.error, NotEnoughBookiesError)


def test_a_change_that_finds_its_work_done_by_somebody_else_resends() -> None:
    state = writer()
    state.push(10, 1)
    ack(state, 0, 0)
    fail(state, 0)
    [effect] = state.poll()
    theirs = state.metadata.with_fragment(0, "xbc")
    change_result = changed_metadata(theirs, effect, {0: "d"})
    assert change_result == (theirs, set())
    state.on_ensemble_changed(*change_result)
    assert state.poll() == [Send(0, "x", range(1))]


def test_entries_pushed_during_a_change_reach_the_new_bookie_too() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 0)
    [effect] = state.poll()
    state.push(10, 1)
    assert state.targets() == [(1, "b"), (2, "c")]
    change(state, effect, {0: "d"})
    assert state.poll() == [Send(0, "d", range(2))]
    assert state.targets() == [(0, "d"), (1, "b"), (2, "c")]


def test_a_delayed_change_waits_until_an_ack_quorum_is_out_of_reach() -> None:
    state = writer(delay_ensemble_change=True)
    state.push(10, 1)
    fail(state, 0)
    assert state.poll() == []
    fail(state, 1)
    assert state.poll() == [ChangeEnsemble({0: "a", 1: "b"}, 0, 1)]


def test_who_has_not_acknowledged_an_entry_can_be_asked() -> None:
    state = writer("abcd", 3)
    state.push(40, 4)
    ack(state, 1, 0, 3)
    assert state.missing(0) == [0, 2]
    assert state.missing(3) == [3, 0]


def test_a_position_of_a_striped_ensemble_owes_its_own_entries_only() -> None:
    state = writer("abcd", 2)
    assert not any(state.owes(index) for index in range(4))
    state.push(20, 2)  # entry 0 at positions 0 and 1, entry 1 at 1 and 2
    assert [state.owes(index) for index in range(4)] == [True, True, True, False]
    ack(state, 1, 0, 0)
    assert state.owes(1)
    ack(state, 1, 1, 1)
    assert [state.owes(index) for index in range(4)] == [True, False, True, False]


# Going on degraded ----------------------------------------------------------------------------


def test_without_a_spare_bookie_the_writer_goes_on_and_warns_once() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 2)
    state.poll()
    state.on_no_replacement()
    assert state.poll() == [DegradedWarning({2: "c"})]
    for entry_id in range(3):
        ack(state, 0, entry_id)
        ack(state, 1, entry_id)
        assert state.poll() == [Confirmed(entry_id)]
        state.push(10, 1)
    assert state.is_degraded
    assert state.poll() == []


def test_a_degraded_writer_is_not_moved_by_more_failures_of_the_same_bookie() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 2)
    state.poll()
    state.on_no_replacement()
    state.poll()
    fail(state, 2)
    assert state.poll() == []


def test_a_degraded_writer_takes_a_replacement_when_one_appears() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 2)
    state.poll()
    state.on_no_replacement()
    state.poll()
    ack(state, 0, 0)
    ack(state, 1, 0)
    assert state.poll() == [Confirmed(0)]
    state.retry_replacement()
    [effect] = state.poll()
    assert effect == ChangeEnsemble({2: "c"}, 1, 2)
    change(state, effect, {2: "d"})
    assert not state.is_degraded
    assert state.metadata.last_fragment == Fragment(1, ("a", "b", "d"))


def test_a_degraded_writer_takes_its_own_bookie_back_without_touching_metadata() -> None:
    state = writer()
    state.push(20, 2)
    fail(state, 2)
    state.poll()
    state.on_no_replacement()
    state.poll()
    state.on_bookie_back(2, "c")
    assert state.poll() == [Send(2, "c", range(2))]
    assert not state.is_degraded
    ack(state, 2, 0, 1)
    ack(state, 0, 0, 1)
    assert state.poll() == [Confirmed(1)]


def test_a_second_failure_without_a_spare_ends_the_writer() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 2)
    state.poll()
    state.on_no_replacement()
    state.poll()
    fail(state, 1)
    assert isinstance(state.poll()[0], ChangeEnsemble)
    state.on_ensemble_change_failed(NotEnoughBookiesError("none"))
    [effect] = state.poll()
    assert isinstance(effect.error, NotEnoughBookiesError)
    assert not state.is_open


def test_a_partial_replacement_goes_on_degraded() -> None:
    state = writer("abcde", ack_quorum=3)
    state.push(10, 1)
    fail(state, 0)
    fail(state, 1)
    [effect] = state.poll()
    change(state, effect, {1: "x"})
    assert state.poll() == [Send(1, "x", range(1)), DegradedWarning({0: "a"})]


def test_who_requires_a_replacement_fails_without_one() -> None:
    state = writer(require_replacement=True)
    state.push(10, 1)
    fail(state, 2)
    state.poll()
    state.on_no_replacement()
    [effect] = state.poll()
    assert isinstance(effect.error, NotEnoughBookiesError)


# R4: stopped for good -------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LedgerFencedError("fenced"), LocalProtocolError("what")])
def test_r04_a_fatal_refusal_ends_the_writer(error) -> None:
    state = writer()
    state.push(20, 2)
    fail(state, 1, error)
    assert state.poll() == [AppendFailed(error)]
    assert state.has_unknown_tail
    ack(state, 0, 0, 1)
    ack(state, 2, 0, 1)
    assert state.poll() == []
    assert state.last_add_confirmed == -1
    with pytest.raises(type(error)):
        state.push(10, 1)


def test_r04_the_refusal_of_a_replaced_bookie_says_nothing() -> None:
    state = writer()
    state.push(10, 1)
    state.on_failure(1, "z", LedgerFencedError("fenced"))
    assert state.poll() == []


@pytest.mark.parametrize(
    "error", [LedgerFencedError("recovered"), LedgerClosedError("x"), MetadataUnavailableError("x")]
)
def test_r04_a_lost_compare_and_set_ends_the_writer(error) -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 0)
    state.poll()
    state.on_ensemble_change_failed(error)
    assert state.poll() == [AppendFailed(error)]


def test_s09_a_fence_with_a_full_window_fails_at_once_and_once() -> None:
    state = writer()
    state.push(1000, 1000)
    ack(state, 0, 0, 999)
    fenced = LedgerFencedError("fenced")
    fail(state, 1, fenced)
    fail(state, 2, LedgerFencedError("again"))
    assert state.poll() == [AppendFailed(fenced)]
    assert state.poll() == []


def test_s09_a_fence_during_an_ensemble_change_wins() -> None:
    state = writer()
    state.push(10, 1)
    fail(state, 0)
    [effect] = state.poll()
    fail(state, 1, LedgerFencedError("fenced"))
    [failed] = state.poll()
    assert isinstance(failed, AppendFailed)
    assert not state.is_changing
    metadata, replaced = changed_metadata(state.metadata, effect, {0: "d"})
    state.on_ensemble_changed(metadata, replaced)
    assert state.poll() == []
    assert state.metadata == metadata, "a close starts from what is written"


# R5: closing ----------------------------------------------------------------------------------


def test_r05_the_close_point_is_the_last_add_confirmed_and_the_length_up_to_it() -> None:
    state = writer()
    state.push(60, 3, [10, 20, 30])
    state.push(7, 1)
    expected = [(-1, 0), (0, 10), (1, 30), (2, 60), (3, 67)]
    assert state.close_point() == expected[0]
    for entry_id in range(4):
        ack(state, 0, entry_id)
        ack(state, 1, entry_id)
        state.poll()
        assert state.close_point() == expected[entry_id + 1]
    assert state.length == 67


def test_r05_entries_of_one_size_need_no_sizes() -> None:
    state = writer()
    state.push(300, 3)
    ack(state, 0, 0, 1)
    ack(state, 1, 0, 1)
    state.poll()
    assert state.close_point() == (1, 200)
    with pytest.raises(LocalProtocolError):
        state.push(301, 3)


def test_s18_closing_right_after_a_failed_add_tells_of_the_unknown_tail() -> None:
    state = writer(require_replacement=True)
    state.push(20, 2)
    ack(state, 0, 0, 0)
    ack(state, 1, 0, 1)
    fail(state, 0)
    assert state.poll()[0] == Confirmed(0)
    state.on_no_replacement()
    state.poll()
    state.close()
    assert state.close_point() == (0, 10)
    assert state.has_unknown_tail


def test_s32_after_a_close_pending_entries_still_succeed_and_new_ones_are_refused() -> None:
    state = writer()
    state.push(10, 1)
    state.close()
    with pytest.raises(LedgerClosedError):
        state.push(10, 1)
    ack(state, 0, 0)
    ack(state, 1, 0)
    assert state.poll() == [Confirmed(0)]
    state.close()
    assert state.close_point() == (0, 10)
    assert not state.has_unknown_tail


def test_an_add_that_waited_too_long_ends_the_writer() -> None:
    state = writer()
    state.push(10, 1)
    error = WriteFailedError("too long")
    state.abort(error)
    assert state.poll() == [AppendFailed(error)]


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY])
def test_a_ledger_that_is_not_open_is_not_written(state: LedgerState) -> None:
    with pytest.raises(LocalProtocolError):
        AppendState(ledger().in_recovery())


def test_a_bookie_twice_in_the_ensemble_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        AppendState(ledger("aab"))
