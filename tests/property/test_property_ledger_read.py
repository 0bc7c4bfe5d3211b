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
from quorumbook.ledger.machines.accounts import check
from quorumbook.ledger.machines.read import Delivered, ReadFailed, ReadState, SendRead
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState

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
    new = reader.on_entries(asked, entry_id - 1)
    if new is not None:
        fresh = set(range(new[0], new[1] + 1))
        assert not fresh & got, "an entry was taken twice"
        assert max(fresh) < entry_id
        got |= fresh
    if entry_id <= asked.last_entry_id:
        error = ERRORS.get(replicas[asked.bookie_id, entry_id])
        if error is not None:
            reader.on_error(asked, entry_id, error)


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
        check(reader)
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


class MovingReplicas:
    """A ledger whose lost copies are made anew on other bookies, or on one that was there once."""

    def __init__(self, metadata: LedgerMetadata, draw) -> None:
        self.metadata = metadata
        self._draw = draw
        self._spares = iter(f"s{i}" for i in range(1000))
        self.copies = {
            (name, fragment.first_entry_id)
            for fragment in metadata.fragments
            for name in fragment.ensemble
            if draw(st.booleans())
        }
        self._former: list[str] = []

    def has(self, name: str, entry_id: int) -> bool:
        return (name, self.metadata.fragment_of(entry_id).first_entry_id) in self.copies

    def present(self, entry_id: int) -> list[str]:
        """The bookies that the metadata name for an entry, and that have it."""
        size, quorum = self.metadata.ensemble_size, self.metadata.write_quorum_size
        ensemble = self.metadata.fragment_of(entry_id).ensemble
        names = [name for i, name in enumerate(ensemble) if (i - entry_id) % size < quorum]
        return [name for name in names if self.has(name, entry_id)]

    def move(self) -> None:
        """Give one position of a fragment to a bookie that has the copy from now on."""
        fragment = self._draw(st.sampled_from(self.metadata.fragments))
        old = self._draw(st.sampled_from(fragment.ensemble))
        absent = [name for name in self._former if name not in fragment.ensemble]
        new = self._draw(st.sampled_from([next(self._spares), *absent]))
        self.replace(fragment.first_entry_id, old, new)

    def replace(self, start: int, old: str, new: str) -> None:
        self.metadata = self.metadata.replace_bookie(start, old, new)
        self.copies.discard((old, start))
        self.copies.add((new, start))
        self._former.append(old)

    def heal(self) -> None:
        """Make every copy that is missing."""
        for fragment in self.metadata.fragments:
            for name in fragment.ensemble:
                if (name, fragment.first_entry_id) not in self.copies:
                    self.replace(fragment.first_entry_id, name, next(self._spares))


@settings(deadline=None, max_examples=200)
@given(ledgers(), st.data())
def test_s33_an_entry_that_a_present_member_has_is_never_called_missing_while_replicas_move(
    metadata, data
) -> None:
    replicas = MovingReplicas(metadata, data.draw)
    reader = ReadState(
        metadata,
        0,
        LAST,
        batch_entries=data.draw(st.integers(1, 12)),
        max_in_flight=data.draw(st.integers(1, 5)),
        sticky_index=data.draw(st.sampled_from([None, 0])),
    )
    waiting: list[tuple[SendRead, bool]] = []
    delivered = -1
    # A hundred moves may leave some five hundred questions, which are answered one a turn.
    for turn in range(2000):
        for effect in reader.poll():
            match effect:
                case SendRead():
                    # What a bookie answers is what it held when it was asked; it may come late.
                    is_there = replicas.has(effect.bookie_id, effect.first_entry_id)
                    waiting.append((effect, is_there))
                case Delivered(last):
                    delivered = last
                case ReadFailed(entry_id):
                    assert not replicas.present(entry_id), "it is there"
        if delivered == LAST:
            return
        step = data.draw(st.integers(0, 9)) if turn < 100 else 2
        if step == 0:
            replicas.move()
            reader.on_metadata(replicas.metadata)
        elif step == 1:
            reader.on_speculative_timeout()
        elif waiting:
            asked, is_there = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            if is_there:
                reader.on_entries(asked, asked.last_entry_id)
            else:
                reader.on_error(asked, asked.first_entry_id, ERRORS[MISSING])
        else:
            assert reader.error is not None, "the read hangs"
            replicas.heal()
            reader.on_metadata(replicas.metadata)
    raise AssertionError("the read does not end")
