"""The quick way to answer a read that found its entry says what the general way says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.protocol.answers import found_answer, read_answer
from quorumbook.protocol.requests import Read
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
