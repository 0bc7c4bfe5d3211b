"""The copy machine, step by step."""

from __future__ import annotations

import pytest

from quorumbook.errors import (
    ConnectFailedError,
    DigestMismatchError,
    MetadataVersionConflict,
    NoSuchEntryError,
    ReadFailedError,
    WriteFailedError,
)
from quorumbook.ledger.machines.copy import (
    CheckEntries,
    Copied,
    CopyFailed,
    CopyState,
    ReadEntries,
    ReleaseBatch,
    Strand,
    WriteEntries,
    strands_to_mend,
    strands_to_move,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.transitions import moved_metadata


def ledger(size: int, quorum: int, *, last: int = 9, fragments: int = 1) -> LedgerMetadata:
    names = tuple("abcdefg"[:size])
    metadata = LedgerMetadata(
        ledger_id=7,
        ensemble_size=size,
        write_quorum_size=quorum,
        ack_quorum_size=1,
        fragments=tuple(Fragment(10 * n, names) for n in range(fragments)),
    )
    return metadata.closed(last, 100)


def copy(metadata: LedgerMetadata, **options) -> CopyState:
    fragment = metadata.fragments[0]
    strands = strands_to_move(metadata, fragment, 9, [0])
    return CopyState(metadata, fragment, strands, {0: "x"}, **options)


def test_a_batch_is_read_written_and_read_back_before_it_counts() -> None:
    state = copy(ledger(3, 3), batch_entries=20, last_resort=["a"])
    ids = range(10)
    assert state.poll() == [ReadEntries(0, "b", ids)]
    state.on_entries(0, 10)
    assert state.poll() == [WriteEntries(0, 0, "x", ids)]
    assert not state.is_done
    state.on_written(0, 0)
    assert state.poll() == [CheckEntries(0, 0, "x", ids)]
    assert state.copied_entries == 0
    state.on_checked(0, 0)
    assert state.poll() == [ReleaseBatch(0), Copied()]
    assert (state.copied_entries, state.is_done) == (10, True)
    assert state.poll() == []


def test_r30_what_does_not_come_back_from_its_new_bookie_is_not_copied() -> None:
    state = copy(ledger(3, 3), batch_entries=20)
    state.poll()
    state.on_entries(0, 10)
    state.on_written(0, 0)
    state.poll()
    error = NoSuchEntryError("no entry 3")
    state.on_target_error(0, 0, error)
    assert state.poll() == [CopyFailed(error)]
    assert state.failed_target == "x"


def test_the_rest_of_a_short_answer_is_asked_for_again() -> None:
    state = copy(ledger(3, 3), batch_entries=6)
    state.poll()
    state.on_entries(0, 2)
    effects = state.poll()
    assert WriteEntries(0, 0, "x", range(2)) in effects
    assert [e.entry_ids for e in effects if isinstance(e, ReadEntries)] == [
        range(2, 6), range(6, 10),
    ]  # fmt: skip


def test_entries_are_asked_of_all_that_have_them_and_last_of_the_one_given_up() -> None:
    state = copy(ledger(3, 3), batch_entries=20, last_resort=["a"])
    asked = []
    for error in (NoSuchEntryError("no"), DigestMismatchError("bad"), ConnectFailedError("gone")):
        asked += [e.bookie_id for e in state.poll()]
        state.on_read_error(0, error)
    assert asked == ["b", "c", "a"]
    (failed,) = state.poll()
    assert isinstance(failed.error, DigestMismatchError)
    assert state.failed_target is None


def test_a_bookie_that_is_drained_gives_its_own_copies() -> None:
    state = copy(ledger(1, 1), batch_entries=20)
    assert state.poll() == [ReadEntries(0, "a", range(10))]


def test_who_cannot_be_reached_is_asked_later_from_then_on() -> None:
    state = copy(ledger(3, 3), batch_entries=5, last_resort=["a"])
    state.poll()
    state.on_read_error(0, ConnectFailedError("gone", bookie_id="b"))
    assert state.poll() == [ReadEntries(0, "c", range(5))]
    state.on_entries(0, 5)
    assert ReadEntries(1, "c", range(5, 10)) in state.poll()


def test_s69_an_entry_that_nobody_else_stores_fails_the_copy_with_its_name() -> None:
    state = copy(ledger(3, 1), batch_entries=20, last_resort=["a"])
    assert state.poll() == [ReadEntries(0, "a", range(0, 10, 3))]
    state.on_read_error(0, ConnectFailedError("bookie a is gone"))
    (failed,) = state.poll()
    assert isinstance(failed.error, ReadFailedError)
    assert "entry 0" in str(failed.error)


def test_a_damaged_copy_is_mended_from_the_others_and_not_from_itself() -> None:
    metadata = ledger(3, 3)
    strands = strands_to_mend(metadata, {1: [range(2, 4), range(8, 9)]})
    state = CopyState(metadata, metadata.fragments[0], strands, {1: "b"}, batch_entries=20)
    assert state.poll() == [ReadEntries(0, "c", range(2, 4))]
    state.on_read_error(0, NoSuchEntryError("no"))
    assert state.poll() == [ReadEntries(0, "a", range(2, 4))]
    state.on_read_error(0, NoSuchEntryError("no"))
    (failed,) = state.poll()
    assert isinstance(failed.error, NoSuchEntryError)


def test_s75_only_the_write_set_of_a_lost_position_is_copied() -> None:
    metadata = ledger(3, 2)
    strands = strands_to_move(metadata, metadata.fragments[0], 9, [0])
    # Position 0 stores the entries e with e or e + 1 divisible by 3.
    assert strands == [Strand(range(0, 10, 3), (0,)), Strand(range(2, 10, 3), (0,))]
    both = strands_to_move(metadata, metadata.fragments[0], 9, [0, 1])
    assert both == [
        Strand(range(0, 10, 3), (0, 1)),
        Strand(range(1, 10, 3), (1,)),
        Strand(range(2, 10, 3), (0,)),
    ]


def test_s75_a_fragment_above_the_end_has_nothing_to_copy() -> None:
    metadata = ledger(3, 3, last=9, fragments=2)
    above = metadata.fragments[1]
    strands = strands_to_move(metadata, above, metadata.last_entry_of(above), [0, 2])
    assert strands == []
    assert CopyState(metadata, above, strands, {0: "x", 2: "y"}).poll() == [Copied()]


def test_s66_an_empty_closed_ledger_needs_no_entry_but_gets_its_ensemble() -> None:
    metadata = ledger(3, 3, last=-1)
    fragment = metadata.fragments[0]
    assert strands_to_move(metadata, fragment, -1, [0]) == []
    moved = moved_metadata(metadata, fragment, -1, {"a": "x"})
    assert moved is not None
    assert moved.ensemble == ("x", "b", "c")


# What is recorded ------------------------------------------------------------------------------


def test_several_bookies_are_replaced_at_once() -> None:
    metadata = ledger(3, 3, last=19, fragments=2)
    moved = moved_metadata(metadata, metadata.fragments[0], 9, {"a": "x", "c": "y"})
    assert moved is not None
    assert [f.ensemble for f in moved.fragments] == [("x", "b", "y"), ("a", "b", "c")]


def test_what_is_recorded_already_is_not_written_again() -> None:
    metadata = ledger(3, 3)
    moved = moved_metadata(metadata, metadata.fragments[0], 9, {"a": "x"})
    assert moved is not None
    assert moved_metadata(moved, metadata.fragments[0], 9, {"a": "x"}) is None


def test_s28_a_writers_new_fragment_is_kept_when_an_older_one_was_copied() -> None:
    opened = LedgerMetadata(
        ledger_id=7, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2,
        fragments=(Fragment(0, tuple("abc")), Fragment(10, tuple("abd"))),
    )  # fmt: skip
    copied = opened.fragments[0]
    theirs = opened.with_fragment(15, ("a", "b", "e"))
    moved = moved_metadata(theirs, copied, 9, {"c": "z"})
    assert moved is not None
    assert [f.ensemble for f in moved.fragments] == [
        tuple("abz"), tuple("abd"), tuple("abe"),
    ]  # fmt: skip


def test_s28_the_last_fragment_of_an_open_ledger_is_the_writers() -> None:
    opened = LedgerMetadata(
        ledger_id=7, ensemble_size=3, write_quorum_size=3, ack_quorum_size=2,
        fragments=(Fragment(0, tuple("abc")),),
    )  # fmt: skip
    with pytest.raises(MetadataVersionConflict):
        moved_metadata(opened, opened.fragments[0], 9, {"c": "z"})


@pytest.mark.parametrize("last", [8, 10])
def test_r30_a_fragment_that_ends_elsewhere_than_what_was_copied_is_not_recorded(last) -> None:
    metadata = ledger(3, 3)
    with pytest.raises(MetadataVersionConflict):
        moved_metadata(metadata, metadata.fragments[0], last, {"a": "x"})


def test_r30_an_ensemble_that_was_changed_meanwhile_is_left_as_it_is() -> None:
    metadata = ledger(3, 3)
    theirs = metadata.replace_bookie(0, "b", "z")
    with pytest.raises(MetadataVersionConflict):
        moved_metadata(theirs, metadata.fragments[0], 9, {"a": "x"})


def test_a_failure_from_outside_ends_the_copy() -> None:
    state = copy(ledger(3, 3))
    state.poll()
    error = WriteFailedError("stopped")
    state.fail(error)
    assert state.poll() == [CopyFailed(error)]
    state.on_entries(0, 4)
    state.on_read_error(0, error)
    assert state.poll() == []
