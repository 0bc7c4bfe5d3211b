"""The recovery machine: find the end of a ledger whose writer is gone, and close it there.

    RecoveryState(metadata, *, batch_entries=8, gives_up_unknown=False)
      .poll() -> list[Effect]                               after creation and after any call below
      .on_marked(metadata)                                  MarkInRecovery was written
      .on_metadata(metadata)                                its, or Close's, compare-and-set lost:
                                                            what stands there now
      .on_fence_answer(bookie_index, last_add_confirmed, length)
      .on_fence_error(bookie_index, error)
      .on_entry(entry_id, bookie_index, length) -> bool     digest good; True: keep its payload
      .on_read_error(entry_id, bookie_index, error)
      .on_written(entry_id, bookie_index, bookie_id)
      .on_write_error(entry_id, bookie_index, bookie_id, error)
      .on_replacement(chosen: Mapping[int, BookieId])
      .on_no_replacement()
      .on_closed()                                          Close was written
      .fail(error)   .is_done .error .last_add_confirmed .last_entry_id .length
    Effects: MarkInRecovery(metadata), FenceRead(bookies), RecoveryRead(entry_id, bookie_index,
      bookie_id), WriteBack(entry_id, bookie_index, bookie_id, last_add_confirmed),
      Release(last_entry_id), ChooseReplacement(failed, ensemble), Close(metadata),
      Done(metadata), Failed(error)

What the driver does for them: ``FenceRead`` asks each bookie for its last entry, with FENCE and the
master key; ``RecoveryRead`` reads one entry, also with FENCE; ``WriteBack`` sends the entry's
payload with the recovery flag in a fresh entry with the given last add confirmed and the length
field of the entry that was read.  ``Release`` says up to where payloads are not needed any more.
``MarkInRecovery`` and ``Close`` are compare-and-set against the version of the metadata that this
machine was given last.

The rules it keeps:

R16 The ledger is marked IN_RECOVERY, then its whole last ensemble is fenced; it goes on when the
    answers cover every ack quorum.  A bookie that has the ledger in limbo is fenced as well before
    it says "unknown"; it tells no last add confirmed, and one too low costs reading only.  One that
    has another's key of the ledger counts as silent, unless nobody else answers.
R17 It reads forward from behind the last add confirmed, never from before the last fragment, in the
    ensemble as it was recorded at the start.  Each entry is asked of its whole write set: one good
    copy is a yes, (write quorum - ack quorum + 1) definite "no such entry" are a no, anything else
    is neither.  All in and undecided: recovery fails, the ledger stays as it is.  Only on an
    operator's word (``gives_up_unknown``) "unknown" counts as a no, once all have answered.
R18 Each entry found is written back to its whole write set until an ack quorum has it.  New bookies
    are known only here until the one closing write publishes end, length and fragments together.
R19 The last add confirmed written into those entries stays what the fencing found: bookies of the
    recorded ensemble must not learn from a recovery that fails later of entries which only its own
    replacements hold.
R20 A good copy that turns up late, before the close is sent, still counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from quorumbook.errors import (
    DigestMismatchError,
    LedgerRecoveryError,
    LocalProtocolError,
    NotEnoughBookiesError,
    QuorumbookError,
    UnauthorizedError,
    UnknownLedgerStateError,
)
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId
from quorumbook.ledger.machines.read import NEGATIVE_ERRORS
from quorumbook.ledger.machines.recovery_effects import (
    ChooseReplacement,
    Close,
    Done,
    Effect,
    FenceRead,
    MarkInRecovery,
    RecoveryFailed,
    RecoveryRead,
    ReleasePayloads,
    WriteBack,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState, changed_fragments
from quorumbook.ledger.placement.schedule import (
    can_reach_quorum,
    is_covered,
    negatives_needed,
    write_set,
)

#: What only a bookie says that has fenced the ledger.
_FENCED_ERRORS = (*NEGATIVE_ERRORS, DigestMismatchError, UnknownLedgerStateError)


class _Phase(Enum):
    MARK = 1
    MARKING = 2
    FENCE = 3
    FENCING = 4
    ENTRIES = 5
    CLOSING = 6
    OVER = 7


class _Entry:
    """What is known of one entry behind the last add confirmed."""

    __slots__ = ("acks", "errors", "is_writing", "length", "negatives", "responded")

    def __init__(self) -> None:
        self.length: int | None = None  # of the ledger with it; known once a good copy is here
        self.negatives = 0
        self.responded = 0
        self.errors: list[QuorumbookError] = []
        self.acks = 0
        self.is_writing = False


class RecoveryState:
    """See the module's docstring."""

    def __init__(
        self, metadata: LedgerMetadata, *, batch_entries: int = 8, gives_up_unknown: bool = False
    ) -> None:
        """Start a recovery of metadata as they were read; the driver remembers their version."""
        self._gives_up_unknown = gives_up_unknown
        self._metadata = metadata
        #: May change on the way, when it is known how large entries are.
        self.batch_entries = batch_entries
        self._phase = _Phase.MARK
        self._snapshot = metadata.last_fragment
        self._fragments = metadata.fragments
        self._answered = 0
        self._responded = 0
        self._best: tuple[EntryId, int] = (INVALID_ENTRY_ID, 0)
        self._fence_errors: list[QuorumbookError] = []
        #: What the fencing established (R19).
        self.last_add_confirmed: EntryId = INVALID_ENTRY_ID
        #: Everything up to here is confirmed, or written back to an ack quorum.
        self.last_entry_id: EntryId = INVALID_ENTRY_ID
        self.length = 0
        self.error: QuorumbookError | None = None
        self._entries: dict[EntryId, _Entry] = {}
        self._next_read: EntryId = 0
        self._length_probe: _Entry | None = None
        self._failed: dict[int, BookieId] = {}
        self._is_choosing = False
        self._wants_choice = False
        self._effects: list[Effect] = []

    @property
    def is_done(self) -> bool:
        """Tell whether ``Done`` or ``Failed`` was, or is about to be, reported."""
        return self._phase is _Phase.OVER

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """Return where entries are written back to: recorded members and local replacements."""
        return self._fragments[-1].ensemble

    def poll(self) -> list[Effect]:
        """Return what there is to do now."""
        if self._phase is _Phase.MARK:
            self._mark()
        if self._phase is _Phase.FENCE:
            self._phase = _Phase.FENCING
            self._effects.append(FenceRead(tuple(enumerate(self._snapshot.ensemble))))
        if self._phase is _Phase.ENTRIES:
            self._go_on()
        effects, self._effects = self._effects, []
        return effects

    # Marking and fencing -------------------------------------------------------------------

    def _mark(self) -> None:
        if self._metadata.is_closed:
            self._finish(self._metadata)
        elif self._metadata.state is LedgerState.IN_RECOVERY:
            # An earlier recovery died, or runs now; who closes first decides.
            self._phase = _Phase.FENCE
        else:
            self._phase = _Phase.MARKING
            self._effects.append(MarkInRecovery(self._metadata.in_recovery()))

    def on_marked(self, metadata: LedgerMetadata) -> None:
        """Go on with what was written."""
        if self._phase is _Phase.MARKING:
            self._take(metadata)
            self._phase = _Phase.FENCE

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """Decide anew with what somebody else wrote."""
        if metadata.is_closed and not self.is_done:
            self._finish(metadata)
        elif self._phase is _Phase.MARKING:
            self._take(metadata)
            self._phase = _Phase.MARK
        elif self._phase is _Phase.CLOSING:
            if metadata.last_fragment == self._snapshot:
                # Only older fragments were changed: keep those, and close again.
                self._fragments = (
                    *metadata.fragments[:-1],
                    *self._fragments[len(self._metadata.fragments) - 1 :],
                )
                self._metadata = metadata
                self._phase = _Phase.ENTRIES
            else:
                self.fail(
                    LedgerRecoveryError(
                        f"the last fragment of ledger {metadata.ledger_id} was changed meanwhile",
                        ledger_id=metadata.ledger_id,
                    )
                )

    def _take(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self._snapshot = metadata.last_fragment
        self._fragments = metadata.fragments

    def on_fence_answer(self, bookie_index: int, last_add_confirmed: EntryId, length: int) -> None:
        """Take a bookie's last entry: its length, and the larger last add confirmed it knows."""
        if self._phase is _Phase.FENCING:
            self._best = max(self._best, (last_add_confirmed, length))
            self._on_fenced(bookie_index, is_answer=True)

    def on_fence_error(self, bookie_index: int, error: QuorumbookError) -> None:
        """Take a bookie's refusal.

        Without the entry, with a damaged one, or in limbo, it is fenced all the same.  Any other
        error may mean that it is not.
        """
        if self._phase is not _Phase.FENCING:
            return
        is_answer = isinstance(error, _FENCED_ERRORS)
        if not is_answer:
            self._fence_errors.append(error)
        self._on_fenced(bookie_index, is_answer=is_answer)

    def _on_fenced(self, bookie_index: int, *, is_answer: bool) -> None:
        metadata = self._metadata
        self._responded |= 1 << bookie_index
        if is_answer:
            self._answered |= 1 << bookie_index
        if is_covered(
            self._answered,
            metadata.ensemble_size,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
        ):
            best, length = self._best
            # What stands before the last fragment was confirmed when that one was made.
            self.last_add_confirmed = max(best, self._snapshot.first_entry_id - 1)
            self.last_entry_id = self.last_add_confirmed
            self.length = length if self.last_add_confirmed > INVALID_ENTRY_ID else 0
            self._next_read = self.last_add_confirmed + 1
            self._phase = _Phase.ENTRIES
        elif self._responded == (1 << metadata.ensemble_size) - 1:
            errors = self._fence_errors
            if all(isinstance(error, UnauthorizedError) for error in errors):
                self.fail(errors[0])
            else:
                self._fail_undecided("too few bookies could be fenced", errors)

    # Reading forward -----------------------------------------------------------------------

    def _go_on(self) -> None:
        """Move every entry on as far as the answers allow."""
        self._complete()
        gap = self._write_found()
        if gap is not None and self._is_undecided(gap):
            # Those before it may still be on their way back to their write sets.
            entry_id = next(each for each, entry in self._entries.items() if entry is gap)
            what = f"entry {entry_id} can be neither read nor denied"
            self._fail_undecided(what, gap.errors)
            return
        is_end_known = gap is not None and self._is_negative(gap)
        if is_end_known and gap is self._entries.get(self.last_entry_id + 1):
            self._close()
            return
        limit = self.last_entry_id + self.batch_entries
        while not is_end_known and self._next_read <= limit:
            self._entries[self._next_read] = _Entry()
            self._read(self._next_read)
            self._next_read += 1
        self._choose()

    def _read(self, entry_id: EntryId) -> None:
        metadata = self._metadata
        ensemble = metadata.fragment_of(entry_id).ensemble
        for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
            self._effects.append(RecoveryRead(entry_id, index, ensemble[index]))

    def _is_negative(self, entry: _Entry) -> bool:
        metadata = self._metadata
        needed = negatives_needed(metadata.write_quorum_size, metadata.ack_quorum_size)
        if entry.negatives.bit_count() >= needed:
            return True
        # Nothing is given up while a bookie that cannot be reached may have the entry.
        is_all_in = entry.responded.bit_count() == metadata.write_quorum_size
        is_unknown = all(isinstance(error, UnknownLedgerStateError) for error in entry.errors)
        return self._gives_up_unknown and is_all_in and is_unknown

    def _is_undecided(self, entry: _Entry) -> bool:
        is_all_in = entry.responded.bit_count() == self._metadata.write_quorum_size
        return is_all_in and not self._is_negative(entry)

    def on_entry(self, entry_id: EntryId, bookie_index: int, length: int) -> bool:
        """Take a good copy of an entry.

        Returns:
            Whether it is the first copy: the driver keeps its payload and length for the
            write-back.
        """
        if self._phase is not _Phase.ENTRIES:
            return False
        entry = self._asked(entry_id)
        if entry is None or entry.length is not None:
            return False
        entry.length = length
        entry.responded |= 1 << bookie_index
        return entry is not self._length_probe

    def on_read_error(self, entry_id: EntryId, bookie_index: int, error: QuorumbookError) -> None:
        """Take a bookie's refusal; only that it has no such entry or ledger proves anything."""
        entry = self._asked(entry_id)
        if self._phase is not _Phase.ENTRIES or entry is None or entry.length is not None:
            return
        entry.responded |= 1 << bookie_index
        if isinstance(error, NEGATIVE_ERRORS):
            entry.negatives |= 1 << bookie_index
        else:
            entry.errors.append(error)

    def _asked(self, entry_id: EntryId) -> _Entry | None:
        if entry_id == self.last_add_confirmed:
            return self._length_probe
        return self._entries.get(entry_id)

    # Writing back --------------------------------------------------------------------------

    def _write_found(self) -> _Entry | None:
        """Start the write-back of the entries found; return the first one asked for but not found.

        Entries behind it wait: they may lie beyond the end.
        """
        entry_id = self.last_entry_id + 1
        while (entry := self._entries.get(entry_id)) is not None:
            if entry.length is None:
                return entry
            if not entry.is_writing:
                entry.is_writing = True
                for index in self._write_set(entry_id):
                    self._write(entry_id, index)
            entry_id += 1
        return None

    def _write_set(self, entry_id: EntryId) -> tuple[int, ...]:
        return write_set(entry_id, self._metadata.ensemble_size, self._metadata.write_quorum_size)

    def _write(self, entry_id: EntryId, index: int) -> None:
        if index not in self._failed:
            self._effects.append(
                WriteBack(entry_id, index, self.ensemble[index], self.last_add_confirmed)
            )

    def on_written(self, entry_id: EntryId, bookie_index: int, bookie_id: BookieId) -> None:
        """Note that a bookie has the entry on disk."""
        entry = self._entries.get(entry_id)
        if entry is not None and entry.is_writing and self.ensemble[bookie_index] == bookie_id:
            entry.acks |= 1 << bookie_index

    def on_write_error(
        self, entry_id: EntryId, bookie_index: int, bookie_id: BookieId, error: QuorumbookError
    ) -> None:
        """Note that a bookie takes no recovery adds; it is replaced, if there is another."""
        del entry_id
        if self.is_done or self.ensemble[bookie_index] != bookie_id:
            return
        if isinstance(error, LocalProtocolError):
            self.fail(error)
        elif bookie_index not in self._failed:
            self._failed[bookie_index] = bookie_id
            self._wants_choice = True

    def _complete(self) -> None:
        """Count the entries at the front that an ack quorum has."""
        done = self.last_entry_id
        while (entry := self._entries.get(done + 1)) is not None:
            if entry.length is None or entry.acks.bit_count() < self._metadata.ack_quorum_size:
                break
            done += 1
            self.length = entry.length
            del self._entries[done]
        if done > self.last_entry_id:
            self.last_entry_id = done
            self._effects.append(ReleasePayloads(done))

    def _choose(self) -> None:
        if self._wants_choice and not self._is_choosing:
            self._wants_choice = False
            self._is_choosing = True
            self._effects.append(ChooseReplacement(dict(self._failed), self.ensemble))

    def on_replacement(self, chosen: Mapping[int, BookieId]) -> None:
        """Write back to new bookies from here on; only the close will tell anybody (R18)."""
        self._is_choosing = False
        if self._phase is not _Phase.ENTRIES:
            return  # the entries were saved without; what Close publishes is settled
        ensemble = list(self.ensemble)
        for index, bookie_id in chosen.items():
            ensemble[index] = bookie_id
        first = self.last_entry_id + 1
        self._fragments = changed_fragments(self._fragments, Fragment(first, tuple(ensemble)))
        for index in chosen:
            self._failed.pop(index, None)
        for entry_id, entry in sorted(self._entries.items()):
            if entry.is_writing:
                for index in self._write_set(entry_id):
                    if index in chosen:
                        entry.acks &= ~(1 << index)
                        self._write(entry_id, index)
        if self._failed and not self._wants_choice:
            self.on_no_replacement()

    def on_no_replacement(self) -> None:
        """Go on if the bookies there are can still make every ack quorum."""
        self._is_choosing = False
        metadata = self._metadata
        mask = sum(1 << index for index in self._failed)
        if self._phase is _Phase.ENTRIES and not can_reach_quorum(
            mask, metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        ):
            self.fail(
                NotEnoughBookiesError(
                    f"ledger {metadata.ledger_id} cannot be recovered now: no bookie is left to "
                    f"replace {', '.join(self._failed.values())}",
                    ledger_id=metadata.ledger_id,
                )
            )

    # The end -------------------------------------------------------------------------------

    def _close(self) -> None:
        if self._needs_length():
            return
        self._phase = _Phase.CLOSING
        metadata = self._metadata.with_fragments(self._fragments)
        self._effects.append(Close(metadata.closed(self.last_entry_id, self.length)))

    def _needs_length(self) -> bool:
        """Ask for the last confirmed entry if only its successor told the length.

        The length that came with the last add confirmed counts the entry that carried it.  If
        that entry turned out not to exist, the length is asked of the last one that does; if
        nobody gives it, the larger number has to do, as with the peer.
        """
        if self.last_entry_id > self.last_add_confirmed or self.last_entry_id < 0:
            return False
        if self._length_probe is None:
            self._length_probe = _Entry()
            self._read(self.last_entry_id)
            return True
        probe = self._length_probe
        if probe.length is not None:
            self.length = probe.length
            return False
        return probe.responded.bit_count() < self._metadata.write_quorum_size

    def on_closed(self) -> None:
        """End well."""
        if self._phase is _Phase.CLOSING:
            metadata = self._metadata.with_fragments(self._fragments)
            self._finish(metadata.closed(self.last_entry_id, self.length))

    def _finish(self, metadata: LedgerMetadata) -> None:
        self._phase = _Phase.OVER
        self._effects.append(Done(metadata))

    def fail(self, error: QuorumbookError) -> None:
        """End this recovery; nothing is closed."""
        if not self.is_done:
            self._phase = _Phase.OVER
            self.error = error
            self._effects.append(RecoveryFailed(error))

    def _fail_undecided(self, reason: str, errors: list[QuorumbookError]) -> None:
        metadata = self._metadata
        causes = "; ".join(str(error) for error in errors)
        error = LedgerRecoveryError(
            f"ledger {metadata.ledger_id} cannot be recovered now: {reason} ({causes})",
            ledger_id=metadata.ledger_id,
        )
        error.__cause__ = errors[0] if errors else None
        self.fail(error)
