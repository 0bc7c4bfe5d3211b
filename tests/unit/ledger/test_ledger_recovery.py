"""Scripted dialogues with the recovery machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quorumbook.errors import (
    BookieIOError,
    ConnectionLostError,
    DigestMismatchError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RequestTimeoutError,
    UnauthorizedError,
    UnknownLedgerStateError,
)
from quorumbook.ledger.machines.recovery import (
    ChooseReplacement,
    Close,
    Done,
    FenceRead,
    MarkInRecovery,
    RecoveryFailed,
    RecoveryRead,
    RecoveryState,
    ReleasePayloads,
    WriteBack,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState

LOST = ConnectionLostError("gone")
NO = NoSuchEntryError("no")


def ledger(
    ensemble: str = "abc",
    write_quorum: int | None = None,
    ack_quorum: int = 2,
    fragments: tuple[Fragment, ...] | None = None,
    state: LedgerState = LedgerState.OPEN,
) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=len(ensemble),
        write_quorum_size=write_quorum or len(ensemble),
        ack_quorum_size=ack_quorum,
        fragments=fragments or (Fragment(0, tuple(ensemble)),),
        state=state,
    )


def fenced(metadata: LedgerMetadata, lac: int = -1, length: int = 0, **options) -> RecoveryState:
    """A recovery that has marked the ledger and heard ``lac`` from all bookies."""
    state = RecoveryState(metadata, **{"batch_entries": 1, **options})
    for effect in state.poll():
        if isinstance(effect, MarkInRecovery):
            state.on_marked(effect.metadata)
    assert state.poll() == [FenceRead(tuple(enumerate(metadata.ensemble)))]
    for index in range(metadata.ensemble_size):
        if lac < 0:
            state.on_fence_error(index, NO)
        else:
            state.on_fence_answer(index, lac, length)
    return state


def reads(effects: list[Any]) -> list[tuple[int, int]]:
    return [(e.entry_id, e.bookie_index) for e in effects if isinstance(e, RecoveryRead)]


def writes(effects: list[Any]) -> list[tuple[int, str]]:
    return [(e.entry_id, e.bookie_id) for e in effects if isinstance(e, WriteBack)]


def say_no(state: RecoveryState, entry_id: int, *indexes: int) -> None:
    for index in indexes:
        state.on_read_error(entry_id, index, NO)


def closing(effects: list[Any]) -> LedgerMetadata:
    [close] = [effect for effect in effects if isinstance(effect, Close)]
    return close.metadata


# R16: mark, fence, coverage -------------------------------------------------------------------


def test_r16_the_ledger_is_marked_before_anybody_is_fenced() -> None:
    state = RecoveryState(ledger())
    [mark] = state.poll()
    assert mark == MarkInRecovery(ledger().in_recovery())
    assert state.poll() == []
    state.on_marked(mark.metadata)
    assert state.poll() == [FenceRead(((0, "a"), (1, "b"), (2, "c")))]


def test_r16_a_ledger_in_recovery_is_not_marked_again() -> None:
    state = RecoveryState(ledger().in_recovery())
    assert isinstance(state.poll()[0], FenceRead)


def test_r16_a_ledger_that_somebody_closed_needs_nothing() -> None:
    closed = ledger().closed(3, 40)
    assert RecoveryState(closed).poll() == [Done(closed)]
    state = RecoveryState(ledger())
    state.poll()
    state.on_metadata(closed)
    assert state.poll() == [Done(closed)]


def test_r16_a_lost_mark_is_tried_again_on_the_newer_metadata() -> None:
    state = RecoveryState(ledger())
    state.poll()
    newer = ledger().with_fragment(5, "abd")
    state.on_metadata(newer)
    assert state.poll() == [MarkInRecovery(newer.in_recovery())]
    state.on_marked(newer.in_recovery())
    assert state.poll() == [FenceRead(((0, "a"), (1, "b"), (2, "d")))]


def test_r16_recovery_waits_until_the_answers_cover_every_ack_quorum() -> None:
    state = RecoveryState(ledger("abcd", 2, 2).in_recovery())
    state.poll()
    state.on_fence_answer(0, 4, 50)
    state.on_fence_error(1, LOST)
    assert state.poll() == []  # c and d may hide an ack quorum
    state.on_fence_error(2, NoSuchLedgerError("no"))
    assert reads(state.poll())


@pytest.mark.parametrize("error", [LOST, BookieIOError("x")])
def test_r16_errors_and_silence_cover_nothing(error) -> None:
    state = RecoveryState(ledger().in_recovery())
    state.poll()
    state.on_fence_answer(0, 4, 50)
    state.on_fence_error(1, error)
    assert state.poll() == []
    state.on_fence_error(2, error)
    [failed] = state.poll()
    assert isinstance(failed.error, LedgerRecoveryError)
    assert failed.error.__cause__ is error


def test_r16_a_damaged_answer_is_fenced_but_tells_no_lac() -> None:
    state = RecoveryState(ledger().in_recovery())
    state.poll()
    state.on_fence_error(0, DigestMismatchError("x"))
    state.on_fence_answer(1, 4, 50)
    assert reads(state.poll())[0][0] == 5


def test_r16_a_bookie_in_limbo_is_fenced_but_tells_no_lac() -> None:
    state = RecoveryState(ledger().in_recovery())
    state.poll()
    state.on_fence_error(0, UnknownLedgerStateError("limbo"))
    state.on_fence_answer(1, 4, 50)
    assert reads(state.poll())[0][0] == 5


@pytest.mark.parametrize("last", [UnknownLedgerStateError("limbo"), LOST])
@pytest.mark.parametrize("accepts", [False, True])
def test_r17_what_may_be_lost_is_given_up_on_an_operators_word_only(last, accepts: bool) -> None:
    state = fenced(ledger(), 4, 50, gives_up_unknown=accepts)
    state.poll()
    for index in range(2):
        state.on_read_error(5, index, UnknownLedgerStateError("limbo"))
    assert state.poll() == [], "the last bookie may have it"
    state.on_read_error(5, 2, last)
    effects = state.poll()
    is_given_up = accepts and last is not LOST
    assert any(isinstance(effect, RecoveryFailed) for effect in effects) is not is_given_up
    state.on_entry(4, 0, 50)
    assert any(isinstance(effect, Close) for effect in state.poll()) is is_given_up


def test_r16_a_wrong_password_is_told_as_such() -> None:
    state = RecoveryState(ledger().in_recovery())
    state.poll()
    error = UnauthorizedError("no")
    for index in range(3):
        assert state.poll() == []
        state.on_fence_error(index, error)
    assert state.poll() == [RecoveryFailed(error)]


@pytest.mark.parametrize("is_enough", [False, True])
def test_r16_a_bookie_that_refuses_the_key_alone_counts_as_one_without_an_answer(
    is_enough: bool,
) -> None:
    state = RecoveryState(ledger().in_recovery())
    state.poll()
    state.on_fence_error(1, UnauthorizedError("no"))
    state.on_fence_answer(0, 4, 50)
    assert state.poll() == []
    if is_enough:
        state.on_fence_answer(2, 4, 50)
        assert reads(state.poll())[0][0] == 5
    else:
        state.on_fence_error(2, LOST)
        [failed] = state.poll()
        assert isinstance(failed.error, LedgerRecoveryError)


def test_r18_a_bookie_that_refuses_the_key_of_what_is_written_back_is_replaced() -> None:
    state = fenced(ledger())
    state.poll()
    state.on_entry(0, 0, 10)
    state.poll()
    state.on_write_error(0, 1, "b", UnauthorizedError("no"))
    assert state.poll() == [ChooseReplacement({1: "b"}, ("a", "b", "c"))]


# R17: reading forward -------------------------------------------------------------------------


@pytest.mark.parametrize("lacs", [(4, 7), (7, 4)])
def test_r17_reading_starts_behind_the_greatest_lac(lacs: tuple[int, int]) -> None:
    state = RecoveryState(ledger().in_recovery())
    state.poll()
    for index, lac in enumerate(lacs):
        state.on_fence_answer(index, lac, 10 * lac + 20)
    assert {entry_id for entry_id, _ in reads(state.poll())} == set(range(8, 16))


def test_r17_each_entry_is_asked_of_its_whole_write_set() -> None:
    state = fenced(ledger("abc", 2), batch_entries=2)
    assert reads(state.poll()) == [(0, 0), (0, 1), (1, 1), (1, 2)]


def test_r17_one_good_copy_is_a_yes_whatever_the_others_say() -> None:
    state = fenced(ledger())
    state.poll()
    state.on_read_error(0, 0, DigestMismatchError("x"))
    say_no(state, 0, 1)
    assert state.on_entry(0, 2, 10)
    assert not state.on_entry(0, 1, 10), "one copy is enough"
    assert writes(state.poll())


def test_r17_enough_definite_negatives_are_a_no() -> None:
    state = fenced(ledger())
    state.poll()
    say_no(state, 0, 0)
    assert state.poll() == []
    say_no(state, 0, 0)
    assert state.poll() == [], "the same bookie counts once"
    state.on_read_error(0, 2, NoSuchLedgerError("no"))
    assert closing(state.poll()).last_entry_id == -1


@pytest.mark.parametrize(
    "error", [LOST, BookieIOError("x"), DigestMismatchError("x"), UnauthorizedError("x")]
)
def test_r17_all_in_and_undecided_fails_and_closes_nothing(error) -> None:
    state = fenced(ledger())
    state.poll()
    say_no(state, 0, 0)
    state.on_read_error(0, 1, error)
    assert state.poll() == []
    state.on_read_error(0, 2, error)
    [failed] = state.poll()
    assert isinstance(failed.error, LedgerRecoveryError)
    assert state.is_done


def test_r17_an_undecided_entry_beyond_the_end_stops_nothing() -> None:
    state = fenced(ledger(), batch_entries=4)
    state.poll()
    for index in range(3):
        state.on_read_error(2, index, LOST)
    assert state.poll() == []
    say_no(state, 0, 0, 1)
    assert closing(state.poll()).last_entry_id == -1


def test_r17_entries_found_behind_a_gap_are_not_written_back() -> None:
    state = fenced(ledger(), batch_entries=4)
    state.poll()
    state.on_entry(1, 0, 20)
    assert writes(state.poll()) == []
    say_no(state, 0, 0, 1)
    assert closing(state.poll()).last_entry_id == -1


def test_s01_the_reads_of_a_recovery_ask_every_bookie_again_so_that_each_is_fenced() -> None:
    state = fenced(ledger())
    assert reads(state.poll()) == [(0, 0), (0, 1), (0, 2)]


def test_s02_reading_never_starts_before_the_last_fragment() -> None:
    fragments = (
        Fragment(0, ("a", "b")),
        Fragment(1000, ("a", "c")),
        Fragment(2000, ("d", "e")),
    )
    state = fenced(ledger("de", fragments=fragments))
    assert reads(state.poll()) == [(2000, 0), (2000, 1)]
    say_no(state, 2000, 0)
    # The last confirmed entry is asked for the ledger's length, in its own fragment.
    assert state.poll() == [RecoveryRead(1999, 1, "c"), RecoveryRead(1999, 0, "a")]
    assert not state.on_entry(1999, 1, 777)
    closed = closing(state.poll())
    assert closed.fragments == fragments
    assert (closed.last_entry_id, closed.length) == (1999, 777)


def test_s02_a_local_change_in_an_empty_last_fragment_replaces_it() -> None:
    fragments = (Fragment(0, tuple("abc")), Fragment(10, tuple("abd")))
    state = fenced(ledger(fragments=fragments))
    state.poll()
    state.on_entry(10, 0, 110)
    state.poll()
    state.on_write_error(10, 1, "b", LOST)
    state.poll()
    state.on_replacement({1: "x"})
    state.on_written(10, 0, "a")
    state.on_written(10, 1, "x")
    state.poll()
    say_no(state, 11, 0, 1)
    assert closing(state.poll()).fragments == (fragments[0], Fragment(10, tuple("axd")))


def test_s03_recovery_reads_go_to_the_ensemble_recorded_at_the_start() -> None:
    state = fenced(ledger())
    state.poll()
    state.on_entry(0, 0, 10)
    assert writes(state.poll()) == [(0, "a"), (0, "b"), (0, "c")]
    state.on_write_error(0, 2, "c", LOST)
    assert state.poll()[-1] == ChooseReplacement({2: "c"}, ("a", "b", "c"))
    state.on_replacement({2: "x"})
    assert writes(state.poll()) == [(0, "x")]
    state.on_written(0, 0, "a")
    state.on_written(0, 2, "x")
    effects = state.poll()
    assert {(e.bookie_index, e.bookie_id) for e in effects if isinstance(e, RecoveryRead)} == {
        (0, "a"),
        (1, "b"),
        (2, "c"),
    }


def test_s04_the_verdict_does_not_wait_for_a_bookie_that_hangs() -> None:
    state = fenced(ledger())
    state.poll()
    say_no(state, 0, 1, 2)  # a never answers
    assert closing(state.poll()).last_entry_id == -1


def test_s05_one_negative_is_enough_where_every_add_needs_all_bookies() -> None:
    state = RecoveryState(ledger("ab").in_recovery())
    state.poll()
    state.on_fence_error(0, LOST)
    state.on_fence_error(1, NO)
    state.poll()
    state.on_read_error(0, 0, LOST)
    say_no(state, 0, 1)
    closed = closing(state.poll())
    assert (closed.last_entry_id, closed.length) == (-1, 0)


# R18: writing back ----------------------------------------------------------------------------


def test_r18_an_entry_is_written_to_its_whole_write_set_until_an_ack_quorum_has_it() -> None:
    state = fenced(ledger())
    state.poll()
    state.on_entry(0, 1, 10)
    assert writes(state.poll()) == [(0, "a"), (0, "b"), (0, "c")]
    state.on_written(0, 1, "b")
    state.on_written(0, 1, "b")
    assert state.poll() == []
    state.on_written(0, 2, "c")
    effects = state.poll()
    assert effects[0] == ReleasePayloads(0)
    assert {entry_id for entry_id, _ in reads(effects)} == {1}


def test_r18_nothing_is_closed_before_every_entry_is_written_back() -> None:
    state = fenced(ledger(), batch_entries=3)
    state.poll()
    state.on_entry(0, 0, 10)
    state.on_entry(1, 0, 30)
    say_no(state, 2, 0, 1)
    assert len(writes(state.poll())) == 6
    for index, name in ((0, "a"), (1, "b")):
        state.on_written(1, index, name)
    assert state.poll() == []
    for index, name in ((0, "a"), (1, "b")):
        state.on_written(0, index, name)
    effects = state.poll()
    assert effects[0] == ReleasePayloads(1)
    closed = closing(effects)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 1, 30)


def test_r18_acks_of_a_locally_replaced_bookie_are_dropped() -> None:
    state = fenced(ledger())
    state.poll()
    state.on_entry(0, 0, 10)
    state.poll()
    state.on_written(0, 0, "a")
    state.on_write_error(0, 0, "a", LOST)  # broke after the answer
    state.poll()
    state.on_replacement({0: "x"})
    state.on_written(0, 0, "a")
    state.on_written(0, 1, "b")
    assert writes(state.poll()) == [(0, "x")]
    assert state.last_entry_id == -1
    state.on_written(0, 0, "x")
    state.poll()
    assert state.last_entry_id == 0


def test_s11_new_ensembles_appear_only_with_the_closing_write() -> None:
    state = fenced(ledger(), batch_entries=2)
    effects = state.poll()
    for entry_id in range(3):
        state.on_entry(entry_id, 0, 10 * entry_id + 10)
        effects += state.poll()
        if entry_id == 1:
            state.on_write_error(1, 2, "c", LOST)
            effects += state.poll()
            state.on_replacement({2: "x"})
        for index in range(3):
            state.on_written(entry_id, index, state.ensemble[index])
        effects += state.poll()
    assert not [e for e in effects if isinstance(e, Close | MarkInRecovery)]
    say_no(state, 3, 0, 1)
    closed = closing(state.poll())
    assert closed.fragments == (Fragment(0, tuple("abc")), Fragment(1, tuple("abx")))
    assert closed.last_entry_id == 2
    state.on_closed()
    assert state.poll() == [Done(closed)]


def test_r18_who_loses_the_close_takes_what_was_written() -> None:
    state = fenced(ledger())
    state.poll()
    say_no(state, 0, 0, 1)
    assert closing(state.poll()).last_entry_id == -1
    theirs = ledger().in_recovery().closed(4, 50)
    state.on_metadata(theirs)
    assert state.poll() == [Done(theirs)]


def test_r18_a_close_that_lost_to_replication_keeps_what_replication_wrote() -> None:
    fragments = (Fragment(0, tuple("abc")), Fragment(10, tuple("abd")))
    state = fenced(ledger(fragments=fragments))
    state.poll()
    state.on_entry(10, 0, 110)
    state.poll()
    for index in (0, 1):
        state.on_written(10, index, state.ensemble[index])
    state.on_write_error(10, 2, "d", LOST)
    state.poll()
    state.on_replacement({2: "x"})
    say_no(state, 11, 0, 1)
    assert closing(state.poll()).fragments == (*fragments, Fragment(11, tuple("abx")))
    theirs = ledger(fragments=fragments).in_recovery().replace_bookie(0, "c", "z")
    state.on_metadata(replace(theirs, custom_metadata={"by": b"others"}))
    closed = closing(state.poll())
    assert closed.fragments == (
        Fragment(0, tuple("abz")),
        fragments[1],
        Fragment(11, tuple("abx")),
    )
    assert closed.custom_metadata == {"by": b"others"}


def test_r18_a_close_that_lost_to_another_last_fragment_gives_up() -> None:
    state = fenced(ledger())
    state.poll()
    say_no(state, 0, 0, 1)
    state.poll()
    state.on_metadata(ledger("abz").in_recovery())
    [failed] = state.poll()
    assert isinstance(failed.error, LedgerRecoveryError)


def test_r18_a_replacement_that_comes_after_the_close_was_sent_changes_nothing() -> None:
    for is_found in (True, False):
        state = fenced(ledger())
        state.poll()
        state.on_entry(0, 0, 10)
        state.poll()
        for index in range(3):
            state.on_write_error(0, index, state.ensemble[index], LOST)
        state.on_written(0, 0, "a")
        state.on_written(0, 1, "b")
        assert ChooseReplacement(dict(enumerate("abc")), tuple("abc")) in state.poll()
        say_no(state, 1, 0, 1)
        closed = closing(state.poll())
        if is_found:
            state.on_replacement({2: "x"})
        else:
            state.on_no_replacement()
        state.on_closed()
        assert state.poll() == [Done(closed)]


def test_without_a_spare_bookie_recovery_goes_on_while_ack_quorums_are_in_reach() -> None:
    state = fenced(ledger())
    state.poll()
    state.on_entry(0, 0, 10)
    state.poll()
    state.on_write_error(0, 2, "c", LOST)
    state.poll()
    state.on_no_replacement()
    state.on_written(0, 0, "a")
    state.on_written(0, 1, "b")
    state.poll()
    state.on_entry(1, 0, 20)
    assert sorted(writes(state.poll())) == [(1, "a"), (1, "b")]
    state.on_write_error(1, 1, "b", LOST)
    state.poll()
    state.on_no_replacement()
    [failed] = state.poll()
    assert isinstance(failed.error, NotEnoughBookiesError)


def test_where_only_some_are_replaced_recovery_goes_on_or_fails_with_those_it_has() -> None:
    state = fenced(ledger("abcd", ack_quorum=3), batch_entries=1)
    state.poll()
    state.on_entry(0, 0, 10)
    state.poll()
    state.on_write_error(0, 2, "c", LOST)
    state.on_write_error(0, 3, "d", LOST)
    [choice] = [e for e in state.poll() if isinstance(e, ChooseReplacement)]
    assert choice.failed == {2: "c", 3: "d"}
    state.on_replacement({2: "e"})
    assert writes(state.poll()) == [(0, "e")], "three of four positions make every ack quorum"
    state.on_write_error(0, 2, "e", LOST)
    [choice] = [e for e in state.poll() if isinstance(e, ChooseReplacement)]
    assert choice.failed == {2: "e", 3: "d"}
    state.on_write_error(0, 1, "b", LOST)
    state.on_replacement({2: "f"})
    [choice] = [e for e in state.poll() if isinstance(e, ChooseReplacement)]
    assert choice.failed == {1: "b", 3: "d"}, "a failure during the choice asks once more"
    state.on_replacement({})
    [failed] = state.poll()
    assert isinstance(failed.error, NotEnoughBookiesError)


# R19, R20 -------------------------------------------------------------------------------------


def test_r19_the_lac_of_recovery_adds_stays_what_the_fencing_found() -> None:
    state = fenced(ledger(), lac=4, length=60, batch_entries=2)
    effects = state.poll()
    for entry_id in range(5, 9):
        state.on_entry(entry_id, 0, 10 * entry_id + 10)
        effects += state.poll()
        for index in range(3):
            state.on_written(entry_id, index, state.ensemble[index])
        effects += state.poll()
    assert state.last_entry_id == 8
    assert {e.last_add_confirmed for e in effects if isinstance(e, WriteBack)} == {4}


def test_s19_a_second_recovery_does_not_trust_what_the_first_kept_to_itself() -> None:
    # The first recovery moves e0 to replacements that only it knows, writes e1 and dies.
    first = fenced(ledger(), batch_entries=2)
    first.poll()
    first.on_entry(0, 0, 10)
    first.on_entry(1, 0, 20)
    first.poll()
    first.on_write_error(0, 0, "a", LOST)
    first.on_write_error(0, 1, "b", LOST)
    first.poll()
    first.on_replacement({0: "x", 1: "y"})
    effects = first.poll()
    for index, name in ((0, "x"), (1, "y")):
        first.on_written(0, index, name)
    effects += first.poll()
    assert first.last_entry_id == 0
    to_original = [e for e in effects if isinstance(e, WriteBack)]
    assert all(e.last_add_confirmed == -1 for e in to_original)
    # So the bookie c, which may have e1 now, sends the second one back to e0.
    second = RecoveryState(ledger().in_recovery(), batch_entries=1)
    second.poll()
    second.on_fence_answer(2, -1, 20)
    second.on_fence_error(0, NO)
    assert {entry_id for entry_id, _ in reads(second.poll())} == {0}


def test_r20_a_good_copy_that_comes_late_still_counts() -> None:
    state = fenced(ledger(), batch_entries=2)
    state.poll()
    state.on_entry(0, 0, 10)
    say_no(state, 1, 0, 1)
    state.poll()
    assert state.on_entry(1, 2, 20)
    assert len(writes(state.poll())) == 3
    for entry_id in (0, 1):
        state.on_written(entry_id, 0, "a")
        state.on_written(entry_id, 1, "b")
    assert {entry_id for entry_id, _ in reads(state.poll())} == {2, 3}


def test_r20_the_end_is_never_below_the_lac_that_was_heard() -> None:
    state = fenced(ledger(), lac=6, length=80)
    state.poll()
    say_no(state, 7, 0, 1)
    state.poll()
    state.on_entry(6, 0, 70)
    assert closing(state.poll()).last_entry_id == 6


# Length ---------------------------------------------------------------------------------------


def test_the_length_is_that_of_the_last_entry_and_not_of_one_that_was_not_found() -> None:
    state = fenced(ledger(), lac=4, length=60)  # told by entry 5, which is not found
    state.poll()
    say_no(state, 5, 0, 1)
    assert reads(state.poll()) == [(4, 1), (4, 2), (4, 0)]
    state.on_read_error(4, 1, LOST)
    assert state.poll() == []
    assert not state.on_entry(4, 2, 50)
    assert closing(state.poll()).length == 50


def test_the_length_that_was_heard_has_to_do_if_nobody_gives_the_last_entry() -> None:
    state = fenced(ledger(), lac=4, length=60)
    state.poll()
    say_no(state, 5, 0, 1)
    state.poll()
    for index in range(3):
        state.on_read_error(4, index, RequestTimeoutError("slow"))
    assert closing(state.poll()).length == 60


def test_a_recovery_that_is_told_to_stop_stops() -> None:
    state = fenced(ledger())
    state.poll()
    state.fail(LOST)
    assert state.poll() == [RecoveryFailed(LOST)]
    say_no(state, 0, 0, 1)
    assert state.poll() == []
