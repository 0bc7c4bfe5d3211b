"""A writer's changes of the metadata, against whatever stands there now.

    changed_metadata(current, change, chosen) -> (LedgerMetadata, replaced_indexes)
    closed_metadata(current, last_entry_id, length) -> LedgerMetadata | None (closed so already)

Both are called with what was read or written last, and after a version conflict again with what
stands there then; nothing is ever overwritten blindly (R3, R4, R5).
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumbook.errors import LedgerClosedError, LedgerFencedError, MetadataVersionConflict
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.append_effects import ChangeEnsemble
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState


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
