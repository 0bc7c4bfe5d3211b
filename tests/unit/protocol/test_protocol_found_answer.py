"""The quick way to answer a read that found its entry says what the general way says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.protocol import varint
from quorumbook.protocol.answers import (
    bare_answer,
    error_answer,
    found_answer,
    found_answers,
    read_answer,
)
from quorumbook.protocol.requests import Read, ReadRun
from quorumbook.protocol.status import Status

IDS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(
    version=st.sampled_from([2, 3]),
    token=st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1)),
    ledger_id=IDS,
    entry_id=IDS,
    entry=st.binary(min_size=16, max_size=300),
    max_lac=st.one_of(st.none(), st.just(-1), IDS),
)
def test_both_ways_give_the_same_bytes(version, token, ledger_id, entry_id, entry, max_lac):
    request = Read(version, 2 if version == 2 else token, ledger_id, entry_id)
    assert found_answer(request, entry, max_lac) == read_answer(request, Status.OK, entry, max_lac)


@given(
    token=st.one_of(st.none(), st.integers(0, 300), st.integers(0, 2**62)),
    ledger_id=IDS,
    first=st.one_of(st.integers(0, 300), st.integers(0, 2**62)),
    step=st.integers(1, 15),
    count=st.one_of(st.integers(1, 5), st.integers(100, 700)),
    size=st.integers(16, 300),
    max_lac=st.one_of(st.none(), st.just(-1), IDS),
    cut_at=st.integers(0, 700),
)
def test_a_row_is_answered_with_the_bytes_of_its_reads(
    token, ledger_id, first, step, count, size, max_lac, cut_at
):
    ids = [i for i in range(first, first + count * step, step) if i >> 7 == first >> 7]
    transactions = None
    if token is not None:
        transactions = [varint.encode(token | i & 127) for i in range(len(ids))]
        if len({len(piece) for piece in transactions}) > 1:
            transactions = [varint.encode(token)] * len(ids)
    run = ReadRun(2, ledger_id, range(first, ids[-1] + 1, step), transactions)
    reads = run.reads()
    entries = [bytes([i & 255]) * size for i in ids]
    assert [(read.ledger_id, read.entry_id) for read in reads] == [(ledger_id, i) for i in ids]
    expected = [
        read_answer(read, Status.OK, entry, max_lac)
        for read, entry in zip(reads, entries, strict=True)
    ]
    assert found_answers(run, list(map(memoryview, entries)), max_lac) == b"".join(expected)
    parts = [part for part in run.cut(cut_at) if part.entry_ids]
    assert [repr(read) for part in parts for read in part.reads()] == list(map(repr, reads))
    # A row before the authentication, say, is refused read by read, in the row's own protocol.
    refused = b"".join(error_answer(read, Status.UNAUTHORIZED) for read in reads)
    assert error_answer(run, Status.UNAUTHORIZED) == refused
    if token is not None:
        refused = b"".join(bare_answer(read, Status.UNAUTHORIZED) for read in reads)
        assert bare_answer(run, Status.UNAUTHORIZED) == refused
