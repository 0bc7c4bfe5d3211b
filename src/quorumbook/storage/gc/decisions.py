"""What garbage collection may do, as pure decisions: which ledgers are gone, which logs pay.

A ledger is taken for deleted only on positive proof (R27).  ``Suspicions`` keeps who was found
missing since when; anything that makes an earlier finding doubtful (another session, a listing
that failed) makes it start anew.  Asking is left to ``collector``, deleting to the storage.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from typing import NamedTuple

from quorumbook.storage.entrylog.format import HEADER_SIZE
from quorumbook.storage.gc.ledger_ranges import LedgerRanges
from quorumbook.storage.options import GcOptions

#: A pass may always delete this many, however few ledgers there are.
LEDGERS_ALWAYS = 1000
#: So many deletions are remembered at most, the latest.
DELETIONS_MAX = 1_000_000


class PassWish(enum.Flag):
    """What somebody asks of a pass beyond what it does by itself."""

    NOTHING = 0
    #: All ledgers that are proven gone, not a share of them.
    ALL_PROVEN = enum.auto()
    MINOR = enum.auto()
    MAJOR = enum.auto()


class Suspicions:
    """Ledgers that the metadata store did not know, and since when."""

    def __init__(self, distance_ns: int) -> None:
        self._distance_ns = distance_ns
        #: Who was first found missing when; nobody is in two of them.
        self._since: dict[int, LedgerRanges] = {}
        self._session: object = None

    def __len__(self) -> int:
        return sum(map(len, self._since.values()))

    def see(self, missing: LedgerRanges, session: object, now_ns: int) -> LedgerRanges:
        """Take over who is missing now; return who was long enough ago, in the same session."""
        before = self._since if session == self._session else {}
        self._session = session
        again = {since: found & missing for since, found in before.items()}
        new = missing - LedgerRanges.union(again.values())
        kept = {**again, now_ns: new | again.get(now_ns, LedgerRanges())}
        self._since = {since: found for since, found in kept.items() if found}
        return LedgerRanges.union(
            found for since, found in again.items() if now_ns - since >= self._distance_ns
        )

    def forget(self) -> None:
        """Begin anew: what was found before proves nothing any more."""
        self._since.clear()


def ledgers_at_a_time(due: int, known: int, share_max: float, *, is_forced: bool) -> int:
    """Return how many of the ledgers that are due a pass may delete.

    A metadata store that was put back to an old backup denies ledgers that live; a cap leaves
    time to see that.
    """
    return due if is_forced else min(due, max(LEDGERS_ALWAYS, int(known * share_max)))


class LogUsage(NamedTuple):
    """An entry log and what of it is alive."""

    entry_log_id: int
    size_bytes: int
    live_bytes: int
    runs: int
    ledgers: int
    is_open: bool = False
    #: What is left of it cannot be read, so it cannot be moved.
    is_stuck: bool = False

    @property
    def body_bytes(self) -> int:
        """Return its size without the header, which a log that is written anew has as well.

        With it a small log counted as half empty, and each pass wrote it anew as it was.
        """
        return max(self.size_bytes - HEADER_SIZE, 0)

    @property
    def live_ratio(self) -> float:
        """Return the share of its body that the index points to."""
        return min(self.live_bytes / self.body_bytes, 1.0) if self.body_bytes else 0.0


class GcPlan(NamedTuple):
    """What a pass would do as things stand; the ledgers' logs become free by that themselves."""

    missing_ledgers: int
    removable_logs: int
    removable_bytes: int
    compacted_logs: int
    moved_bytes: int
    reclaimed_bytes: int


def plan(missing_ledgers: int, usages: Iterable[LogUsage], threshold: float) -> GcPlan:
    """Say what a pass would do.

    Args:
        missing_ledgers: How many the cluster denies now.
        usages: Of all entry logs.
        threshold: Logs with a smaller share of live bytes are compacted; 0: none.
    """
    known = list(usages)
    unused = [usage.size_bytes for usage in known if not usage.runs and not usage.is_open]
    chosen = worth_compacting(known, threshold)
    moved = sum(usage.live_bytes for usage in chosen)
    size = sum(usage.body_bytes for usage in chosen)
    return GcPlan(missing_ledgers, len(unused), sum(unused), len(chosen), moved, size - moved)


def worth_compacting(usages: Iterable[LogUsage], threshold: float) -> list[LogUsage]:
    """Return the logs to compact, those first that give most space back for least work."""
    chosen = [
        usage
        for usage in usages
        if usage.runs and usage.live_ratio < threshold and not usage.is_open and not usage.is_stuck
    ]
    return sorted(chosen, key=lambda usage: (usage.live_ratio, usage.entry_log_id))


def removable(unused: Iterable[int], open_ids: Set[int]) -> list[int]:
    """Return the logs without runs that nobody writes to."""
    return sorted(set(unused) - open_ids)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def fate(usage: LogUsage, options: GcOptions) -> str:
    """Say what keeps a log, and what happens to it next."""
    if usage.is_open:
        return "it is being written"
    if not usage.runs:
        return "nothing keeps it; the next pass deletes it"
    kept = (
        f"{_counted(usage.runs, 'run')} of {_counted(usage.ledgers, 'ledger')} "
        f"{'keeps' if usage.runs == 1 else 'keep'} {usage.live_bytes} of "
        f"{usage.body_bytes} bytes ({usage.live_ratio:.0%})"
    )
    if usage.is_stuck:
        return f"{kept}; they cannot be read, so the log stays until they are repaired"
    if usage.live_ratio < options.minor_compaction_threshold:
        return f"{kept}; the next minor compaction moves them"
    if usage.live_ratio < options.major_compaction_threshold:
        return f"{kept}; the next major compaction moves them"
    return f"{kept}; it stays until more of it is deleted"
