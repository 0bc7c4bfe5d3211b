"""What ends a journal after power was lost, and what only looks like it."""

from __future__ import annotations

import pytest
from test_storage_journal_replay import DATA_END, replayed, three_groups

from doubles.records import entry, in_journal_order, journal_bytes, run
from quorumbook.errors import CorruptJournalError
from quorumbook.storage.journal.format import HEADER_SIZE


def _last_group_of_four_blocks() -> tuple[list[list[bytes]], list[tuple[object, ...]]]:
    groups, events = three_groups()
    payloads = [b"abcde" * 80, b"fghij" * 80, b"klmno" * 80, b"pqrst" * 70]
    last = [run(4, 0, payloads).data]
    events += [("entry", 4, i, entry(4, i, payload)) for i, payload in enumerate(payloads)]
    assert len(journal_bytes(7, [*groups, last])) == DATA_END + 4 * 512
    return [*groups, last], events


@pytest.mark.parametrize("missing", range(1, 15))
def test_r23_blocks_that_power_kept_from_the_disk_are_a_torn_tail_after_a_boot(
    missing: int,
) -> None:
    groups, events = _last_group_of_four_blocks()
    torn = bytearray(journal_bytes(7, groups, zeros=2048, boot="before"))
    for block in range(4):
        if missing >> block & 1:
            torn[DATA_END + 512 * block : DATA_END + 512 * (block + 1)] = bytes(512)
    got, report = replayed({7: bytes(torn)}, boot="after")
    got = in_journal_order(got, events)
    assert got == events[: len(got)]
    assert len(got) >= 9
    assert not report.damaged_tail
    # It stays known behind the journal of the start that met it.
    successor = journal_bytes(8, [], previous=report.end, is_start=True, boot="after")
    again, later = replayed({7: bytes(torn), 8: successor}, boot="after that")
    assert in_journal_order(again, events) == got
    assert not later.damaged_tail
    with pytest.raises(CorruptJournalError):
        replayed({7: bytes(torn), 8: journal_bytes(8, [], boot="after")}, boot="after that")
    # Without a boot nothing explains it, nor if nobody knows.
    for boot, made in (("before", "before"), ("", "before"), ("after", "")):
        data = journal_bytes(7, [], boot=made)[:HEADER_SIZE] + bytes(torn[HEADER_SIZE:])
        assert replayed({7: data}, boot=boot)[1].damaged_tail


@pytest.mark.parametrize("at", [0, 2, 8, 19, 40, 430, 1000, 2031, 2032, 2036, 2043, 2044, 2047])
def test_r23_a_bit_that_flipped_in_the_last_group_is_damage_after_a_boot_too(at: int) -> None:
    groups, _ = _last_group_of_four_blocks()
    data = bytearray(journal_bytes(7, groups, zeros=2048, boot="before"))
    data[DATA_END + at] ^= 1
    assert replayed({7: bytes(data)}, boot="after")[1].damaged_tail
