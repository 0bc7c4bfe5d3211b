"""Several copies of the ledger states as one; where they differ, the more careful one counts."""

from __future__ import annotations

from quorumbook.errors import StorageError
from quorumbook.ids import LedgerId
from quorumbook.storage.states.ledgers import lac_of_packet
from quorumbook.storage.states.state_file import Deletion, StateFileContent, StoredLedger


def merged_states(
    contents: list[StateFileContent | StorageError | None],
) -> dict[LedgerId, StoredLedger] | None:
    """Put the readable copies together; None if there are none.

    They should be alike.  Where they are not, the more careful statement counts.
    """
    merged: dict[LedgerId, StoredLedger] = {}
    found = False
    for content in contents:
        if not isinstance(content, StateFileContent):
            continue
        found = True
        for ledger_id, state in content.states.items():
            other = merged.get(ledger_id)
            merged[ledger_id] = state if other is None else _careful(state, other)
    return merged if found else None


def merged_deletions(contents: list[StateFileContent | StorageError | None]) -> list[Deletion]:
    """Put together what the readable copies remember; the later time counts."""
    merged: dict[LedgerId, int] = {}
    for content in contents:
        if isinstance(content, StateFileContent):
            for ledger_id, at_ms in content.deletions.items():
                merged[ledger_id] = max(at_ms, merged.get(ledger_id, 0))
    return [Deletion(*each) for each in merged.items()]


def _careful(one: StoredLedger, other: StoredLedger) -> StoredLedger:
    lac = max(
        (packet for packet in (one.explicit_lac, other.explicit_lac) if packet is not None),
        key=lac_of_packet,
        default=None,
    )
    return StoredLedger(
        one.ledger_id,
        one.master_key or other.master_key,
        one.is_fenced or other.is_fenced,
        one.is_in_limbo or other.is_in_limbo,
        lac,
        max(one.last_add_confirmed, other.last_add_confirmed),
        min(one.born_at, other.born_at),
    )
