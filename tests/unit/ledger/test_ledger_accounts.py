"""Fields of machines that contradict each other are noticed, and none of those that do not."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.errors import InternalError, NoSuchEntryError, QuorumbookError
from quorumbook.ledger.machines.accounts import check
from quorumbook.ledger.machines.copy import CopyState, Strand, strands_to_move
from quorumbook.ledger.machines.lac_read import LacReadState
from quorumbook.ledger.machines.read import ReadState
from quorumbook.ledger.machines.recovery import RecoveryState
from quorumbook.ledger.metadata import Fragment, LedgerMetadata

LEDGER = LedgerMetadata(
    ledger_id=1,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    fragments=(Fragment(0, ("a", "b", "c")), Fragment(5, ("a", "b", "d"))),
)


def recovering() -> RecoveryState:
    """It has read entry 7, which is being written back, and waits for 8."""
    state = RecoveryState(LEDGER, batch_entries=2)
    state.poll()
    state.on_marked(LEDGER.in_recovery())
    state.poll()
    for index in (0, 1):
        state.on_fence_answer(index, 6, 60)
    state.poll()
    state.on_entry(7, 0, 70)
    state.on_read_error(8, 1, NoSuchEntryError())
    state.poll()
    state.on_written(7, 0, "a")
    return state


def reading() -> ReadState:
    """It has entry 0 of the first of three pieces."""
    state = ReadState(LEDGER, 0, 8, batch_entries=3)
    (first, *_) = state.poll()
    state.on_entries(first, 0)
    state.on_error(first, 1, NoSuchEntryError())
    state.poll()
    return state


def copying() -> CopyState:
    """It has read one batch of three, which is at one of two targets."""
    strands = strands_to_move(LEDGER, LEDGER.fragments[0], 4, (1, 2))
    state = CopyState(LEDGER, LEDGER.fragments[0], strands, {1: "x", 2: "y"}, batch_entries=2)
    state.poll()
    state.on_entries(0, 2)
    state.on_checked(0, 1)
    state.poll()
    return state


def asking() -> LacReadState:
    state = LacReadState(LEDGER, known=4)
    state.on_answer(0, 6)
    state.on_error(1, QuorumbookError("x"))
    return state


WRONG: list[tuple[Any, str, Any]] = [
    (recovering, "_answered", 8),
    (recovering, "last_add_confirmed", 7),
    (recovering, "_next_read", 10),
    (recovering, "last_entry_id", 7),
    (recovering, "_failed", {0: "x"}),
    (recovering, "_fragments", (Fragment(0, ("a", "b", "e")), Fragment(5, ("a", "b", "d")))),
    (recovering, "_fragments", (*LEDGER.fragments, Fragment(9, ("a", "b", "c")))),
    (recovering, "error", QuorumbookError("x")),
    (recovering, "_entries.7.acks", 8),
    (recovering, "_entries.7.length", None),
    (recovering, "_entries.7.is_writing", False),
    (recovering, "_entries.8.negatives", 4),
    (reading, "_firsts", [0, 3]),
    (reading, "_firsts", [0, 4, 5]),
    (reading, "_uncut", 8),
    (reading, "last_delivered", 1),
    (reading, "_last", -1),
    (reading, "error", QuorumbookError("x")),
    (reading, "_pieces.0.head", 4),
    (reading, "_pieces.0.errors", {2: QuorumbookError("x")}),
    (copying, "_batches.0.entry_ids", range(0)),
    (copying, "_batches.0.left", set()),
    (copying, "_batches.0.left", {0}),
    (copying, "_batches.0.is_read", False),
    (copying, "_waiting", [Strand(range(0), (1,))]),
    (copying, "_next_batch", 0),
    (copying, "failed_target", "x"),
    (asking, "_answered", 3),
    (asking, "_responded", 7),
    (asking, "_known", 7),
    (asking, "error", QuorumbookError("x")),
]


@pytest.mark.parametrize("make", [recovering, reading, copying, asking], ids=range(4))
def test_fields_that_fit_are_not_complained_about(make: Any) -> None:
    check(make())


@pytest.mark.parametrize(("make", "field", "value"), WRONG, ids=range(len(WRONG)))
def test_a_field_that_contradicts_the_others_is_noticed(make: Any, field: str, value: Any) -> None:
    machine = make()
    owner: Any = machine
    *path, name = field.split(".")
    for step in path:
        owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
    setattr(owner, name, value)
    with pytest.raises(InternalError, match=type(machine).__name__):
        check(machine)


def test_what_is_no_machine_is_not_looked_at() -> None:
    with pytest.raises(TypeError):
        check("a machine")
