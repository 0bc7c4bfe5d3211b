"""The torture's checker finds each kind of broken promise, and nothing where none is broken."""

from __future__ import annotations

import pytest

from faults.torture.checker import check
from faults.torture.history import Scribe, payload, recorded, writer_of


def fact(what, by="a", ledger=1, **more):
    return {"what": what, "by": by, "at": 0.0, "ledger": ledger, **more}


def acked(first, last, writer=7, by="writer"):
    return fact("acked", by, first=first, last=last, writer=writer)


def read(first, last, writer=7, by="reader"):
    return fact("read", by, first=first, last=last, writer=writer)


def closed(last, by="reader"):
    return fact("closed", by, last=last)


def whole(last, by="reader"):
    return fact("whole", by, last=last)


def lac(last, handle=1, by="tail"):
    return fact("lac", by, last=last, handle=handle)


GOOD = [
    fact("created", "writer"), acked(0, 4), acked(5, 9), lac(3), lac(9), read(0, 9, by="tail"),
    closed(11), read(0, 11), whole(11), closed(11, "rival"), fact("deleting"),
]  # fmt: skip


def rules(facts):
    return {violation.rule for violation in check(facts)}


def test_a_history_in_which_all_is_kept_has_no_violation():
    assert check(GOOD) == []
    assert check([*GOOD, fact("failed", of="append", error="x")]) == []


def test_the_order_of_processes_does_not_matter():
    for is_reversed in (False, True):
        assert check(sorted(GOOD, key=lambda each: each["by"], reverse=is_reversed)) == []


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        pytest.param("lost", [acked(10, 12)], id="an acknowledged entry behind the end"),
        pytest.param("changed", [read(4, 4, writer=8)], id="an id read with two contents"),
        pytest.param("changed", [acked(9, 9, writer=8)], id="an id acknowledged to two writers"),
        pytest.param("changed", [fact("alien", entry=3)], id="an entry that nobody wrote"),
        pytest.param("winners", [acked(9, 9, writer=8)], id="two writers with acknowledgements"),
        pytest.param("winners", [fact("created", "rival")], id="two who made one ledger"),
        pytest.param("ends", [closed(12, "rival")], id="two ends"),
        pytest.param("back", [lac(8)], id="a last add confirmed that goes back"),
        pytest.param("back", [lac(12)], id="a last add confirmed behind the end"),
        pytest.param("back", [read(12, 12)], id="an entry read behind the end"),
        pytest.param("stuck", [fact("stuck", why="so")], id="stuck"),
        pytest.param("limbo", [{"what": "limbo", "by": "harness", "why": "so"}], id="limbo"),
        pytest.param("hung", [fact("hung", why="so")], id="hung"),
    ],
)
def test_each_broken_promise_is_found(rule, more):
    assert rule in rules([*GOOD, *more])


def test_two_who_claimed_one_ledger_are_found():
    assert rules([fact("claimed", "a"), fact("claimed", "b")]) == {"winners"}
    assert not rules([fact("claimed", "a"), fact("claimed", "b", ledger=2)])


def test_what_was_acknowledged_has_to_be_read_to_the_end():
    assert rules([acked(0, 0)]) == {"unread"}
    assert rules([acked(0, 0), closed(1), read(0, 0)]) == {"unread"}
    assert rules([acked(0, 0), closed(1), whole(0)]) == {"unread"}
    assert not rules([acked(0, 0), closed(1), whole(1)])


def test_another_handle_of_a_reader_may_know_less():
    assert not rules([*GOOD, lac(2, handle=2)])


def test_two_contents_are_found_inside_long_stretches():
    inside = [acked(0, 1000), read(0, 100), read(400, 410, writer=8), closed(1000), whole(1000)]
    assert rules(inside) == {"changed"}
    beside = [read(0, 100), read(101, 200, writer=8)]
    assert not rules(beside)


def test_a_payload_is_known_by_each_of_its_bytes():
    data = payload(3, 5, 9, 500)
    assert len(data) == 500
    assert writer_of(data, 3, 5) == 9
    for other in (data[:-1], data + b"x", b"", data[:20], payload(3, 6, 9, 500)):
        assert writer_of(other, 3, 5) is None
    for index in range(500):
        changed = bytearray(data)
        changed[index] ^= 1
        assert writer_of(bytes(changed), 3, 5) is None


def test_facts_are_there_after_they_were_noted_process_by_process(tmp_path):
    one, two = Scribe(tmp_path, "one"), Scribe(tmp_path, "two")
    two.note("lac", ledger=1, last=3, handle=1)
    one.note("acked", ledger=1, first=0, last=1, writer=4)
    two.note("lac", ledger=1, last=4, handle=1)
    facts = list(recorded(tmp_path))
    assert [(each["by"], each["last"]) for each in facts] == [("one", 1), ("two", 3), ("two", 4)]
