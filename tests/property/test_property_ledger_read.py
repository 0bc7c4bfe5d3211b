"""The read machine against replicas that miss, damage, shorten and delay what they give."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quorumbook.errors import (
    BookieIOError,
    ConnectionLostError,
    DigestMismatchError,
    NoSuchEntryError,
    ReadFailedError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.ledger.read import Delivered, ReadFailed, ReadState, SendRead

GOOD, MISSING, DAMAGED, UNREADABLE, UNREACHABLE = range(5)
ERRORS = {
    MISSING: NoSuchEntryError("no"),
    DAMAGED: DigestMismatchError("x"),
    UNREADABLE: BookieIOError("x"),
    UNREACHABLE: ConnectionLostError("x"),
}
LAST = 11


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, ensemble))
    starts = sorted({0, *draw(st.lists(st.integers(1, LAST), max_size=3))})
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=ensemble,
        write_quorum_size=write_quorum,
        ack_quorum_size=1,
        fragments=tuple(
            Fragment(start, tuple(f"f{start}b{i}" for i in range(ensemble))) for start in starts
        ),
        state=LedgerState.CLOSED,
        last_entry_id=LAST,
        length=1,
    )


def answer(reader, asked: SendRead, size: int, replicas, got: set[int]) -> None:
    """Give what the asked replica has, up to ``size`` entries or the first it lacks."""
    entry_id = asked.first_entry_id
    while (
        entry_id <= min(asked.last_entry_id, asked.first_entry_id + size - 1)
        and replicas[asked.bookie_id, entry_id] == GOOD
    ):
        entry_id += 1
    new = reader.on_entries(asked.bookie_index, asked.first_entry_id, entry_id - 1)
    if new is not None:
        fresh = set(range(new[0], new[1] + 1))
        assert not fresh & got, "an entry was taken twice"
        assert max(fresh) < entry_id
        got |= fresh
    if entry_id <= asked.last_entry_id:
        error = ERRORS.get(replicas[asked.bookie_id, entry_id])
        if error is not None:
            reader.on_error(asked.bookie_index, entry_id, error)


def check_end(replicas, first: int, delivered: int, got: set[int], failed) -> None:
    """What was delivered ends where no replica is good, and the error says why."""
    expected = first
    while expected <= LAST:
        copies = [state for (_, e), state in replicas.items() if e == expected]
        if GOOD not in copies:
            break
        expected += 1
    assert delivered == expected - 1
    assert set(range(first, expected)) <= got
    if expected > LAST:
        assert failed is None
        return
    assert failed is not None
    assert failed.entry_id == expected
    if set(copies) == {MISSING}:
        assert isinstance(failed.error, NoSuchEntryError)
    else:
        assert isinstance(failed.error, ReadFailedError | DigestMismatchError)


@settings(deadline=None, max_examples=150)
@given(ledgers(), st.data())
def test_a_read_gives_what_any_replica_has_up_to_the_first_entry_that_none_has(
    metadata, data
) -> None:
    state_of = st.sampled_from([GOOD, GOOD, GOOD, MISSING, DAMAGED, UNREADABLE, UNREACHABLE])
    replicas = {
        (name, entry_id): data.draw(state_of)
        for fragment in metadata.fragments
        for index, name in enumerate(fragment.ensemble)
        for entry_id in range(LAST + 1)
        if metadata.fragment_of(entry_id) is fragment
        and (index - entry_id) % metadata.ensemble_size < metadata.write_quorum_size
    }
    first = data.draw(st.integers(0, LAST))
    reader = ReadState(
        metadata,
        first,
        LAST,
        batch_entries=data.draw(st.integers(1, 12)),
        max_in_flight=data.draw(st.integers(1, 5)),
        sticky_index=data.draw(st.sampled_from([None, 0])),
    )
    delivered, got, failed = first - 1, set(), None
    waiting: list[SendRead] = []
    for turn in range(600):
        for effect in reader.poll():
            match effect:
                case SendRead():
                    assert metadata.fragment_of(effect.first_entry_id) is metadata.fragment_of(
                        effect.last_entry_id
                    )
                    waiting.append(effect)
                case Delivered(last):
                    assert last > delivered
                    delivered = last
                case ReadFailed():
                    failed = effect
        if reader.is_done:
            break
        assert waiting, "the read hangs"
        if turn < 200 and data.draw(st.integers(0, 9)) == 9:
            reader.on_speculative_timeout()
            continue
        asked = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        answer(reader, asked, data.draw(st.integers(1, 6)), replicas, got)
    else:
        raise AssertionError("the read does not end")

    check_end(replicas, first, delivered, got, failed)
