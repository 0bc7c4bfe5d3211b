"""What the append machine asks its driver to do; see ``append``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quorumbook.errors import QuorumbookError
from quorumbook.ids import BookieId, EntryId


@dataclass(frozen=True, slots=True)
class Confirmed:
    """All entries up to this one have succeeded; resolve their futures in order."""

    last_entry_id: EntryId


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Record new bookies for the failed positions, from ``first_entry_id`` on, then report back."""

    failed: Mapping[int, BookieId]
    first_entry_id: EntryId
    attempt: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send these entries (again) to one bookie."""

    bookie_index: int
    bookie_id: BookieId
    entry_ids: Sequence[EntryId]


@dataclass(frozen=True, slots=True)
class DegradedWarning:
    """Writing goes on with fewer bookies than wanted; said once until all are back."""

    failed: Mapping[int, BookieId]


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The writer is done for; the outcome of all pending entries is unknown."""

    error: QuorumbookError


Effect: TypeAlias = Confirmed | ChangeEnsemble | Send | DegradedWarning | AppendFailed
