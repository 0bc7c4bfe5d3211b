"""Ledger metadata: the facts of a ledger that its metadata node holds, and how they may change.

    LedgerState                       OPEN, IN_RECOVERY, CLOSED
    Fragment(first_entry_id, ensemble)
    LedgerMetadata(*, ledger_id, ensemble_size, write_quorum_size, ack_quorum_size, fragments,
                   state=OPEN, last_entry_id=-1, length=0, digest_type=None, password=None,
                   ctime_ms=None, is_ctime_stored=False, custom_metadata={}, format_version=3,
                   creator_token=None)
        .is_closed  .last_fragment  .ensemble (of the last fragment)
        .in_recovery()  .closed(last_entry_id, length)
        .with_fragment(first_entry_id, ensemble)          append, or replace the last
        .with_fragments(fragments)                        recovery, together with the close
        .replace_bookie(fragment_first_entry_id, old, new)
        .fragment_of(entry_id) -> Fragment
        .last_entry_of(fragment, last_add_confirmed=None) -> EntryId

A ledger is cut into fragments; a fragment is the entries from its first id up to the one before
the next fragment, stored on one ensemble of bookies.  Everything here is immutable: a transition
returns a new object or raises ``LocalProtocolError``.  Bytes are ``metadata_format``'s business;
compare-and-set against the node's version is the client's.

    OPEN ──(writer)──> CLOSED           OPEN ──(recovery)──> IN_RECOVERY ──(recovery)──> CLOSED
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from quorumbook.errors import LocalProtocolError, MetadataFormatError
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId, LedgerId
from quorumbook.protocol.digest import DigestType

FORMAT_VERSIONS = (1, 2, 3)


class LedgerState(Enum):
    """Where a ledger stands; the numbers are those of the metadata format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3

    @property
    def word(self) -> str:
        """The state as the command line and the HTTP API spell it."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from ``first_entry_id`` on, stored on one ensemble."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """All that the metadata node of a ledger says.

    ``ctime_ms`` is when the ledger was made, from the metadata itself (``is_ctime_stored``) or
    else from its node; only a stored one is written back.  ``digest_type`` and ``password`` are
    None for ledgers of very old writers, whose opener supplies them.  ``incarnation`` is not
    stored: it tells this ledger from one that has its id after it; None if that is unknown.
    """

    ledger_id: LedgerId
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)
    ctime_ms: int | None = None
    is_ctime_stored: bool = False
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    format_version: int = 3
    creator_token: int | None = None
    incarnation: int | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise MetadataFormatError(f"ledger {self.ledger_id}: {problem}")

    def _problem(self) -> str | None:
        if not 1 <= self.ack_quorum_size <= self.write_quorum_size <= self.ensemble_size:
            return (
                f"ensemble {self.ensemble_size}, write quorum {self.write_quorum_size} and ack "
                f"quorum {self.ack_quorum_size} are not in descending order down to 1"
            )
        if not self.fragments:
            return "no fragment"
        previous = -1
        for fragment in self.fragments:
            if fragment.first_entry_id <= previous:
                return f"fragments are not ascending at entry {fragment.first_entry_id}"
            if len(fragment.ensemble) != self.ensemble_size:
                return (
                    f"the ensemble from entry {fragment.first_entry_id} has "
                    f"{len(fragment.ensemble)} bookies, not {self.ensemble_size}"
                )
            previous = fragment.first_entry_id
        if self.state is not LedgerState.CLOSED:
            if self.last_entry_id != INVALID_ENTRY_ID or self.length:
                return "only a closed ledger has a last entry and a length"
        elif self.last_entry_id < INVALID_ENTRY_ID or self.length < 0:
            return f"closed at entry {self.last_entry_id} with length {self.length}"
        if self.format_version not in FORMAT_VERSIONS:
            return f"format version {self.format_version} is not known"
        return None

    def as_created(self, creator_token: int | None, incarnation: int | None) -> LedgerMetadata:
        """Return the metadata with what its creation adds, which contradicts nothing in it."""
        made = object.__new__(LedgerMetadata)
        for name in _NAMES:
            object.__setattr__(made, name, getattr(self, name))
        object.__setattr__(made, "creator_token", creator_token)
        object.__setattr__(made, "incarnation", incarnation)
        return made

    @property
    def is_closed(self) -> bool:
        """Tell whether the ledger's end is settled."""
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        """Return the fragment that new entries go to."""
        return self.fragments[-1]

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """Return the ensemble of the last fragment."""
        return self.fragments[-1].ensemble

    def fragment_of(self, entry_id: EntryId) -> Fragment:
        """Return the fragment an entry belongs to: the last that starts at or before it."""
        index = bisect_right(self.fragments, entry_id, key=_first_entry_id)
        if not index:
            raise LocalProtocolError(
                f"no fragment holds entry {entry_id}", ledger_id=self.ledger_id, entry_id=entry_id
            )
        return self.fragments[index - 1]

    def last_entry_of(
        self, fragment: Fragment, last_add_confirmed: EntryId | None = None
    ) -> EntryId:
        """Return a fragment's last entry id; ``first_entry_id - 1`` if it has none.

        Args:
            fragment: one of ``fragments``.
            last_add_confirmed: where the last fragment ends while the ledger is not closed.
        """
        index = self.fragments.index(fragment)
        if index + 1 < len(self.fragments):
            last = self.fragments[index + 1].first_entry_id - 1
        elif self.is_closed:
            last = self.last_entry_id
        elif last_add_confirmed is None:
            raise LocalProtocolError("the last fragment is open", ledger_id=self.ledger_id)
        else:
            last = last_add_confirmed
        return max(last, fragment.first_entry_id - 1)

    def in_recovery(self) -> LedgerMetadata:
        """Return the metadata with which a recovery takes the ledger over."""
        if self.is_closed:
            raise LocalProtocolError("a closed ledger is not recovered", ledger_id=self.ledger_id)
        return replace(self, state=LedgerState.IN_RECOVERY, creator_token=None)

    def closed(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        """Return the metadata of the ledger closed after ``last_entry_id``."""
        if self.is_closed:
            raise LocalProtocolError("the ledger is closed already", ledger_id=self.ledger_id)
        if last_entry_id < self.last_fragment.first_entry_id - 1:
            raise LocalProtocolError(
                f"the last fragment starts at {self.last_fragment.first_entry_id}; the ledger "
                f"cannot be closed at {last_entry_id}",
                ledger_id=self.ledger_id,
            )
        return replace(
            self,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            length=length,
            creator_token=None,
        )

    def with_fragment(
        self, first_entry_id: EntryId, ensemble: Sequence[BookieId]
    ) -> LedgerMetadata:
        """Return the metadata after the writer's ensemble change.

        A fragment that starts where the last one does replaces it (nothing of it was confirmed);
        a later one is appended; an earlier one would rewrite history and is refused.
        """
        if self.state is not LedgerState.OPEN:
            raise LocalProtocolError(
                f"the ledger is {self.state.name}: its fragments are not the writer's any more",
                ledger_id=self.ledger_id,
            )
        fragments = changed_fragments(self.fragments, Fragment(first_entry_id, tuple(ensemble)))
        return replace(self, fragments=fragments, creator_token=None)

    def with_fragments(self, fragments: Sequence[Fragment]) -> LedgerMetadata:
        """Return the metadata with a recovery's fragments, to be closed in the same write."""
        if self.state is not LedgerState.IN_RECOVERY:
            raise LocalProtocolError("not in recovery", ledger_id=self.ledger_id)
        return replace(self, fragments=tuple(fragments), creator_token=None)

    def replace_bookie(
        self, fragment_first_entry_id: EntryId, old: BookieId, new: BookieId
    ) -> LedgerMetadata:
        """Return the metadata after a fragment was copied from one bookie to another.

        Only a fragment that gets no further entries may change: any of a closed ledger, and all
        but the last of another one.
        """
        fragment = self.fragment_of(fragment_first_entry_id)
        if fragment.first_entry_id != fragment_first_entry_id:
            raise LocalProtocolError(
                f"no fragment starts at entry {fragment_first_entry_id}", ledger_id=self.ledger_id
            )
        if fragment is self.last_fragment and not self.is_closed:
            raise LocalProtocolError("the last fragment is open", ledger_id=self.ledger_id)
        if old not in fragment.ensemble or new in fragment.ensemble:
            raise LocalProtocolError(
                f"{new} cannot take the place of {old} in {fragment}", ledger_id=self.ledger_id
            )
        ensemble = tuple(new if bookie == old else bookie for bookie in fragment.ensemble)
        copied = Fragment(fragment_first_entry_id, ensemble)
        fragments = tuple(copied if other is fragment else other for other in self.fragments)
        return replace(self, fragments=fragments, creator_token=None)


_NAMES = tuple(each.name for each in fields(LedgerMetadata))


def changed_fragments(fragments: tuple[Fragment, ...], fragment: Fragment) -> tuple[Fragment, ...]:
    """Append a fragment, or replace the last one if both start at the same entry (R3)."""
    last = fragments[-1]
    if fragment.first_entry_id < last.first_entry_id:
        raise LocalProtocolError(
            f"a fragment from entry {fragment.first_entry_id} would start before the last one "
            f"({last.first_entry_id})"
        )
    if len(set(fragment.ensemble)) != len(fragment.ensemble):
        raise LocalProtocolError(f"a bookie stands twice in {fragment.ensemble}")
    if fragment.first_entry_id == last.first_entry_id:
        return (*fragments[:-1], fragment)
    return (*fragments, fragment)


def _first_entry_id(fragment: Fragment) -> EntryId:
    return fragment.first_entry_id
