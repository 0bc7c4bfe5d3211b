"""What the recovery machine asks its driver to do; see ``recovery``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from quorumbook.errors import QuorumbookError
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class MarkInRecovery:
    """Write this metadata (compare-and-set)."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class FenceRead:
    """Fence these bookies and ask each for its last entry."""

    bookies: tuple[tuple[int, BookieId], ...]


@dataclass(frozen=True, slots=True)
class RecoveryRead:
    """Read one entry of one bookie, fencing."""

    entry_id: EntryId
    bookie_index: int
    bookie_id: BookieId


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Add a found entry to one bookie, as a recovery add."""

    entry_id: EntryId
    bookie_index: int
    bookie_id: BookieId
    last_add_confirmed: EntryId


@dataclass(frozen=True, slots=True)
class ReleasePayloads:
    """Payloads up to this entry are not needed any more."""

    last_entry_id: EntryId


@dataclass(frozen=True, slots=True)
class ChooseReplacement:
    """Choose new bookies for failed positions; nothing is written."""

    failed: Mapping[int, BookieId]
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Write this metadata (compare-and-set); it closes the ledger."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class Done:
    """The ledger is closed, by this recovery or another."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """This recovery ends; the ledger stays in recovery and can be recovered again."""

    error: QuorumbookError


Effect: TypeAlias = (
    MarkInRecovery
    | FenceRead
    | RecoveryRead
    | WriteBack
    | ReleasePayloads
    | ChooseReplacement
    | Close
    | Done
    | RecoveryFailed
)
