"""What the model of an index holds, and what of it is durable.  ``index`` says what it models."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.states.state_file import Deletion, StoredLedger


@dataclass(frozen=True)
class Tables:
    """What an index holds; one that is changed is another one."""

    #: By ledger, ascending.
    runs: dict[LedgerId, list[StoredRun]] = field(default_factory=dict)
    entry_logs: dict[int, str] = field(default_factory=dict)
    states: dict[LedgerId, StoredLedger] = field(default_factory=dict)
    deleted: dict[LedgerId, Deletion] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Tables:
        """Return one that can be changed; lists of runs are exchanged, not changed."""
        return Tables(
            dict(self.runs),
            dict(self.entry_logs),
            dict(self.states),
            dict(self.deleted),
            dict(self.meta),
        )

    def all_runs(self) -> Iterator[StoredRun]:
        """Yield all runs by ledger and first entry."""
        for ledger_id in sorted(self.runs):
            yield from self.runs[ledger_id]

    def put(self, run: StoredRun) -> None:
        """Put a run in its place, or in that of the one that begins there."""
        rows = self.runs.get(run.ledger_id, [])
        kept = [each for each in rows if each.first_entry_id != run.first_entry_id]
        at = bisect_right(kept, run.first_entry_id, key=first_entry_of)
        self.runs[run.ledger_id] = [*kept[:at], run, *kept[at:]]

    def drop(self, run: StoredRun) -> None:
        """Forget a run."""
        rows = self.runs[run.ledger_id]
        kept = [each for each in rows if each.first_entry_id != run.first_entry_id]
        if kept:
            self.runs[run.ledger_id] = kept
        else:
            del self.runs[run.ledger_id]

    def between(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> list[StoredRun]:
        """Return the runs that touch a range of ids."""
        rows = self.runs.get(ledger_id, [])
        return [r for r in rows if r.first_entry_id <= last and r.last_entry_id >= first]

    def lay_over(self, run: StoredRun) -> bool:
        """Put a run over what is there; tell whether something was."""
        older = self.between(run.ledger_id, run.first_entry_id, run.last_entry_id)
        if older and run.has_holes:
            # What an older run has of a hole stays.
            for piece in run.without_holes():
                self.lay_over(piece)
            return True
        for old in older:
            self.drop(old)
            before = old.entry_before(run.first_entry_id)
            if before is not None:
                self.put(old.part(old.first_entry_id, before))
            after = old.entry_after(run.last_entry_id)
            if after is not None:
                self.put(old.part(after, old.last_entry_id))
        self.put(run)
        return bool(older)

    def repoint(self, old: StoredRun, entry_log_id: int, position: int) -> bool:
        """Move a run if it still lies where it did."""
        for found in self.runs.get(old.ledger_id, []):
            if found[:5] == old[:5]:
                moved = old._replace(entry_log_id=entry_log_id, position=position)
                self.put(normal(moved))
                return True
        return False


@dataclass
class Stored:
    """One index on a disk."""

    visible: Tables = field(default_factory=Tables)
    durable: Tables = field(default_factory=Tables)
    #: Written, and not synced; or its sync failed, and the process that wrote it does not see it.
    pending: Tables | None = None
    is_distrusted: bool = False
    #: A sync failed, so all that was written since these may be gone after a power cut: what is
    #: appended to a lost part of the log of changes is lost with it.
    lost_to: Tables | None = None
    #: That part is the end of the log, where the next commit goes.
    is_end_lost: bool = False

    def found(self) -> None:
        """Be opened by the next process."""
        if self.pending is not None:
            self.visible, self.pending = self.pending, None
        self.is_end_lost = False

    def drop_end(self) -> None:
        """Forget a commit whose sync failed: another one lies there now, or the log is gone."""
        self.pending = None
        if self.is_end_lost:
            self.lost_to, self.is_end_lost = None, False

    def fail_sync(self, *, is_end: bool) -> None:
        """Take what is not durable for clean: no later sync writes it."""
        if self.lost_to is None:
            self.lost_to, self.is_end_lost = self.durable, is_end

    def written(self) -> Stored:
        """Return it with all that was written, durable."""
        tables = self.pending or self.visible
        return Stored(tables, tables, None, self.is_distrusted)

    def after_crash(self, rng: random.Random, keep: float, shares: Sequence[float]) -> Stored:
        """Return it as a power cut leaves it.

        Args:
            rng: Decides.
            keep: The probability that what was not synced is there.
            shares: Such probabilities for what a failed sync was to write; one of them it is.
        """
        tables = (self.pending or self.visible) if rng.random() < keep else self.durable
        if self.lost_to is not None and rng.random() >= rng.choice(shares):
            tables = self.lost_to
        return Stored(tables, tables, None, self.is_distrusted)


def first_entry_of(run: StoredRun) -> EntryId:
    """Return where a run begins."""
    return run.first_entry_id


def normal(run: StoredRun) -> StoredRun:
    """Return a run as one that was read has its sizes."""
    if isinstance(run.sizes, int | array):
        return run
    return run._replace(sizes=array("I", run.sizes))
