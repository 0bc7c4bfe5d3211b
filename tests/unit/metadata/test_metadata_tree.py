"""The parts that all drivers share: sequence numbers and the table of watches."""

from __future__ import annotations

from quorumbook.metadata.tree import Stamp, WatchKind, WatchTable, sequence_suffix

OLD = Stamp(1, 0, 0, 0)
SET = Stamp(1, 1, 0, 0)
WITH_CHILD = Stamp(1, 0, 1, 1)


def test_sequence_numbers_have_ten_digits_and_wrap_around():
    assert sequence_suffix(0) == "0000000000"
    assert sequence_suffix(2**31 - 1) == "2147483647"
    assert sequence_suffix(2**31) == "-2147483648"
    assert sequence_suffix(2**32 - 1) == "-000000001"
    assert sequence_suffix(2**32) == "0000000000"


def test_a_watch_left_again_keeps_the_state_it_saw_first():
    table = WatchTable()
    table.add(WatchKind.NODE, "/a", bell, OLD)
    table.add(WatchKind.NODE, "/a", bell, SET)
    assert table.take_changed(lambda _: SET) == [bell]
    assert not table


def test_a_watch_is_about_its_own_kind_of_change():
    table = WatchTable()
    table.add(WatchKind.NODE, "/a", bell, OLD)
    table.add(WatchKind.CHILDREN, "/a", other_bell, OLD)
    assert table.take_changed(lambda _: OLD) == []
    assert table.take_changed(lambda _: WITH_CHILD) == [other_bell]
    assert table.take_changed(lambda _: None) == [bell]


def test_a_callback_waiting_twice_is_returned_once():
    table = WatchTable()
    for path in ("/a", "/b"):
        for kind in WatchKind:
            table.add(kind, path, bell, OLD)
    assert table.take_changed(lambda _: None) == [bell]


def test_only_the_paths_named_are_compared():
    table = WatchTable()
    table.add(WatchKind.NODE, "/a", bell, OLD)
    table.add(WatchKind.NODE, "/b", other_bell, OLD)
    assert table.take_changed(lambda _: None, ["/b", "/c"]) == [other_bell]
    table.remove(bell)
    assert not table


def bell():
    pass


def other_bell():
    pass
