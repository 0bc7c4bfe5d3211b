"""How ledger metadata may change."""

from __future__ import annotations

import dataclasses

import pytest

from quorumbook.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    MetadataFormatError,
    MetadataVersionConflict,
)
from quorumbook.ledger.machines.append import ChangeEnsemble
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.ledger.transitions import changed_metadata, closed_metadata

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    fragments=(Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "b", "d"))),
    password=b"secret",
    creator_token=5,
    custom_metadata={"k": b"v"},
)


def test_the_state_goes_from_open_over_recovery_to_closed() -> None:
    recovering = OPEN.in_recovery()
    closed = recovering.closed(12, 340)
    assert recovering.state is LedgerState.IN_RECOVERY
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 12, 340)
    assert OPEN.closed(12, 340) == closed


@pytest.mark.parametrize("change", [lambda m: m.in_recovery(), lambda m: m.closed(12, 1)])
def test_a_closed_ledger_stays_closed(change) -> None:
    with pytest.raises(LocalProtocolError):
        change(OPEN.closed(12, 340))


def test_a_change_keeps_custom_metadata_and_drops_the_creators_token() -> None:
    for changed in (OPEN.in_recovery(), OPEN.closed(9, 1), OPEN.with_fragment(11, "xyz")):
        assert changed.custom_metadata == {"k": b"v"}
        assert changed.creator_token is None


def test_what_a_creation_adds_is_all_that_changes() -> None:
    made = OPEN.as_created(7, 9)
    assert made == dataclasses.replace(OPEN, creator_token=7)
    assert (made.incarnation, OPEN.incarnation) == (9, None)
    assert dataclasses.replace(made) == made


def test_a_later_fragment_is_appended_and_one_of_the_same_start_replaces() -> None:
    assert OPEN.with_fragment(11, "xyz").fragments == (*OPEN.fragments, Fragment(11, tuple("xyz")))
    replaced = OPEN.with_fragment(10, "xyz")
    assert replaced.fragments == (OPEN.fragments[0], Fragment(10, tuple("xyz")))


def test_r03_an_earlier_fragment_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        OPEN.with_fragment(9, "xyz")


def test_a_bookie_never_stands_twice_in_an_ensemble() -> None:
    with pytest.raises(LocalProtocolError):
        OPEN.with_fragment(12, "xxz")


@pytest.mark.parametrize("metadata", [OPEN.in_recovery(), OPEN.closed(12, 1)])
def test_the_writer_adds_no_fragment_to_a_ledger_that_is_not_open(metadata) -> None:
    with pytest.raises(LocalProtocolError):
        metadata.with_fragment(20, "xyz")


def test_a_ledger_is_not_closed_before_its_last_fragment() -> None:
    assert OPEN.closed(9, 1).last_entry_id == 9
    with pytest.raises(LocalProtocolError):
        OPEN.closed(8, 1)


def test_replication_changes_old_fragments_and_the_last_one_only_when_closed() -> None:
    changed = OPEN.replace_bookie(0, "c", "e")
    assert changed.fragments == (Fragment(0, ("a", "b", "e")), OPEN.fragments[1])
    with pytest.raises(LocalProtocolError):
        OPEN.replace_bookie(10, "d", "e")
    assert OPEN.closed(12, 1).replace_bookie(10, "d", "e").ensemble == ("a", "b", "e")


@pytest.mark.parametrize(("first", "old", "new"), [(0, "x", "y"), (0, "a", "b"), (5, "a", "y")])
def test_replication_of_what_is_not_there_is_refused(first: int, old: str, new: str) -> None:
    with pytest.raises(LocalProtocolError):
        OPEN.replace_bookie(first, old, new)


def test_an_entry_belongs_to_the_last_fragment_that_starts_at_or_before_it() -> None:
    assert [OPEN.fragment_of(e).first_entry_id for e in (0, 9, 10, 1 << 40)] == [0, 0, 10, 10]
    with pytest.raises(LocalProtocolError):
        OPEN.fragment_of(-1)


def test_a_fragment_ends_before_the_next_one_or_where_the_ledger_does() -> None:
    first, last = OPEN.fragments
    assert OPEN.last_entry_of(first) == 9
    assert OPEN.last_entry_of(last, last_add_confirmed=15) == 15
    assert OPEN.last_entry_of(last, last_add_confirmed=3) == 9
    assert OPEN.closed(12, 1).last_entry_of(last) == 12
    with pytest.raises(LocalProtocolError):
        OPEN.last_entry_of(last)


@pytest.mark.parametrize(
    "fields",
    [
        {"write_quorum_size": 4},
        {"ack_quorum_size": 4},
        {"ack_quorum_size": 0},
        {"fragments": ()},
        {"fragments": (Fragment(0, ("a", "b")),)},
        {"fragments": (Fragment(5, tuple("abc")), Fragment(5, tuple("abd")))},
        {"fragments": (Fragment(-1, tuple("abc")),)},
        {"last_entry_id": 3},
        {"length": 3},
        {"state": LedgerState.CLOSED, "last_entry_id": -2},
        {"format_version": 4},
    ],
)
def test_metadata_that_contradicts_itself_is_refused(fields) -> None:
    with pytest.raises(MetadataFormatError):
        dataclasses.replace(OPEN, **fields)


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(OPEN)


# Compare-and-set: applied to what stands there now ---------------------------------------------

CHANGE = ChangeEnsemble({2: "d"}, 14, 1)


def test_r03_a_new_fragment_is_applied_at_the_start_that_was_sampled() -> None:
    changed, replaced = changed_metadata(OPEN, CHANGE, {2: "e"})
    assert changed.last_fragment == Fragment(14, ("a", "b", "e"))
    assert replaced == {2}


def test_s28_a_conflict_with_replication_keeps_what_replication_wrote() -> None:
    theirs = OPEN.replace_bookie(0, "c", "z")
    changed, _ = changed_metadata(theirs, CHANGE, {2: "e"})
    assert [f.ensemble for f in changed.fragments] == [
        ("a", "b", "z"),
        ("a", "b", "d"),
        ("a", "b", "e"),
    ]


def test_s27_a_position_that_was_changed_already_is_not_changed_again() -> None:
    written, _ = changed_metadata(OPEN, CHANGE, {2: "e"})
    assert changed_metadata(written, CHANGE, {2: "f"}) == (written, set())


def test_s27_a_present_member_is_not_taken_a_second_time() -> None:
    assert changed_metadata(OPEN, CHANGE, {2: "a"}) == (OPEN, set())


def test_r04_an_ensemble_change_that_finds_a_recovery_means_fenced() -> None:
    with pytest.raises(LedgerFencedError):
        changed_metadata(OPEN.in_recovery(), CHANGE, {2: "e"})
    with pytest.raises(LedgerClosedError):
        changed_metadata(OPEN.closed(13, 1), CHANGE, {2: "e"})


def test_r05_a_close_that_was_done_already_at_the_same_end_is_a_success() -> None:
    assert closed_metadata(OPEN, 13, 99) == OPEN.closed(13, 99)
    assert closed_metadata(OPEN.closed(13, 99), 13, 99) is None


@pytest.mark.parametrize("end", [(12, 99), (13, 98), (14, 99)])
def test_r05_a_close_at_another_end_is_an_error(end: tuple[int, int]) -> None:
    with pytest.raises(MetadataVersionConflict):
        closed_metadata(OPEN.closed(*end), 13, 99)


def test_r05_a_close_that_finds_a_recovery_is_an_error() -> None:
    with pytest.raises(LedgerFencedError):
        closed_metadata(OPEN.in_recovery(), 13, 99)
