"""The LAC read: the last add confirmed of a ledger that is being written, as bookies know it.

    LacReadState(metadata, *, known=-1, is_try=False)
      .bookies -> tuple[(bookie_index, bookie_id), ...]   ask all of them at once
      .on_answer(bookie_index, last_add_confirmed)        the larger of explicit and last entry's
      .on_error(bookie_index, error)
      .is_done .error .last_add_confirmed

The result is the greatest number heard, once the answers cover every ack quorum.  It is a lower
bound of what the writer knows: a bookie that lost its data answers too, and nobody is fenced, so a
later read may give more.  With ``is_try`` the first number beyond ``known`` is good enough, and
so is any answer at all.
"""

from __future__ import annotations

from quorumbook.errors import QuorumbookError
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId
from quorumbook.ledger.machines.read import NEGATIVE_ERRORS, worst_error
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import is_covered


class LacReadState:
    """See the module's docstring."""

    def __init__(
        self, metadata: LedgerMetadata, *, known: EntryId = INVALID_ENTRY_ID, is_try: bool = False
    ) -> None:
        """Start a read.

        Args:
            metadata: the ledger's; of a closed ledger it says the last entry itself.
            known: what the caller knows already; the result is never below.
            is_try: be content with the first progress.
        """
        self._metadata = metadata
        self._known = known
        self._is_try = is_try
        self._answered = 0
        self._responded = 0
        self._errors: dict[int, QuorumbookError] = {}
        # What stands before the last fragment was confirmed when it was made.
        self.last_add_confirmed: EntryId = max(known, metadata.last_fragment.first_entry_id - 1)
        self.is_done = False
        self.error: QuorumbookError | None = None

    @property
    def bookies(self) -> tuple[tuple[int, BookieId], ...]:
        """Return whom to ask: the whole last ensemble."""
        return tuple(enumerate(self._metadata.ensemble))

    def on_answer(self, bookie_index: int, last_add_confirmed: EntryId) -> None:
        """Take a bookie's answer; -1 if it has the ledger but confirms nothing."""
        if self.is_done:
            return
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
        self._answered |= 1 << bookie_index
        self._responded |= 1 << bookie_index
        self._settle()

    def on_error(self, bookie_index: int, error: QuorumbookError) -> None:
        """Take a bookie's refusal; that it has no such ledger or entry is an answer too."""
        if self.is_done:
            return
        self._responded |= 1 << bookie_index
        if isinstance(error, NEGATIVE_ERRORS):
            self._answered |= 1 << bookie_index
        else:
            self._errors[bookie_index] = error
        self._settle()

    def _settle(self) -> None:
        metadata = self._metadata
        if (self._is_try and self.last_add_confirmed > self._known) or is_covered(
            self._answered,
            metadata.ensemble_size,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
        ):
            self.is_done = True
        elif self._responded == (1 << metadata.ensemble_size) - 1:
            self.is_done = True
            if not (self._is_try and self._answered):
                errors = [self._errors[index] for index in sorted(self._errors)]
                self.error = worst_error(errors, metadata.ledger_id, INVALID_ENTRY_ID)
