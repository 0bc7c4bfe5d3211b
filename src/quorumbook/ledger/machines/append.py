"""The append machine: one writer's view of one open ledger, in batches.

    AppendState(metadata, *, delay_ensemble_change=False, require_replacement=False,
                max_ensemble_changes=None, is_deferred_sync=False, ack_domains=None)
      .push(total_size_bytes, count, sizes=None) -> (first_entry_id, last_add_confirmed, length)
      .on_acks(bookie_index, bookie_id, first_entry_id, last_entry_id)
      .on_failure(bookie_index, bookie_id, error)
      .poll() -> list[Effect]                              after any of the calls above and below
      .on_ensemble_changed(metadata, replaced_indexes)     the compare-and-set went through
      .on_ensemble_change_failed(error)                    it did not; LedgerFencedError and others
      .on_no_replacement(cause=None)                       no bookie is left to choose from
      .on_bookie_back(bookie_index, bookie_id)             a failed member works again
      .retry_replacement()                                 a bookie appeared: try to replace again
      .on_forced(last_entry_id)                            deferred sync: all bookies have synced
      .close_point() -> (last_entry_id, length)            what to close the ledger with
      .close() / .abort(error)                             no more pushes / nothing is waited for
      .targets() -> list[(bookie_index, bookie_id)]        whom to send a pushed batch
      .missing(entry_id) -> list[int]                      who has not acknowledged a pending entry
      .owes(bookie_index) -> bool                          a position has not acknowledged all
      .check()                                             InternalError if an invariant is broken
      .metadata .ensemble .failed .is_open .error .is_changing .is_degraded .has_unknown_tail
      .last_add_pushed .last_add_confirmed .last_add_succeeded .length .pending_count
    Effects: Confirmed(last_entry_id), ChangeEnsemble(failed, first_entry_id, attempt),
      Send(bookie_index, bookie_id, entry_ids), DegradedWarning(failed), Failed(error)
    The writes of the metadata are in ``transitions``.

For speed nothing here walks over entries.  There is one integer for each ensemble position; bit i
says that the bookie there has acknowledged entry ``base + i``, base being the first entry that has
not succeeded.  A chunk of answers is one OR; the entries with an ack quorum come out of a few ANDs
and ORs; the contiguous low ones are confirmed by one effect and shifted out.

The rules it keeps (their numbers are used by its tests):

R1  An entry succeeds with an ack quorum out of its write set in the ensemble that the metadata
    records, after all entries before it.  What a bookie acknowledged is dropped when it is
    replaced, and its entries are sent to the new one.
R2  The last add confirmed only grows, entry by entry; with deferred sync only a force moves it.
R3  A new fragment starts at the last add confirmed + 1, and nothing succeeds between the moment
    this number is taken (``ChangeEnsemble`` leaves ``poll``) and the result of its compare-and-set.
R4  A fenced writer, or one that lost its ledger, stops for good; what is pending has an unknown
    outcome.  So does one that all its bookies refuse; one that refuses it alone is replaced.
R5  A ledger is closed at the last add confirmed with the length up to it.

The driver sends what it pushes to ``targets()``: a failed bookie is left out, and what it misses
reaches its replacement by ``Send``.  Payloads, timers, frames and futures are the driver's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from quorumbook.errors import (
    InternalError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    NotEnoughBookiesError,
    QuorumbookError,
    SecurityError,
    UnauthorizedError,
    WriteFailedError,
)
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.machines.append_effects import (
    AppendFailed,
    ChangeEnsemble,
    Confirmed,
    DegradedWarning,
    Effect,
    Send,
)
from quorumbook.ledger.machines.lengths import Lengths
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.ledger.placement.domains import AckDomains
from quorumbook.ledger.placement.schedule import (
    StripeMasks,
    can_reach_quorum,
    entries_at,
    write_set,
)

#: Refusals that no other bookie can heal: the writer must stop.
FATAL_ERRORS = (LedgerFencedError, LocalProtocolError)


class AppendState:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        delay_ensemble_change: bool = False,
        require_replacement: bool = False,
        max_ensemble_changes: int | None = None,
        is_deferred_sync: bool = False,
        ack_domains: Callable[[LedgerMetadata], AckDomains | None] | None = None,
    ) -> None:
        """Start with a ledger that was just created.

        Args:
            metadata: as it stands in the metadata store; open and without entries.
            delay_ensemble_change: keep a failed bookie's place as long as quorums are in reach.
            require_replacement: fail rather than go on with fewer bookies.
            max_ensemble_changes: after so many no bookie is replaced any more.
            is_deferred_sync: bookies acknowledge before they sync: any failure ends the writer.
            ack_domains: tells for an ensemble in which fault domains its acks count; an entry
                that is not acknowledged in enough of them waits.
        """
        if metadata.state is not LedgerState.OPEN:
            raise LocalProtocolError(
                f"ledger {metadata.ledger_id} is {metadata.state.name}",
                ledger_id=metadata.ledger_id,
            )
        if len(set(metadata.ensemble)) != metadata.ensemble_size:
            raise LocalProtocolError(f"a bookie stands twice in {metadata.ensemble}")
        self.metadata = metadata
        self.ensemble = metadata.ensemble
        self.error: QuorumbookError | None = None
        self._ensemble_size = metadata.ensemble_size
        self._write_quorum_size = metadata.write_quorum_size
        self._ack_quorum_size = metadata.ack_quorum_size
        self._is_striped = metadata.write_quorum_size < metadata.ensemble_size
        self._stripes = StripeMasks(metadata.ensemble_size, metadata.write_quorum_size)
        self._delay_ensemble_change = delay_ensemble_change
        self._require_replacement = require_replacement
        self._max_ensemble_changes = max_ensemble_changes
        self._is_deferred_sync = is_deferred_sync
        self._ack_domains_of = ack_domains or (lambda _: None)
        self._ack_domains = self._ack_domains_of(metadata)

        self._base: EntryId = metadata.last_fragment.first_entry_id
        self._next: EntryId = self._base
        self.last_add_confirmed: EntryId = self._base - 1
        self._acks = [0] * metadata.ensemble_size
        self._lengths = Lengths()
        self._effects: list[Effect] = []
        self._failed: dict[int, BookieId] = {}
        #: Bookies that have another's key of the ledger, or do not let us in.
        self.refusals: dict[BookieId, UnauthorizedError] = {}
        self._change: ChangeEnsemble | None = None
        self._is_change_wanted = False
        self._is_change_urgent = False
        self._attempts = 0
        self._is_degraded = self._is_closed = False

    # What the driver may ask ---------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Tell whether entries can be pushed."""
        return self.error is None and not self._is_closed

    @property
    def length(self) -> int:
        """Return the size of all payloads pushed."""
        return self._lengths.length

    @property
    def last_add_pushed(self) -> EntryId:
        """Return the newest entry's id."""
        return self._next - 1

    @property
    def last_add_succeeded(self) -> EntryId:
        """Return the newest succeeded entry; with deferred sync it may be ahead of the LAC."""
        return self._base - 1

    @property
    def pending_count(self) -> int:
        """Return how many entries were pushed and have not succeeded."""
        return self._next - self._base

    @property
    def failed(self) -> Mapping[int, BookieId]:
        """Return the positions whose bookies failed and are neither replaced nor back."""
        return dict(self._failed)

    @property
    def is_changing(self) -> bool:
        """Tell whether an ensemble change is under way; nothing succeeds meanwhile."""
        return self._change is not None

    @property
    def is_degraded(self) -> bool:
        """Tell whether writing goes on although no bookie could be found for a failed one."""
        return self._is_degraded

    @property
    def has_unknown_tail(self) -> bool:
        """Tell whether the writer failed with entries of unknown outcome behind its LAC."""
        return self.error is not None and self._next - 1 > self.last_add_confirmed

    def targets(self) -> list[tuple[int, BookieId]]:
        """Return positions and bookies that pushed entries are to be sent to.

        With a write quorum below the ensemble size each takes only its own stripe.
        """
        failed = self._failed
        return [item for item in enumerate(self.ensemble) if item[0] not in failed]

    def missing(self, entry_id: EntryId) -> list[int]:
        """Return the positions that store a pending entry and have not acknowledged it."""
        bit = 1 << (entry_id - self._base)
        stored = write_set(entry_id, self._ensemble_size, self._write_quorum_size)
        return [index for index in stored if not self._acks[index] & bit]

    def owes(self, bookie_index: int) -> bool:
        """Tell whether a position has not acknowledged a pending entry that it stores."""
        count = self._next - self._base
        wanted = self._stripes.mask(bookie_index, self._base, count) & ((1 << count) - 1)
        return wanted & ~self._acks[bookie_index] != 0

    # Entries and answers -------------------------------------------------------------------

    def push(
        self, total_size_bytes: int, count: int, sizes: Sequence[int] | None = None
    ) -> tuple[EntryId, EntryId, int]:
        """Take a batch of entries in.

        Args:
            total_size_bytes: size of all payloads together.
            count: how many there are.
            sizes: the size of each; may be left out when all are of one size.

        Returns:
            The id of the first, the last add confirmed to write into all of them, and the
            ledger's length before them.
        """
        if not self.is_open:
            closed = LedgerClosedError("this writer is closed", ledger_id=self.metadata.ledger_id)
            raise self.error or closed
        if count < 1 or (sizes is None and total_size_bytes % count):
            raise LocalProtocolError("entries of different sizes need their sizes")
        first = self._next
        length = self._lengths.length
        self._lengths.push(first, count, total_size_bytes, sizes)
        self._next = first + count
        return first, self.last_add_confirmed, length

    def on_acks(
        self, bookie_index: int, bookie_id: BookieId,
        first_entry_id: EntryId, last_entry_id: EntryId,
    ) -> None:  # fmt: skip
        """Note that a bookie has these entries; what it was never sent counts nothing."""
        if self.ensemble[bookie_index] != bookie_id:
            return
        base = self._base
        first_entry_id = max(first_entry_id, base)
        last_entry_id = min(last_entry_id, self._next - 1)
        count = last_entry_id - first_entry_id + 1
        if count <= 0:
            return
        bits = ((1 << count) - 1) << (first_entry_id - base)
        if self._is_striped:
            bits &= self._stripes.mask(bookie_index, base, self._next - base)
        self._acks[bookie_index] |= bits

    def on_failure(self, bookie_index: int, bookie_id: BookieId, error: QuorumbookError) -> None:
        """Note that a bookie failed an add, or that its connection is gone.

        Entries that it has acknowledged stay acknowledged until it is replaced: they are on its
        disk.  Failures of bookies that were replaced meanwhile say nothing.
        """
        if self.error is not None or self.ensemble[bookie_index] != bookie_id:
            return
        if isinstance(error, UnauthorizedError):
            self.refusals[bookie_id] = error
        is_refused = bookie_id in self.refusals
        is_final = self._is_deferred_sync or self.refusals.keys() >= set(self.ensemble)
        if isinstance(error, FATAL_ERRORS) or (is_refused and is_final):
            self._fail(error)
        elif is_refused or bookie_index not in self._failed:
            self._failed[bookie_index] = bookie_id
            if self._is_deferred_sync:
                # A replacement cannot hold what was acknowledged before it was synced.
                what = f"bookie {bookie_id} failed ({error}); with deferred sync none is replaced"
                ledger_id = self.metadata.ledger_id
                self._fail(WriteFailedError(what, ledger_id=ledger_id, bookie_id=bookie_id))
            elif is_refused or not (self._delay_ensemble_change and self.is_viable):
                self._is_change_wanted = True

    def poll(self) -> list[Effect]:
        """Return what there is to do now; each effect is returned once."""
        # A failure behind the last pending entry waits for the next push.
        is_due = self._next > self._base or self._is_change_urgent
        if is_due and self.error is None and self._change is None:
            self._advance()
            if self._is_change_wanted and (self._next > self._base or self._is_change_urgent):
                self._start_change()
        if not self._effects:
            return []
        effects, self._effects = self._effects, []
        return effects

    def _advance(self) -> None:
        """Confirm the entries at the front that have an ack quorum."""
        quorum = self._ack_quorum_size
        if sum([bits & 1 for bits in self._acks]) < quorum:
            return
        # at_least[k]: the entries with more than k acks; adding a position is a saturating count.
        at_least = [0] * quorum
        for bits in self._acks:
            if bits:
                for k in range(quorum - 1, 0, -1):
                    at_least[k] |= at_least[k - 1] & bits
                at_least[0] |= bits
        done = at_least[-1]
        if self._ack_domains is not None:
            done &= self._ack_domains.enough(self._acks)
        if not done & 1:
            return
        count = (~done & (done + 1)).bit_length() - 1
        self._base += count
        self._acks = [bits >> count for bits in self._acks]
        if not self._is_deferred_sync:
            self._confirm(self._base - 1)
        self._effects.append(Confirmed(self._base - 1))

    def _confirm(self, last_entry_id: EntryId) -> None:
        self.last_add_confirmed = last_entry_id
        self._lengths.confirm(last_entry_id)

    def on_forced(self, last_entry_id: EntryId) -> None:
        """Note that every bookie of the ensemble has synced the entries up to this one.

        Args:
            last_entry_id: ``last_add_succeeded`` of when the force was sent.
        """
        if self.error is None and last_entry_id > self.last_add_confirmed:
            self._confirm(last_entry_id)

    # Ensemble changes ----------------------------------------------------------------------

    @property
    def is_viable(self) -> bool:
        """Tell whether every entry can be acknowledged without the failed bookies."""
        mask = sum(1 << index for index in self._failed)
        is_spread = self._ack_domains is None or self._ack_domains.can_reach(mask)
        return is_spread and can_reach_quorum(
            mask, self._ensemble_size, self._write_quorum_size, self._ack_quorum_size
        )

    def _start_change(self) -> None:
        self._is_change_wanted = self._is_change_urgent = False
        if self._max_ensemble_changes is not None and self._attempts >= self._max_ensemble_changes:
            self._go_on_degraded(f"{self._attempts} ensemble changes are the allowed number")
            return
        self._attempts += 1
        # From here to the result nothing succeeds: this is the number that gets recorded (R3).
        self._change = ChangeEnsemble(dict(self._failed), self._base, self._attempts)
        self._effects.append(self._change)

    def on_ensemble_changed(
        self, metadata: LedgerMetadata, replaced_indexes: Iterable[int]
    ) -> None:
        """Take over what is recorded now.

        Args:
            metadata: as written, or as found if somebody else had replaced the bookies.
            replaced_indexes: the positions that got a new bookie, even the one they had before
                the last.
        """
        change = self._change
        if self.error is not None:
            self.metadata = metadata  # what a close has to start from
            return
        if change is None:
            raise InternalError("no ensemble change was asked for")
        first = metadata.last_fragment.first_entry_id
        if metadata.state is not LedgerState.OPEN or first > change.first_entry_id:
            raise InternalError(f"ensemble change {change} led to {metadata}")
        old = self.ensemble
        self.metadata, self.ensemble = metadata, metadata.ensemble
        self._ack_domains = self._ack_domains_of(metadata)
        self._change = None
        replaced = set(replaced_indexes)
        replaced.update(i for i, bookie_id in enumerate(self.ensemble) if bookie_id != old[i])
        for index in sorted(replaced):
            self._acks[index] = 0
            self._failed.pop(index, None)
            self._send_pending(index)
        # Bookies that failed meanwhile have asked for a change; it tries those again that are left.
        if self._failed and not set(self._failed) - set(change.failed):
            self._go_on_degraded("too few bookies are left", is_partial=bool(replaced))
        if not self._failed:
            self._is_degraded = self._is_change_wanted = False

    def on_ensemble_change_failed(self, error: QuorumbookError) -> None:
        """Stop: the metadata was not, or cannot be, changed."""
        self._change = None
        if isinstance(error, NotEnoughBookiesError):
            self._go_on_degraded(str(error))
        else:
            self._fail(error)

    def on_no_replacement(self, cause: SecurityError | None = None) -> None:
        """Go on with the bookies there are, if they are enough for every ack quorum.

        ``cause`` says that bookies are there and we don't let each other in.
        """
        self._change = None
        self._go_on_degraded("no bookie is left to replace them", cause=cause)

    def on_bookie_back(self, bookie_index: int, bookie_id: BookieId) -> None:
        """Use a failed member again; it gets every pending entry it may have missed.

        The recorded ensemble never lost it, so nothing needs to be written.
        """
        if (
            self.error is not None
            or self._change is not None
            or self._failed.get(bookie_index) != bookie_id
        ):
            return
        del self._failed[bookie_index]
        self._send_pending(bookie_index)
        if not self._failed:
            self._is_degraded = self._is_change_wanted = self._is_change_urgent = False

    def retry_replacement(self) -> None:
        """Look for a replacement again, because a bookie appeared."""
        if self.error is None and self._failed and self._change is None:
            self._is_change_wanted = self._is_change_urgent = True

    def _go_on_degraded(
        self, reason: str, *, is_partial: bool = False, cause: SecurityError | None = None
    ) -> None:
        if self.error is not None:
            return
        self._is_change_wanted = self._is_change_urgent = False
        # In the place of one that refuses a stranger's entries might be read.
        refusals = [self.refusals[each] for each in self._failed.values() if each in self.refusals]
        if refusals or not self.is_viable or (self._require_replacement and not is_partial):
            names = ", ".join(self._failed[index] for index in sorted(self._failed))
            failure = NotEnoughBookiesError(
                f"ledger {self.metadata.ledger_id} cannot go on without {names}: {reason}",
                ledger_id=self.metadata.ledger_id,
            )
            self._fail(refusals[0] if refusals else cause or failure)
        elif not self._is_degraded:
            self._is_degraded = True
            self._effects.append(DegradedWarning(dict(self._failed)))

    def _send_pending(self, index: int) -> None:
        entry_ids = entries_at(
            index, self._base, self._next - 1, self._ensemble_size, self._write_quorum_size
        )
        if entry_ids:
            self._effects.append(Send(index, self.ensemble[index], entry_ids))

    # The end -------------------------------------------------------------------------------

    def _fail(self, error: QuorumbookError) -> None:
        if self.error is None:
            self.error = error
            self._change = None
            self._effects.append(AppendFailed(error))

    def close(self) -> None:
        """Take no more entries; pending ones may still succeed."""
        self._is_closed = True

    def abort(self, error: QuorumbookError) -> None:
        """Stop at once, for instance because an add waited too long."""
        self._fail(error)

    def close_point(self) -> tuple[EntryId, int]:
        """Return the last entry and the length to close the ledger with (R5)."""
        last = self.last_add_confirmed
        return last, self._lengths.length_after(last)

    # Invariants ----------------------------------------------------------------------------

    def check(self) -> None:
        """Derive again what the fields claim; for tests and the simulation."""
        pending = self._next - self._base
        self._lengths.check(self.last_add_confirmed, self._next)
        problems = {
            "last add confirmed beyond succeeded": self.last_add_confirmed > self._base - 1,
            "negative pending count": pending < 0,
            "acks of what was not pushed": any(bits >> pending for bits in self._acks),
            "failed bookie is not a member": any(
                self.ensemble[index] != bookie_id for index, bookie_id in self._failed.items()
            ),
            "base moved during a change": (
                self._change is not None and self._change.first_entry_id != self._base
            ),
            "a fragment beyond the confirmed entries": (
                self.metadata.last_fragment.first_entry_id > self._base
            ),
            "acks out of the write set": self._is_striped
            and any(
                bits & ~self._stripes.mask(index, self._base, pending)
                for index, bits in enumerate(self._acks)
            ),
        }
        for problem, is_real in problems.items():
            if is_real:
                raise InternalError(f"append machine of {self.metadata.ledger_id}: {problem}")
