"""The copy machine: bring entries to bookies that lack them, from bookies that have them.

    Strand(entry_ids, positions)          entries that are to be brought to the same positions
    strands_to_move(metadata, fragment, last_entry_id, positions) -> list[Strand]
    strands_to_mend(metadata, missing: Mapping[position, entry ids]) -> list[Strand]
    CopyState(metadata, fragment, strands, targets, *, last_resort=(), batch_entries=4,
              max_in_flight=4)
      .poll() -> list[Effect]                             after creation and after any call below
      .on_entries(batch, count)                           digests good, from the first one on
      .on_read_error(batch, error)                        of the first entry of the batch
      .on_written(batch, position)                        all of the batch acknowledged there
      .on_checked(batch, position)                        all of it read back there
      .on_target_error(batch, position, error)            a write or a check failed
      .fail(error)   .is_done .error .failed_target .copied_entries
    Effects: ReadEntries(batch, bookie_id, entry_ids), WriteEntries(batch, position, bookie_id,
      entry_ids), CheckEntries(batch, position, bookie_id, entry_ids), Release(batch), Copied(),
      CopyFailed(error)

A strand's entries have the same write set: where every bookie of an ensemble stores every entry,
all of a fragment are one strand; where the ensemble stripes, every E-th.  So a batch of a strand is
one read of one bookie, and one write to each that lacks it; nothing is decided for one entry.
Only what a position stores is brought to it (S75).

What is copied is the very bytes that were read: ids, length, last add confirmed and digest stay as
the writer made them, so that a copy tells nobody of a last add confirmed that it was not made with
(S19).  Each batch is read back where it was written (R30); ``Copied`` says that all were, and only
then the ensemble may be changed in the metadata.

A read that fails goes to the next bookie that stores the entries, last to those that are given up
themselves (``last_resort``).  A target that fails ends the copy: ``failed_target`` tells which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from quorumbook.errors import BookieUnavailableError, QuorumbookError
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.machines.read import worst_error
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.schedule import is_stored_at, write_set


@dataclass(frozen=True, slots=True)
class Strand:
    """Entries of one write set, and the positions of the ensemble that lack them."""

    entry_ids: range
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Ask a bookie for entries; what it gives of them, from the first on, is welcome."""

    batch: int
    bookie_id: BookieId
    entry_ids: range


@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Send what was read of a batch to a bookie, as recovery adds."""

    batch: int
    position: int
    bookie_id: BookieId
    entry_ids: range


@dataclass(frozen=True, slots=True)
class CheckEntries:
    """Read a batch back from a bookie it was written to."""

    batch: int
    position: int
    bookie_id: BookieId
    entry_ids: range


@dataclass(frozen=True, slots=True)
class ReleaseBatch:
    """What was read of a batch is not needed any more."""

    batch: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Everything is where it was missing."""


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """It cannot be brought there now."""

    error: QuorumbookError


Effect: TypeAlias = ReadEntries | WriteEntries | CheckEntries | ReleaseBatch | Copied | CopyFailed


def strands_to_move(
    metadata: LedgerMetadata, fragment: Fragment, last_entry_id: EntryId, positions: Iterable[int]
) -> list[Strand]:
    """Return all that some positions of a fragment store.

    Args:
        metadata: the ledger's.
        fragment: which.
        last_entry_id: its last entry; none is copied if that lies before its first.
        positions: those whose copies are to be made anew.
    """
    ids = range(fragment.first_entry_id, last_entry_id + 1)
    return _strands(metadata, ids, tuple(sorted(positions)))


def strands_to_mend(
    metadata: LedgerMetadata, missing: Mapping[int, Collection[range]]
) -> list[Strand]:
    """Return what single positions lack.

    Args:
        metadata: the ledger's.
        missing: for each position the runs of entries that are not there, or damaged.
    """
    return [
        strand
        for position, runs in sorted(missing.items())
        for run in runs
        for strand in _strands(metadata, run, (position,))
    ]


def _strands(metadata: LedgerMetadata, ids: range, positions: tuple[int, ...]) -> list[Strand]:
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    step = 1 if size == quorum else size
    strands = []
    for offset in range(min(step, len(ids))):
        own = ids[offset::step]
        stored = tuple(p for p in positions if is_stored_at(own[0], p, size, quorum))
        if stored:
            strands.append(Strand(own, stored))
    return strands


class _CopyBatch:
    """Some entries under way."""

    __slots__ = ("entry_ids", "errors", "is_read", "left", "positions", "tried")

    def __init__(self, strand: Strand) -> None:
        self.entry_ids = strand.entry_ids
        self.positions = strand.positions
        self.tried: set[int] = set()
        self.errors: list[QuorumbookError] = []
        self.is_read = False
        #: Positions that do not provably have it yet.
        self.left = set(strand.positions)


class CopyState:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        strands: Iterable[Strand],
        targets: Mapping[int, BookieId],
        *,
        last_resort: Collection[BookieId] = (),
        batch_entries: int = 4,
        max_in_flight: int = 4,
    ) -> None:
        """Start a copy.

        Args:
            metadata: the ledger's.
            fragment: where the entries are stored.
            strands: what is to be copied.
            targets: who is to have it, for each position named in the strands: another bookie,
                or the one that stands there and lacks it.
            last_resort: bookies that are asked when no other has an entry.
            batch_entries: entries of a batch; may change on the way, when it is known how large
                entries are.
            max_in_flight: batches at a time, once something was read.
        """
        self._metadata = metadata
        self._ensemble = fragment.ensemble
        self._targets = dict(targets)
        self._last_resort = frozenset(last_resort)
        self.batch_entries = batch_entries
        self._max_in_flight = max_in_flight
        self._waiting: deque[Strand] = deque(strands)
        self._batches: dict[int, _CopyBatch] = {}
        self._next_batch = 0
        self._is_weighed = False
        #: Positions that could not be reached; they are asked later than others from then on.
        self._silent: set[int] = set()
        self._is_told = False
        self._effects: list[Effect] = []
        self.error: QuorumbookError | None = None
        #: The target whose failure ended the copy.
        self.failed_target: BookieId | None = None
        #: Copies that are proven to be there.
        self.copied_entries = 0

    @property
    def is_done(self) -> bool:
        """Tell whether everything is copied, or nothing more will be."""
        return self.error is not None or not (self._waiting or self._batches)

    def poll(self) -> list[Effect]:
        """Return what there is to do now."""
        most = self._max_in_flight if self._is_weighed else 1
        while self.error is None and self._waiting and len(self._batches) < most:
            self._cut()
        if self.is_done and not self._is_told:
            self._is_told = True
            self._effects.append(Copied() if self.error is None else CopyFailed(self.error))
        effects, self._effects = self._effects, []
        return effects

    def on_entries(self, batch: int, count: int) -> None:
        """Take the first ``count`` entries of a batch as read; the rest is asked for again."""
        reading = self._reading(batch)
        if reading is None or count < 1:
            return
        self._is_weighed = True
        rest = reading.entry_ids[count:]
        if rest:
            self._waiting.appendleft(Strand(rest, reading.positions))
            reading.entry_ids = reading.entry_ids[:count]
        reading.is_read = True
        for position in reading.positions:
            self._effects.append(
                WriteEntries(batch, position, self._targets[position], reading.entry_ids)
            )

    def on_read_error(self, batch: int, error: QuorumbookError) -> None:
        """Ask the next bookie; without one the copy fails."""
        reading = self._reading(batch)
        if reading is None:
            return
        reading.errors.append(error)
        if isinstance(error, BookieUnavailableError) and error.bookie_id in self._ensemble:
            self._silent.add(self._ensemble.index(error.bookie_id))
        self._ask(batch, reading)

    def on_written(self, batch: int, position: int) -> None:
        """Have a batch read back that a bookie acknowledged (R30)."""
        written = self._batches.get(batch)
        if written is not None and position in written.left:
            self._effects.append(
                CheckEntries(batch, position, self._targets[position], written.entry_ids)
            )

    def on_checked(self, batch: int, position: int) -> None:
        """Count a batch as copied to a position."""
        checked = self._batches.get(batch)
        if checked is None or position not in checked.left:
            return
        checked.left.remove(position)
        self.copied_entries += len(checked.entry_ids)
        if not checked.left:
            del self._batches[batch]
            self._effects.append(ReleaseBatch(batch))

    def on_target_error(self, batch: int, position: int, error: QuorumbookError) -> None:
        """End the copy: a bookie does not take, or does not give back, what it is to store."""
        failed = self._batches.get(batch)
        if self.error is None and failed is not None and position in failed.left:
            self.failed_target = self._targets[position]
            self.error = error

    def fail(self, error: QuorumbookError) -> None:
        """End the copy."""
        if self.error is None and not self.is_done:
            self.error = error

    # ---------------------------------------------------------------------------------------

    def _reading(self, batch: int) -> _CopyBatch | None:
        found = self._batches.get(batch)
        return None if found is None or found.is_read or self.error is not None else found

    def _cut(self) -> None:
        strand = self._waiting.popleft()
        ids = strand.entry_ids
        if len(ids) > self.batch_entries:
            # Strands in turn: what lies side by side on a disk is read at about the same time.
            self._waiting.append(Strand(ids[self.batch_entries :], strand.positions))
            strand = Strand(ids[: self.batch_entries], strand.positions)
        number, self._next_batch = self._next_batch, self._next_batch + 1
        self._batches[number] = batch = _CopyBatch(strand)
        self._ask(number, batch)

    def _ask(self, number: int, batch: _CopyBatch) -> None:
        for position in self._sources(number, batch):
            if position not in batch.tried:
                batch.tried.add(position)
                self._effects.append(ReadEntries(number, self._ensemble[position], batch.entry_ids))
                return
        first = batch.entry_ids[0]
        self.error = worst_error(batch.errors, self._metadata.ledger_id, first)

    def _sources(self, number: int, batch: _CopyBatch) -> list[int]:
        """Return who may have a batch, in the order they are asked: in turn, the doubtful last."""
        ensemble = self._ensemble
        size, quorum = self._metadata.ensemble_size, self._metadata.write_quorum_size
        stored = write_set(batch.entry_ids[0], size, quorum)
        start = number % len(stored)
        turned = [*stored[start:], *stored[:start]]
        usable = [
            p
            for p in turned
            if p not in batch.positions or self._targets[p] != ensemble[p]  # lacks it itself
        ]
        return sorted(
            usable, key=lambda p: 2 * (ensemble[p] in self._last_resort) + (p in self._silent)
        )
