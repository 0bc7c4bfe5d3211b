"""Changes of the metadata by a writer and by replication, against whatever stands there now.

    changed_metadata(current, change, chosen) -> (LedgerMetadata, replaced_indexes)
    closed_metadata(current, last_entry_id, length) -> LedgerMetadata | None (closed so already)
    moved_metadata(current, fragment, last_entry_id, moves) -> LedgerMetadata | None (done already)

They are called with what was read or written last, and after a version conflict again with what
stands there then; nothing is ever overwritten blindly (R3, R4, R5, R30).
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumbook.errors import LedgerClosedError, LedgerFencedError, MetadataVersionConflict
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.machines.append_effects import ChangeEnsemble
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState


def changed_metadata(
    current: LedgerMetadata, change: ChangeEnsemble, chosen: Mapping[int, BookieId]
) -> tuple[LedgerMetadata, set[int]]:
    """Apply a writer's ensemble change to the metadata as it stands now (R3, R4).

    To be called again with fresh metadata after each version conflict: what somebody else wrote
    (auto-recovery copies older fragments) is kept.

    Args:
        current: what was read, or written, last.
        change: what the machine asked for.
        chosen: a new bookie for each failed position for which one was found.

    Returns:
        The metadata to write and the positions it replaces; ``current`` itself and no position
        if nothing is left to write.
    """
    if current.state is LedgerState.IN_RECOVERY:
        raise LedgerFencedError("another client recovers the ledger", ledger_id=current.ledger_id)
    if current.is_closed:
        raise LedgerClosedError("another client closed the ledger", ledger_id=current.ledger_id)
    ensemble = list(current.ensemble)
    replaced = set()
    for index, bookie_id in chosen.items():
        if ensemble[index] == change.failed.get(index) and bookie_id not in ensemble:
            ensemble[index] = bookie_id
            replaced.add(index)
    if not replaced:
        return current, replaced
    return current.with_fragment(change.first_entry_id, ensemble), replaced


def closed_metadata(
    current: LedgerMetadata, last_entry_id: EntryId, length: int
) -> LedgerMetadata | None:
    """Apply a writer's close to the metadata as it stands now (R5).

    Returns:
        The metadata to write; None if the ledger is closed there already, by an earlier attempt
        whose answer got lost or by a recovery that came to the same end.
    """
    if current.state is LedgerState.IN_RECOVERY:
        raise LedgerFencedError("another client recovers the ledger", ledger_id=current.ledger_id)
    if not current.is_closed:
        return current.closed(last_entry_id, length)
    if (current.last_entry_id, current.length) == (last_entry_id, length):
        return None
    raise MetadataVersionConflict(
        f"ledger {current.ledger_id} was closed at entry {current.last_entry_id} with length "
        f"{current.length}, not at {last_entry_id} with {length}",
        ledger_id=current.ledger_id,
    )


def moved_metadata(
    current: LedgerMetadata,
    fragment: Fragment,
    last_entry_id: EntryId,
    moves: Mapping[BookieId, BookieId],
) -> LedgerMetadata | None:
    """Record that copies of a fragment were made, in the metadata as it stands now (R30, S28).

    What others changed meanwhile is kept: a writer its last fragment, a recovery the end.  An
    ensemble never has fewer bookies afterwards than before.

    Args:
        current: what was read, or written, last.
        fragment: what was copied, as it stood when the copying began.
        last_entry_id: the last entry that was copied.
        moves: who has the copies now, for each bookie of the ensemble that is replaced.

    Returns:
        The metadata to write; None if it stands there already, by an attempt whose answer was
        lost.

    Raises:
        MetadataVersionConflict: this fragment was changed meanwhile, so the copies are not its.
    """
    wanted = tuple(moves.get(bookie_id, bookie_id) for bookie_id in fragment.ensemble)
    found = {f.first_entry_id: f for f in current.fragments}.get(fragment.first_entry_id)
    if found is not None and found.ensemble == wanted != fragment.ensemble:
        return None
    is_open = found is current.last_fragment and not current.is_closed
    if found != fragment or is_open or current.last_entry_of(found) != last_entry_id:
        raise MetadataVersionConflict(
            f"the fragment of ledger {current.ledger_id} that begins at entry "
            f"{fragment.first_entry_id} was changed while it was copied",
            ledger_id=current.ledger_id,
        )
    for old, new in moves.items():
        current = current.replace_bookie(fragment.first_entry_id, old, new)
    return current
