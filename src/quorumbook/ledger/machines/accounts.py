"""What the fields of the machines claim, derived again; for tests and the simulation.

    check(machine)   InternalError if its fields contradict each other

To be called between two events of a machine; the append machine has its own ``check``.  Nothing
here is about what is promised to anybody: a field that is wrong today breaks a promise later.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from quorumbook.errors import InternalError
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.copy import CopyState
from quorumbook.ledger.machines.lac_read import LacReadState
from quorumbook.ledger.machines.read import ReadState
from quorumbook.ledger.machines.recovery import RecoveryState


def check(machine: object) -> None:
    """Raise ``InternalError`` if the fields of a machine contradict each other."""
    if isinstance(machine, AppendState):
        machine.check()
        return
    for problem in _problems(machine):
        raise InternalError(f"{type(machine).__name__}: {problem}")


@singledispatch
def _problems(machine: object) -> Iterator[str]:
    raise TypeError(f"{type(machine).__name__} is no machine")


@_problems.register
def _of_recovery(state: RecoveryState) -> Iterator[str]:
    recorded, own = state._metadata.fragments, state._fragments
    if state._answered & ~state._responded:
        yield "an answer of who did not respond"
    if state.last_add_confirmed > state.last_entry_id:
        yield "last add confirmed beyond the end"
    if list(state._entries) != list(range(state.last_entry_id + 1, state._next_read)):
        yield f"entries {list(state._entries)} behind {state.last_entry_id}"
    if any(state.ensemble[index] != each for index, each in state._failed.items()):
        yield "a failed bookie is not a member"
    if own[: len(recorded) - 1] != recorded[:-1]:
        yield "an older fragment was changed"
    if own[len(recorded) :] and own[-1].first_entry_id > state.last_entry_id + 1:
        yield "a fragment beyond the end"
    if state.error is not None and not state.is_done:
        yield "failed, and not over"
    for entry_id, entry in state._entries.items():
        asked = sum(1 << index for index in state._write_set(entry_id))
        if (entry.acks | entry.responded) & ~asked or entry.negatives & ~entry.responded:
            yield f"entry {entry_id}: an answer of who was not asked"
        if entry.is_writing and entry.length is None:
            yield f"entry {entry_id}: written back before it was found"
        if entry.acks and not entry.is_writing:
            yield f"entry {entry_id}: an ack of what was not written back"


@_problems.register
def _of_read(state: ReadState) -> Iterator[str]:
    pieces = state._pieces
    if len(state._firsts) != len(pieces):
        yield "a piece without its beginning"
    if any(
        before.last + 1 != first for before, first in zip(pieces, state._firsts[1:], strict=False)
    ):
        yield "a gap between pieces"
    if pieces and pieces[-1].last + 1 != state._uncut:
        yield "the last piece does not end where the next is cut"
    for first, piece in zip(state._firsts, pieces, strict=True):
        if not first <= piece.head <= piece.last + 1:
            yield f"a piece from {first} to {piece.last} misses {piece.head}"
        if not piece.errors.keys() <= piece.asked:
            yield "an error of who was not asked"
    if pieces and not state.last_delivered < pieces[0].head:
        yield "delivered beyond what is there"
    if state.last_delivered > state._last:
        yield "delivered beyond the range"
    if state.error is not None and (not pieces or pieces[0].error is not state.error):
        yield "failed with an error of no piece"


@_problems.register
def _of_copy(state: CopyState) -> Iterator[str]:
    for number, batch in state._batches.items():
        if not batch.entry_ids or not batch.left:
            yield f"batch {number} is done, and there"
        if not batch.left <= set(batch.positions):
            yield f"batch {number}: a position that was not asked for"
        if not batch.is_read and batch.left != set(batch.positions):
            yield f"batch {number}: copied before it was read"
    if any(not strand.entry_ids or not strand.positions for strand in state._waiting):
        yield "a strand of nothing"
    if state._next_batch <= max(state._batches, default=-1):
        yield "a batch that is yet to come"
    if state.failed_target is not None and state.error is None:
        yield "a target failed, and the copy goes on"


@_problems.register
def _of_lac_read(state: LacReadState) -> Iterator[str]:
    failed = sum(1 << index for index in state._errors)
    if state._answered & failed:
        yield "an answer and an error of the same bookie"
    if (state._answered | failed) != state._responded:
        yield "responses that are neither answers nor errors"
    if state.last_add_confirmed < state._known:
        yield "less than was known"
    if state.error is not None and not state.is_done:
        yield "failed, and not over"
