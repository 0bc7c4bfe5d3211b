"""Cutting into tasks, and the offsets of a query; no Spark needed."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumbook.errors import ConfigError
from quorumbook.spark.request.offsets import (
    LATE_IDS,
    Offset,
    Offsets,
    birth_of,
    fair_shares,
    is_same_stream,
)
from quorumbook.spark.request.planning import Piece, cut, cuts_of, plan
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.views import Extent, View
from quorumbook.spark.source.relocation import relocated
from quorumbook.streams.format.names import MERGED_KEY


@st.composite
def pieces(draw):
    found = []
    for ledger_id in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 50))
        entries = draw(st.integers(1, 60))
        size = draw(st.integers(0, 5000))
        records = draw(st.integers(0, 300))
        starts = sorted(draw(st.sets(st.integers(first, first + entries), max_size=3)))
        piece = Piece("", ledger_id, first, first + entries - 1, size, records)
        found.append(piece._replace(fragment_starts=tuple(starts)))
    return found


def entries_of(pieces):
    return [(p.ledger_id, n) for p in pieces for n in range(p.first_entry, p.last_entry + 1)]


@given(pieces(), st.integers(1, 4000), st.integers(0, 100), st.integers(1, 70))
def test_tasks_cover_every_entry_exactly_once_and_in_order(pieces, target, most, least):
    tasks = plan(pieces, target_bytes=target, max_records=most, min_tasks=least)
    assert entries_of(p for task in tasks for p in task) == entries_of(pieces)
    assert all(tasks)
    assert len(tasks) >= min(least, len(entries_of(pieces)))


def by_source(pieces):
    sources = {}
    for piece in pieces:
        sources.setdefault(piece.source, []).append(piece)
    return sources


@st.composite
def planned(draw):
    """Pieces of streams of several segments each, and their tasks."""
    found = []
    for name in sorted(draw(st.sets(st.sampled_from("abcde"), max_size=4))):
        for piece in draw(pieces()):
            found.append(piece._replace(name=name, ledger_id=len(found), segment=len(found)))
    given = {"target_bytes": draw(st.integers(1, 4000)), "min_tasks": draw(st.integers(1, 70))}
    return found, plan(found, max_records=draw(st.integers(0, 100)), **given)


def streams_of(task):
    """Return the stream of each of a task's entries."""
    return [piece.name for piece in task for _ in range(piece.entries)]


@given(planned())
def test_tasks_are_cut_again_where_their_cuts_say_whatever_is_known_of_sizes(of):
    found, tasks = of
    cuts = cuts_of(tasks)
    known_better = [piece._replace(size_bytes=7, records=1, fragment_starts=()) for piece in found]
    again = cut(by_source(known_better), cuts)
    assert [entries_of(task) for task in again] == [entries_of(task) for task in tasks]
    stored = json.loads(json.dumps(Offsets("c", {}, cuts=cuts).encode()))
    assert Offsets.decode(stored, "c").cuts == cuts


@given(planned(), st.data())
def test_merged_segments_are_cut_where_the_many_were(of, data):
    found, tasks = of
    merged = {}
    for name, own in by_source(found).items():
        count = data.draw(st.integers(1, len(own)))
        entries = sum(piece.entries for piece in own[:count])
        one = own[0]._replace(ledger_id=99, first_entry=0, last_entry=entries - 1)
        merged[name] = [one, *own[count:]]
    again = cut(merged, cuts_of(tasks))
    assert [streams_of(task) for task in again] == [streams_of(task) for task in tasks]


@given(planned(), st.data())
def test_what_is_truncated_meanwhile_is_missing_in_its_own_task_alone(of, data):
    found, tasks = of
    left, gone = {}, set()
    for name, own in by_source(found).items():
        dropped = data.draw(st.integers(0, len(own)))
        left[name] = own[dropped:]
        gone |= set(entries_of(own[:dropped]))
    again = cut(left, cuts_of(tasks))
    expected = [[each for each in entries_of(task) if each not in gone] for task in tasks]
    assert [entries_of(task) for task in again] == (expected if any(expected) else [])


@given(pieces(), st.integers(1, 4000), st.integers(0, 100))
def test_a_task_is_bounded_unless_it_is_one_entry(pieces, target, most):
    for task in plan(pieces, target_bytes=target, max_records=most):
        count = len(entries_of(task))
        if count == 1:
            continue
        # A part's share is rounded, and its entries are estimated to be alike.
        slack = max(-(-p.size_bytes // max(p.last_entry - p.first_entry + 1, 1)) for p in task)
        assert sum(p.size_bytes for p in task) <= target + slack
        if most:
            slack = max(-(-p.records // (p.last_entry - p.first_entry + 1)) for p in task)
            assert sum(p.records for p in task) <= most + slack


def test_cuts_are_where_fragments_begin_unless_one_is_too_large():
    piece = Piece("", 1, 0, 99, 100_000, 100, fragment_starts=(30, 55, 60))
    (tasks,) = zip(*plan([piece], target_bytes=45_000), strict=True)
    assert [(p.first_entry, p.last_entry) for p in tasks] == [(0, 29), (30, 59), (60, 99)]
    (tasks,) = zip(*plan([piece], target_bytes=26_000), strict=True)
    assert [(p.first_entry, p.last_entry) for p in tasks] == [
        (0, 14), (15, 29), (30, 54), (55, 59), (60, 79), (80, 99),
    ]  # fmt: skip


def test_nothing_is_no_task():
    assert plan([], target_bytes=1) == []
    assert plan([Piece("", 1, 0, -1, 0, 0)], target_bytes=1) == []


def test_small_ledgers_are_packed_and_large_ones_cut():
    small = [Piece("", n, 0, 99, 100_000, 100) for n in range(10_000)]
    tasks = plan(small, target_bytes=128 << 20)
    assert len(tasks) <= 10
    large = Piece("", 1, 0, 9_999, 10 << 30, 10_000)
    assert len(plan([large], target_bytes=128 << 20)) in range(80, 85)


def test_as_many_tasks_as_were_asked_for_and_no_more():
    for size_bytes in range(10_000, 10_400):
        piece = Piece("", 1, 0, 99, size_bytes, 100)
        assert len(plan([piece], target_bytes=128 << 20, min_tasks=4)) == 4


def test_slots_stay_with_the_first_and_the_last_part():
    piece = Piece("s", 1, 10, 19, 1000, 100, start_slot=3, end_slot=7)
    parts = [p for task in plan([piece], target_bytes=1, min_tasks=10) for p in task]
    assert [p.start_slot for p in parts] == [3] + [0] * 9
    assert [p.end_slot for p in parts] == [0] * 9 + [7]


def test_many_ledgers_are_planned_in_one_pass():
    """Each piece is looked at a bounded number of times; bench/spark.py has the seconds."""
    looked_at = 0

    class Counted(list):
        def __iter__(self):
            nonlocal looked_at
            for piece in super().__iter__():
                looked_at += 1
                yield piece

    many = Counted(Piece("", n, 0, 99, 100_000, 100) for n in range(50_000))
    tasks = plan(many, target_bytes=128 << 20)
    assert sum(map(len, tasks)) == 50_000
    assert looked_at == 100_000


names = st.text("abc/", min_size=1, max_size=5)
offsets = st.builds(Offset, *[st.integers(0, 2**62)] * 3, st.integers(0, 9), st.integers(-1, 2**62))
of_streams = st.builds(Offsets, st.just("c"), st.dictionaries(names, offsets))
of_ledgers = st.builds(
    Offsets, st.just("c"), st.just({}),
    st.dictionaries(
        st.integers(0, 2**62).map(str), st.integers(0).map(lambda n: Offset(0, 0, n))
    ),
    st.integers(LATE_IDS, 2**62),
)  # fmt: skip
behind = st.frozensets(st.integers(0, LATE_IDS - 1))
late = st.builds(
    lambda of, behind: replace(of, missing=frozenset(of.highest_ledger - n for n in behind)),
    of_ledgers, behind,
)  # fmt: skip


@given(st.one_of(of_streams, of_ledgers, late))
def test_offsets_survive_the_checkpoint_and_have_one_text(found):
    text = json.dumps(found.encode())
    assert Offsets.decode(json.loads(text), "c") == found
    turned = Offsets(
        "c", dict(reversed(found.streams.items())), dict(reversed(found.ledgers.items())),
        found.highest_ledger, missing=frozenset(sorted(found.missing, reverse=True)),
    )  # fmt: skip
    assert json.dumps(turned.encode()) == text


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=5))
def test_a_ledger_is_new_once_whenever_it_comes(looks):
    found, there, new = Offsets("c"), set(), []
    for coming in looks:
        there |= coming
        due = {n for n in there if found.is_new(n)}
        new += sorted(due)
        highest = max(found.highest_ledger, *due, 0)
        found = replace(found, highest_ledger=highest, missing=found.missing_up_to(highest, there))
        found = Offsets.decode(json.loads(json.dumps(found.encode())), "c")
    assert sorted(new) == sorted(there)


def test_ledgers_that_may_come_late_are_bounded_however_far_ids_are_apart():
    first = Offsets("c").missing_up_to(10**15, {10**15, 10**15 - 3})
    found = Offsets("c", highest_ledger=10**15, missing=first)
    assert len(first) == LATE_IDS - 2
    assert found.encode()["m"] == [
        [10**15 - LATE_IDS + 1, 10**15 - 4], [10**15 - 2, 10**15 - 1],
    ]  # fmt: skip
    assert found.is_new(10**15 - LATE_IDS + 1)
    assert not found.is_new(10**15 - LATE_IDS)
    assert len(found.missing_up_to(10**15 + 7, ())) == LATE_IDS - 2


def test_a_checkpoint_of_an_earlier_release_has_no_ledgers_that_come_late():
    found = Offsets.decode({"c": "c", "h": 57, "l": {"12": 40}, "v": 1}, "c")
    assert not found.missing
    assert found.missing_up_to(60, {59}) == {58, 60}


@given(*[st.integers(1, 2**64 - 1)] * 2, *[st.integers(0, 2**63 - 1)] * 2)
def test_a_stream_is_told_from_another_of_its_name_however_its_segments_are_numbered(
    stream, other, numbering, later
):
    birth = birth_of(stream, numbering)
    assert is_same_stream(birth, birth_of(stream, later))
    assert is_same_stream(birth, birth_of(other, later)) == (stream == other)
    assert birth == birth_of(other, later) or (stream, numbering) != (other, later)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Its segment only got another number, and is read up to here, or to its end.
        (Offset(5, 4, 3, 0, 11), (6, 3, 0)),
        (Offset(5, 4, 3, 2, 11), (6, 3, 2)),
        (Offset(5, 5, 0, 0, 11), (7, 0, 0)),
        # It was merged, and so was what it was merged into.
        (Offset(5, 2, 2, 0, 21), (7, 7, 0)),
        (Offset(5, 3, 0, 0, 21), (7, 10, 0)),
        # Nobody knows, or nothing has moved there.
        (Offset(5, 2, 2, 0, 22), (2, 2, 0)),
        (Offset(5, 2, 2, 0, -1), (2, 2, 0)),
        (Offset(5, 9, 2, 0, 21), (9, 2, 0)),
        (Offset(6, 2, 2, 0, 21), (2, 2, 0)),
    ],
)
async def test_an_offset_is_found_again_where_its_ledgers_entries_are(before, after):
    notes = {11: {}, 50: {MERGED_KEY: b"[[20,0,5],[21,5,5]]"}}
    extents = Extent(6, 11, 0, 0, 10, True), Extent(7, 50, 0, 0, 20, True)
    view = View("s", birth_of(5, 50), extents, 8, -1, 7)

    async def read(ledger_id):
        return SimpleNamespace(custom_metadata=notes[ledger_id])

    found = await relocated(view, before, read)
    assert (found.place, found.ledger) == (after, before.ledger)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"c": "other", "s": {}, "v": 1}, "checkpoint is of cluster other"),
        ({"c": "c", "s": {}, "v": 2}, "version 2"),
        ({"c": "c", "s": {"a": [1, 2]}, "v": 1}, "not offsets"),
        ({"c": "c", "s": {"a": [1, 2, -1]}, "v": 1}, "not offsets"),
        ({"c": "c", "s": {"a": [1, 2, 1.5]}, "v": 1}, "not offsets"),
        ({"c": "c", "l": {"x": 1}, "v": 1}, "not offsets"),
        ({"c": "c", "h": 5, "l": {}, "m": [[3, 6]], "v": 1}, "not offsets"),
        ({"c": "c", "h": 5, "l": {}, "m": [[3, 2]], "v": 1}, "not offsets"),
        ({"c": "c", "h": 5, "l": {}, "m": [3], "v": 1}, "not offsets"),
        ({"s": {}}, "not offsets"),
        ([], "not offsets"),
    ],
)
def test_offsets_that_are_not_ours_are_refused(stored, message):
    with pytest.raises(ConfigError, match=message):
        Offsets.decode(stored, "c")


@given(st.dictionaries(names, st.integers(0, 50)), st.integers(0, 200), st.integers(0, 9))
def test_a_limit_is_used_up_and_divided_fairly(available, limit, turn):
    shares = fair_shares(available, limit, turn)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(shares[name] <= available[name] for name in available)
    hungry = [shares[name] for name in available if shares[name] < available[name]]
    if hungry:
        assert max(shares.values()) <= max(hungry) + 1
        assert max(hungry) - min(hungry) <= 1


def test_nobody_starves_where_there_is_less_than_one_for_each():
    available = dict.fromkeys("abcdefgh", 10)
    served = {name for turn in range(8) for name, n in fair_shares(available, 1, turn).items() if n}
    assert served == set(available)


@pytest.mark.parametrize(("options", "selected", "others"), [
    ({"streams": "a,b"}, ["a", "b", "a/p0", "b/p12"], ["c", "a/b", "a/px", "ab", "c/p0"]),
    ({"streamPattern": "a.*"}, ["a", "ab", "ab/p3", "a/b"], ["b", "b/p1", "ba"]),
    ({"ledgerIds": "3,7-9"}, ["3", "7", "9"], ["2", "4", "10"]),
    ({"ledgerFilter": "k=v"}, ["0", "9"], []),
])  # fmt: skip
def test_what_is_selected_can_be_told_of_what_is_not_there(options, selected, others):
    kinds = {"streams": "stream", "streamPattern": "stream"}
    selection = ReadOptions.of({"metadataServiceUri": "zk://x/ledgers", **options}).selection
    assert kinds.get(next(iter(options)), "ledger") == selection.kind.value
    assert all(map(selection.selects, selected))
    assert not any(map(selection.selects, others))
