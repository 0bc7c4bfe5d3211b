"""Entries judged many at a time come to the same as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.ledger.audit import RangeJudge
from quorumbook.protocol.digest import DigestType, digester, entries_in, entry_marks

SEAL = digester(DigestType.CRC32C, b"")
LEDGER_ID, FIRST = 7, 10


@st.composite
def runs(draw, first, length):
    """Entries in order, of which one may say something that cannot be."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    if draw(st.booleans()):
        sizes = [sizes[0]] * len(sizes)
    odd_at, odd_lac, odd_length = draw(
        st.tuples(st.integers(0, 12), st.sampled_from([0, 1, 2, -9]), st.sampled_from([0, 0, 1]))
    )
    entries = []
    for number, size in enumerate(sizes):
        lac, is_odd = first + number - 1, number == odd_at
        length += size + is_odd * odd_length
        entries.append(
            SEAL.seal(LEDGER_ID, first + number, lac + is_odd * odd_lac, length, bytes(size))
        )
    return entries, length


@st.composite
def ledgers(draw):
    """Some runs, one behind the other."""
    found, first, length = [], FIRST, 5
    for _ in range(draw(st.integers(1, 3))):
        entries, length = draw(runs(first, length))
        found.append((first, entries))
        first += len(entries)
    return found


@given(blocks=ledgers(), knows_length=st.booleans())
def test_many_at_once_are_judged_as_one_by_one(blocks, knows_length):
    """Across several blocks, with and without the entry before them."""
    singly, together = (RangeJudge(LEDGER_ID, SEAL.payload_offset, 3) for _ in range(2))
    before = SEAL.seal(LEDGER_ID, FIRST - 1, FIRST - 2, 5, b"")
    for judge in singly, together:
        judge.begin({"b": before} if knows_length else {})
    for first, entries in blocks:
        for entry_id, entry in enumerate(entries, first):
            singly.judge(entry_id, {"a": entry, "b": entry})
        data = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
        assert entries_in(data) == entries_in(data + b"\0\0\0\x09x") == len(entries)
        sizes = [len(entry) - SEAL.payload_offset for entry in entries]
        marks = entry_marks(data, sizes, SEAL.payload_offset)
        together.judge_agreed(first, marks.last_adds_confirmed, marks.lengths, sizes)
    assert together.findings == singly.findings
    assert together.length == singly.length
