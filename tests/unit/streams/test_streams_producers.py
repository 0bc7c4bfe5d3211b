"""Who appended what: which producers are remembered, and where their records are."""

from __future__ import annotations

import pytest

from quorumbook.streams.format.control import Chunk, EntryNote, ProducerRun
from quorumbook.streams.format.position import Position
from quorumbook.streams.writing import producers
from quorumbook.streams.writing.appended import Placement
from quorumbook.streams.writing.producers import Producers

DAY_MS = 24 * 3600 * 1000


def stored(known: Producers, name: str, number: int, now_ms: int, count: int = 1) -> None:
    where = Placement(9, Position(1, number, 1), count)
    known.on_stored(name, number, 100 + number, where, now_ms)


def test_a_producer_that_was_idle_for_a_week_is_forgotten_with_its_places() -> None:
    known = Producers()
    stored(known, "old", 0, 0)
    stored(known, "new", 0, DAY_MS)
    week_ms = 7 * DAY_MS
    assert [state.name for state in known.snapshot(week_ms - 1)] == ["old", "new"]
    assert [state.name for state in known.snapshot(week_ms)] == ["new"]
    assert known.last_number("old") == -1
    assert known.where("old", 0) == (None, -1)
    assert known.last_number("new") == 0


def test_of_too_many_producers_those_that_appended_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producers, "_MAX_PRODUCERS", 2)
    known = Producers()
    for name in "a", "b", "c":
        stored(known, name, 0, 1)
    stored(known, "a", 1, 1)
    assert [state.name for state in known.snapshot(2)] == ["c", "a"]
    assert [known.last_number(name) for name in "abc"] == [1, -1, 0]


def test_a_record_is_found_within_its_run_and_nowhere_else() -> None:
    known = Producers()
    stored(known, "p", 0, 1, count=3)
    stored(known, "p", 10, 1, count=2)
    found = [known.where("p", number) for number in (0, 2, 3, 10, 11, 12)]
    assert found == [
        (Placement(9, Position(1, 0, 1), 1), 100),
        (Placement(9, Position(1, 0, 3), 1), 102),
        (None, -1),
        (Placement(9, Position(1, 10, 1), 1), 110),
        (Placement(9, Position(1, 10, 2), 1), 111),
        (None, -1),
    ]
    assert known.last_number("p") == 11


def test_a_record_in_chunks_is_where_the_first_of_them_is() -> None:
    known = Producers()
    first = Position(4, 7, 1)
    run = ProducerRun(0, 5, 1)
    note = EntryNote(1, "p", (run,), chunk=Chunk(2, 3, first))
    known.on_note(note, 9, Position(4, 9, 1), 52)
    assert known.where("p", 5) == (Placement(9, first, 1), 50)
    # Its beginning may be in the segment before, whose ledger this one does not know.
    known.on_note(note, 10, Position(5, 0, 1), 52)
    assert known.where("p", 5) == (Placement(-1, first, 1), 50)


def test_a_snapshot_replaces_what_was_known_before_it() -> None:
    known = Producers()
    stored(known, "gone", 3, 1)
    other = Producers()
    stored(other, "p", 7, 1)
    known.on_note(EntryNote(snapshot=other.snapshot(2)), 9, Position(1, 0, 1), 0)
    assert (known.last_number("gone"), known.last_number("p")) == (-1, 7)
    assert known.where("gone", 3) == (None, -1)
    # Of a number that only a snapshot tells the ledger is not known.
    assert known.where("p", 7) == (Placement(-1, Position(1, 7, 1), 1), 107)
