"""The read machine: a range of entries, fetched from whichever replica gives them.

    ReadState(metadata, first_entry_id, last_entry_id, *, batch_entries=1000, max_in_flight=4,
              sticky_index=None, ranks=None)
      .poll() -> list[Effect]                             after creation and after any call below
      .on_entries(asked: SendRead, verified_last) -> (first, last) | None
      .on_error(asked: SendRead, entry_id, error)
      .on_speculative_timeout()
      .on_metadata(metadata)                              replicas moved meanwhile
      .is_present(asked: SendRead) -> bool                whom it asked has not been replaced since
      .is_done .error .last_delivered
    Effects: SendRead(bookie_id, bookie_index, first_entry_id, last_entry_id),
      Delivered(last_entry_id), ReadFailed(entry_id, error)
    worst_error(errors, ledger_id, entry_id) -> QuorumbookError

The range is cut at fragments and, where every bookie of an ensemble stores every entry, into pieces
of ``batch_entries``; a striped ensemble is read entry by entry.  One ``SendRead`` asks for what is
left of a piece; the driver verifies the digests of the answer and reports how far they are good.
An answer may be a prefix (bookies limit its size; the next entry may be damaged): the rest is
asked for again, of the same bookie unless ``on_error`` was called for its first entry.  So for an
answer whose second entry is damaged, call ``on_entries`` for the first and ``on_error`` with
``DigestMismatchError`` for the second, then ``poll``.

``on_entries`` returns which of the entries are new; of these the driver keeps the payloads, the
others came twice.  ``Delivered`` says that everything up to an entry is there, in order;
``ReadFailed`` comes after all entries before the failed one were delivered.

An answer is that of the bookie that was asked.  Once newer metadata has another bookie in its
place, what the old one gives still counts, for a good digest proves it; that it refuses says
nothing of the new one, which may hold what was copied there.  A read that has failed goes on if
newer metadata names bookies for the entry that were not asked yet.

Errors: the next replica is asked on any.  If all were asked, the outcome is "no such entry" only if
all of them say so; else the first error that says more than "no such entry" or "not reachable".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from quorumbook.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LocalProtocolError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumbookError,
    ReadFailedError,
    SecurityError,
    UnauthorizedError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set

NEGATIVE_ERRORS = (NoSuchEntryError, NoSuchLedgerError)


@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask a bookie for entries; what it gives of them, from the first on, is welcome."""

    bookie_id: BookieId
    bookie_index: int
    first_entry_id: EntryId
    last_entry_id: EntryId
    #: How often the metadata had changed when it was sent.
    changes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Delivered:
    """All entries of the range up to this one are there."""

    last_entry_id: EntryId


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """No replica gives this entry; all before it were delivered."""

    entry_id: EntryId
    error: QuorumbookError


Effect: TypeAlias = SendRead | Delivered | ReadFailed


class _Piece:
    """A part of the range that is asked for at once; ``head`` is its first missing entry."""

    __slots__ = ("asked", "error", "errors", "head", "last", "preferred", "since", "wants_more")

    def __init__(self, first: EntryId, last: EntryId) -> None:
        self.head = first
        self.last = last
        self.preferred: int | None = None
        self.asked: set[int] = set()
        self.errors: dict[int, QuorumbookError] = {}
        self.error: QuorumbookError | None = None
        self.wants_more = False
        #: With which change of the metadata the present member of a position came.
        self.since: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        return self.head <= self.last and self.error is None

    @property
    def is_waiting(self) -> bool:
        return not self.asked <= self.errors.keys()


class ReadState:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first_entry_id: EntryId,
        last_entry_id: EntryId,
        *,
        batch_entries: int = 1000,
        max_in_flight: int = 4,
        sticky_index: int | None = None,
        ranks: Mapping[BookieId, int] | None = None,
    ) -> None:
        """Start reading.

        Args:
            metadata: the ledger's.
            first_entry_id: the first entry wanted.
            last_entry_id: the last one; not beyond what the caller knows as confirmed.
            batch_entries: most entries asked for at once.
            max_in_flight: pieces asked for at a time (striped: entries).
            sticky_index: the position to ask first where all positions store all entries, so
                that a bookie's read-ahead works; otherwise the order of the write set.
            ranks: bookies to ask after the others, the higher the later; 0 where not named.
        """
        if not 0 <= first_entry_id <= last_entry_id:
            raise LocalProtocolError(
                f"entries {first_entry_id} to {last_entry_id} are not a range to read",
                ledger_id=metadata.ledger_id,
            )
        self._metadata = metadata
        self._changes = 0
        self._is_striped = metadata.write_quorum_size < metadata.ensemble_size
        self._batch_entries = 1 if self._is_striped else batch_entries
        self._max_in_flight = max_in_flight
        self._sticky_index = None if self._is_striped else sticky_index
        self._ranks = ranks or {}
        self._last = last_entry_id
        self._uncut = first_entry_id
        self._firsts: list[EntryId] = []
        self._pieces: list[_Piece] = []
        self._good_bookies: set[BookieId] = set()
        self.last_delivered: EntryId = first_entry_id - 1
        self.error: QuorumbookError | None = None

    @property
    def is_done(self) -> bool:
        """Tell whether everything was delivered, or the read failed."""
        return self.error is not None or self.last_delivered >= self._last

    def poll(self) -> list[Effect]:
        """Return what there is to do now."""
        effects: list[Effect] = []
        if self.is_done:
            return effects
        self._deliver(effects)
        if not self.is_done:
            self._ask(effects)
            self._deliver(effects)  # a piece may have run out of replicas
        return effects

    def on_entries(self, asked: SendRead, verified_last: EntryId) -> tuple[EntryId, EntryId] | None:
        """Take in the verified entries of an answer.

        Args:
            asked: what was asked for, and of whom.
            verified_last: the last one in an unbroken row of good digests.

        Returns:
            The first and last entry that were still missing; None if there is none.
        """
        piece = self._piece(asked.first_entry_id)
        if piece is None or verified_last < asked.first_entry_id:
            return None
        self._good_bookies.add(asked.bookie_id)
        verified_last = min(verified_last, piece.last)
        if not piece.is_open or verified_last < piece.head:
            return None
        new = piece.head, verified_last
        piece.head = verified_last + 1
        if self.is_present(asked):
            piece.preferred = asked.bookie_index
        piece.asked.clear()
        piece.errors.clear()
        piece.wants_more = False
        return new

    def on_error(self, asked: SendRead, entry_id: EntryId, error: QuorumbookError) -> None:
        """Note that a bookie does not give an entry.

        Args:
            asked: what was asked for, and of whom.
            entry_id: the first entry that was asked for, or the first one of the answer that is
                damaged.
            error: why.
        """
        piece = self._piece(entry_id)
        if piece is None or not piece.is_open or piece.head != entry_id:
            return
        if self.is_present(asked):
            piece.asked.add(asked.bookie_index)
            piece.errors.setdefault(asked.bookie_index, error)

    def is_present(self, asked: SendRead) -> bool:
        """Tell whether the bookie that was asked has kept its place since, without a break."""
        piece = self._piece(asked.first_entry_id)
        index = asked.bookie_index
        if piece is None or asked.changes < piece.since.get(index, 0):
            return False
        entry_id = min(piece.head, piece.last)
        return self._metadata.fragment_of(entry_id).ensemble[index] == asked.bookie_id

    def on_speculative_timeout(self) -> None:
        """Ask one more replica of each piece whose bookies have been silent all along."""
        for piece in self._pieces:
            if piece.is_open and piece.is_waiting:
                ensemble = self._metadata.fragment_of(piece.head).ensemble
                if not any(ensemble[index] in self._good_bookies for index in piece.asked):
                    piece.wants_more = True

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """Take newer metadata: pieces that are not there yet are asked of the present members."""
        old, self._metadata = self._metadata, metadata
        self._changes += 1
        for piece in self._pieces:
            if piece.head > piece.last:
                continue
            before = old.fragment_of(piece.head).ensemble
            after = metadata.fragment_of(piece.head).ensemble
            for index in range(metadata.ensemble_size):
                if before[index] != after[index]:
                    piece.asked.discard(index)
                    piece.errors.pop(index, None)
                    piece.since[index] = self._changes
                    piece.error = None
        if self.error is not None and self._pieces[0].error is None:
            self.error = None

    # ---------------------------------------------------------------------------------------

    def _piece(self, entry_id: EntryId) -> _Piece | None:
        index = bisect_right(self._firsts, entry_id) - 1
        if index < 0 or self._pieces[index].last < entry_id:
            return None
        return self._pieces[index]

    def _cut(self) -> None:
        """Cut pieces off the range until enough are in flight."""
        while len(self._pieces) < self._max_in_flight and self._uncut <= self._last:
            first = self._uncut
            last = min(first + self._batch_entries - 1, self._last)
            fragments = self._metadata.fragments
            index = bisect_right(fragments, first, key=lambda f: f.first_entry_id)
            if index < len(fragments):
                last = min(last, fragments[index].first_entry_id - 1)
            self._pieces.append(_Piece(first, last))
            self._firsts.append(first)
            self._uncut = last + 1

    def _ask(self, effects: list[Effect]) -> None:
        """Ask for the pieces that nobody is asked for, or one more where that is wanted."""
        self._cut()
        for piece in self._pieces:
            if piece.is_open and (piece.wants_more or not piece.is_waiting):
                piece.wants_more = False
                self._ask_next(piece, effects)

    def _order(self, piece: _Piece) -> Sequence[int]:
        metadata = self._metadata
        order = list(write_set(piece.head, metadata.ensemble_size, metadata.write_quorum_size))
        first = piece.preferred if piece.preferred in order else self._sticky_index
        if first is not None:
            start = order.index(first)
            order = order[start:] + order[:start]
        if self._ranks:
            ensemble = metadata.fragment_of(piece.head).ensemble
            order.sort(key=lambda index: self._ranks.get(ensemble[index], 0))
        return order

    def _ask_next(self, piece: _Piece, effects: list[Effect]) -> None:
        for index in self._order(piece):
            if index not in piece.asked:
                piece.asked.add(index)
                bookie_id = self._metadata.fragment_of(piece.head).ensemble[index]
                sent = SendRead(bookie_id, index, piece.head, piece.last, self._changes)
                effects.append(sent)
                return
        if not piece.is_waiting:
            errors = list(piece.errors.values())
            piece.error = worst_error(errors, self._metadata.ledger_id, piece.head)

    def _deliver(self, effects: list[Effect]) -> None:
        delivered = self.last_delivered
        while self._pieces:
            piece = self._pieces[0]
            delivered = piece.head - 1
            if piece.head <= piece.last:
                break
            del self._pieces[0], self._firsts[0]
        if delivered > self.last_delivered:
            self.last_delivered = delivered
            effects.append(Delivered(delivered))
        if self._pieces and self._pieces[0].error is not None:
            self.error = self._pieces[0].error
            effects.append(ReadFailed(self._pieces[0].head, self.error))


def worst_error(
    errors: Sequence[QuorumbookError], ledger_id: LedgerId, entry_id: EntryId
) -> QuorumbookError:
    """Return the one outcome of an entry that no replica gave.

    Args:
        errors: one for each replica, in the order they were asked.
        ledger_id: the ledger.
        entry_id: the entry.
    """
    if errors and all(isinstance(error, NEGATIVE_ERRORS) for error in errors):
        kind = (
            NoSuchLedgerError
            if all(isinstance(error, NoSuchLedgerError) for error in errors)
            else NoSuchEntryError
        )
        return kind(
            f"no replica has entry {entry_id} of ledger {ledger_id}",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    told = [error for error in errors if not isinstance(error, NEGATIVE_ERRORS)]
    specific = [
        error
        for error in told
        if not isinstance(error, BookieUnavailableError) or isinstance(error, SecurityError)
    ]
    cause = (specific or told or [QuorumbookError("nobody was asked")])[0]
    message = f"entry {entry_id} of ledger {ledger_id} cannot be read now: " + "; ".join(
        str(error) for error in errors
    )
    if isinstance(cause, DigestMismatchError | UnauthorizedError | SecurityError):
        failure: QuorumbookError = type(cause)(message, ledger_id=ledger_id, entry_id=entry_id)
    else:
        failure = ReadFailedError(message, ledger_id=ledger_id, entry_id=entry_id, code=cause.code)
    failure.__cause__ = cause
    return failure
