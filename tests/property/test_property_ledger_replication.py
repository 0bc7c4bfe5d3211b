"""Copies in clusters of dictionaries: whatever fails, what counts as copied is there."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from quorumbook.errors import ConnectFailedError, NoSuchEntryError
from quorumbook.ledger.machines.accounts import check
from quorumbook.ledger.machines.copy import (
    CheckEntries,
    Copied,
    CopyFailed,
    CopyState,
    ReadEntries,
    WriteEntries,
    strands_to_move,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.schedule import is_stored_at
from quorumbook.ledger.transitions import moved_metadata


def cluster(draw):
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    names = tuple("abcde"[:size])
    last = draw(st.integers(-1, 40))
    first = draw(st.integers(0, 20))
    metadata = LedgerMetadata(
        ledger_id=1, ensemble_size=size, write_quorum_size=quorum, ack_quorum_size=1,
        fragments=(Fragment(first, names),),
    ).closed(max(last, first - 1), 0)  # fmt: skip
    lost = draw(st.sets(st.integers(0, size - 1), min_size=1))
    return metadata, first, lost


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_r30_what_is_copied_is_all_and_only_what_the_lost_bookies_stored(data) -> None:
    metadata, first, lost = cluster(data.draw)
    fragment = metadata.fragments[0]
    last = metadata.last_entry_of(fragment)
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    failing = data.draw(st.floats(0, 0.6))

    def stored(position: int) -> set[int]:
        return {e for e in range(first, last + 1) if is_stored_at(e, position, size, quorum)}

    has = {bookie: stored(p) for p, bookie in enumerate(fragment.ensemble) if p not in lost}
    targets = {p: f"new{p}" for p in lost}
    has |= {name: set() for name in targets.values()}
    strands = strands_to_move(metadata, fragment, last, lost)
    given_up = [fragment.ensemble[p] for p in lost]
    state = CopyState(
        metadata, fragment, strands, targets,
        last_resort=given_up, batch_entries=rng.randint(1, 7), max_in_flight=rng.randint(1, 4),
    )  # fmt: skip
    held: dict[int, range] = {}
    todo = state.poll()
    ends = []
    while todo:
        effect = todo.pop(rng.randrange(len(todo)))
        if isinstance(effect, ReadEntries):
            there, good = has.get(effect.bookie_id, set()), 0
            while good < len(effect.entry_ids) and effect.entry_ids[good] in there:
                good += 1
            if not good or rng.random() < failing:
                kind = NoSuchEntryError if good else ConnectFailedError
                state.on_read_error(effect.batch, kind("no", bookie_id=effect.bookie_id))
            else:
                count = rng.randint(1, good)
                held[effect.batch] = effect.entry_ids[:count]
                state.on_entries(effect.batch, count)
        elif isinstance(effect, WriteEntries):
            assert effect.entry_ids == held[effect.batch]
            assert set(effect.entry_ids) <= stored(effect.position)
            has[effect.bookie_id] |= set(effect.entry_ids)
            state.on_written(effect.batch, effect.position)
        elif isinstance(effect, CheckEntries):
            assert set(effect.entry_ids) <= has[effect.bookie_id]
            state.on_checked(effect.batch, effect.position)
        elif isinstance(effect, Copied | CopyFailed):
            ends.append(effect)
        check(state)
        todo += state.poll()
    (end,) = ends
    if isinstance(end, Copied):
        assert all(has[name] == stored(p) for p, name in targets.items())
        moves = {fragment.ensemble[p]: name for p, name in targets.items()}
        moved = moved_metadata(metadata, fragment, last, moves)
        assert moved is not None
        assert len(set(moved.ensemble)) == size
    else:
        # Every bookie that had the entry was asked and failed, or nobody has it any more.
        assert failing or any(
            all(e not in there for there in has.values()) for e in range(first, last + 1)
        )
