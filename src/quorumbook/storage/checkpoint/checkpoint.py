"""Checkpoints: what is durable in the journal goes to where it stays, then the mark advances.

The order is what a crash at any point relies on (R21):

    1. entries into entry logs, ledgers ascending, neighbours merged; logs and names synced
    2. one index transaction: runs, ledger states, the mark
    3. the copies of the ledger states, if any changed
    4. lastMark in every ledger directory
    5. journals below the smallest mark retired

A checkpoint is fixed when the write caches are swapped: the full cache, the states that changed
and the end of the last durable group.  If a step fails, the same checkpoint is run again later,
from that step on; its entries stay readable in their cache meanwhile.  A checkpoint without
entries still brings states and mark along (S37).

Entries are written in pieces (``entrylog/writer.py``).  Between two of them some of
the space of retired journals is given back, and ``rest`` is called: whoever set it keeps the pace.
States are made ready and committed in short pieces, with ``pause`` between them.

``Checkpointer.run`` blocks and belongs to the flush worker; ``flusher`` decides when to flush.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google_crc32c import value as crc32c

from quorumbook.errors import DiskFullError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.cache.write import WriteCache
from quorumbook.storage.entrylog.writer import WRITE_BUFFER_BYTES, EntryLogs
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import DamagedIndexError, Index
from quorumbook.storage.journal.marks import NO_MARK, LastMarks, LogMark, Marks, furthest
from quorumbook.storage.journal.removal import JournalRemoval
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.states.state_file import Deletion, StateCopies, StoredLedger

#: Meta of the index: the mark that it has reached.
MARK_KEY = "mark"
#: Meta of the index: why a limbo start is due, and the ledger id that stands for it in copies.
LIMBO_START_KEY = "limbo_start"
#: In ``meta``: the first id of an entry log that a rebuild cannot have missed because it was away.
REBUILT_KEY = "rebuilt_below"
LIMBO_START_ID: LedgerId = -1
_MARK = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19})")
#: Shorter stretches are not shown to the read cache: thousands of them would hold up the loop.
_KEPT_SIZE_BYTES = 64 * 1024
#: A piece of a checkpoint is 256 KB, or so many stretches, which take some 2 ms to lay out.
_PIECE_RUNS = 256
#: So many states are made ready between two pauses: half a millisecond.
_PIECE_STATES = 256


def missed_by_rebuild(index: IndexReader, entry_log_ids: Iterable[int]) -> list[int]:
    """Return the logs that were away when the index was rebuilt: it knows nothing of them."""
    below = int(index.meta(REBUILT_KEY) or 0)
    unknown = {each for each in entry_log_ids if each < below} - index.entry_logs().keys()
    return sorted(each for each in unknown if not index.runs_behind(each, 0, 1))


def encode_index_marks(marks: Sequence[LogMark]) -> str:
    """Return the marks of all journals as the index remembers them."""
    return ",".join(f"{mark.journal_id}:{mark.offset}" for mark in marks)


def decode_index_marks(text: str | None, count: int) -> Marks:
    """Parse what ``encode_index_marks`` made for so many journals; nothing is ``NO_MARK``.

    Raises:
        DamagedIndexError: Nobody made that.
    """
    if text is None:
        return (NO_MARK,) * count
    matches = [_MARK.fullmatch(part) for part in str(text).split(",")]
    marks = tuple(LogMark(int(match[1]), int(match[2])) for match in matches if match)
    if len(marks) != len(matches) or len(marks) != count:
        raise DamagedIndexError(f"the index is damaged: {text!r} is not a mark of {count} journals")
    return marks


@dataclass(slots=True)
class Checkpoint:
    """Everything that one checkpoint brings to its place."""

    cache: WriteCache
    marks: Marks
    handles: list[LedgerHandle] = field(default_factory=list)
    deleted: list[Deletion] = field(default_factory=list)
    #: None leaves the limbo start as it is, "" ends it, a reason demands it.
    limbo_start: str | None = None
    #: Where its entries lie, once they are durable there; only the later steps are left then.
    runs: list[StoredRun] | None = None
    #: Where its entries begin in the entry logs: the birth of ledgers that are new with it.
    begins_at: int = 0
    #: The index has it; only the later steps are left.
    is_committed: bool = False
    #: What of the handles is stored, taken on the worker: thousands at once would hold the loop.
    #: It may be newer than the mark, which does no harm: nothing in it is ever taken back.
    states: list[StoredLedger] = field(default_factory=list)
    #: Of which of them the index had none before.
    new_ledgers: set[LedgerId] = field(default_factory=set)
    #: Directories whose copy of the states has them.
    copied_to: set[str] = field(default_factory=set)
    #: Ranges whose older entries were replaced.
    replaced: list[tuple[LedgerId, EntryId, EntryId]] = field(default_factory=list)

    def take_apart(self, count: int) -> bool:
        """Free so many of each thing that a settled checkpoint holds; tell whether some are left.

        All at once would hold the loop: 30 ms for 40,000 ledgers.
        """
        parts: list[list[Any]] = [self.handles, self.states, self.replaced, self.runs or []]
        for part in parts:
            del part[-count:]
        return self.cache.take_apart(count) or any(parts)


@dataclass(slots=True)
class FlushStatistics:
    """Counters since the start; times are nanoseconds."""

    checkpoints: int = 0
    failed: int = 0
    runs: int = 0
    bytes_flushed: int = 0
    flush_ns: int = 0
    journals_deleted: int = 0


class Checkpointer:
    """Carries checkpoints out, one after the other.

    Args:
        index: The writer.
        entry_logs: The writer.
        copies: The copies of the ledger states.
        marks: lastMark in all ledger directories.
        journals: Removes journals below a mark.
        now_ns: The clock.
    """

    def __init__(
        self,
        index: Index,
        entry_logs: EntryLogs,
        copies: StateCopies,
        marks: LastMarks,
        journals: JournalRemoval,
        *,
        now_ns: Callable[[], int],
    ) -> None:
        self._index = index
        self._entry_logs = entry_logs
        self._copies = copies
        self._marks = marks
        self.journals = journals
        #: Told about every long stretch that was appended, on the worker.
        self.on_stretch: Callable[[EntryRun], None] = lambda _: None
        self._now_ns = now_ns
        #: Called between two pieces with the share of the checkpoint's bytes that is written.
        self.rest: Callable[[float], None] = lambda _: None
        #: Called between two pieces of ledgers' states and of the commit, which are short.
        self.pause: Callable[[], None] = lambda: None
        self._known_logs: set[int] = set()
        #: Runs may lie in entry logs that the index is yet to hear of: no log may be removed.
        self.has_unindexed_runs = False
        #: Never behind what the index says: several flushes of one replay share an early mark.
        self.index_marks = decode_index_marks(index.meta(MARK_KEY), marks.journal_count)
        self.statistics = FlushStatistics()

    def run(self, checkpoint: Checkpoint) -> Checkpoint:
        """Carry a checkpoint out; after an error the same one may be run again."""
        started = self._now_ns()
        try:
            if not checkpoint.is_committed:
                self._store(checkpoint)
                checkpoint.is_committed = True
            self._copy_states(checkpoint)
            minima = self._marks.advance_all(checkpoint.marks)
            self.statistics.journals_deleted += self.journals.retire(minima)
            self.journals.release_some()
        except BaseException as error:
            self.statistics.failed += 1
            if isinstance(error, DiskFullError):
                self.journals.release_all()
            raise
        self.statistics.checkpoints += 1
        self.statistics.flush_ns += self._now_ns() - started
        return checkpoint

    def _store(self, checkpoint: Checkpoint) -> None:
        runs = checkpoint.runs
        if runs is None:
            checkpoint.begins_at = self._entry_logs.next_place
            runs = list(self._append(checkpoint.cache))
            self._entry_logs.sync()
            # Not again if the index fails: every attempt would fill the disk with another copy.
            checkpoint.runs = runs
            self.has_unindexed_runs = True
        checkpoint.states = self._states_of(checkpoint)
        new_logs = {run.entry_log_id for run in runs} - self._known_logs
        index_marks = furthest(self.index_marks, checkpoint.marks)
        meta: list[tuple[str, str | None]] = [(MARK_KEY, encode_index_marks(index_marks))]
        if checkpoint.limbo_start is not None:
            meta.append((LIMBO_START_KEY, checkpoint.limbo_start or None))
        checkpoint.replaced = self._index.commit(
            runs=runs,
            states=checkpoint.states,
            entry_logs=[(log_id, self._entry_logs.directory_of(log_id)) for log_id in new_logs],
            deleted_ledgers=[each.ledger_id for each in checkpoint.deleted],
            deletions=[each for each in checkpoint.deleted if each.at_ms is not None],
            meta=meta,
            pause=self.pause,
        )
        self.has_unindexed_runs = False
        self.index_marks = index_marks
        self._known_logs |= new_logs
        self.statistics.runs += len(runs)
        self.statistics.bytes_flushed += checkpoint.cache.data_bytes

    def _states_of(self, checkpoint: Checkpoint) -> list[StoredLedger]:
        deleted = {deletion.ledger_id for deletion in checkpoint.deleted}
        states: list[StoredLedger] = []
        new: list[LedgerId] = []
        for start in range(0, len(checkpoint.handles), _PIECE_STATES):
            if start:
                self.pause()
            handles = checkpoint.handles[start : start + _PIECE_STATES]
            ledger_ids = [handle.ledger_id for handle in handles]
            births = self._index.births(ledger_ids)
            for ledger_id in deleted.intersection(births):
                del births[ledger_id]
            new += [ledger_id for ledger_id in ledger_ids if ledger_id not in births]
            begins_at = checkpoint.begins_at
            states += [handle.state(births.get(handle.ledger_id, begins_at)) for handle in handles]
        checkpoint.new_ledgers = {*new}
        return states

    def _append(self, cache: WriteCache) -> Iterator[StoredRun]:
        written = rested = 0
        for number, run in enumerate(cache.stretches(), 1):
            checksum = crc32c(run.data)
            location = self._entry_logs.append_run(run, checksum)
            if len(run.data) >= _KEPT_SIZE_BYTES:
                self.on_stretch(run)
            written += len(run.data)
            if written - rested >= WRITE_BUFFER_BYTES or not number % _PIECE_RUNS:
                rested = written
                self.journals.release_some()
                self.rest(written / cache.data_bytes)
            yield StoredRun(
                run.ledger_id,
                run.first_entry_id,
                run.last_entry_id,
                location.entry_log_id,
                location.position,
                run.sizes,
                checksum,
                run.last_add_confirmed(),
            )

    def _copy_states(self, checkpoint: Checkpoint) -> None:
        changed: Sequence[StoredLedger] = checkpoint.states
        deleted = checkpoint.deleted
        if checkpoint.limbo_start:
            changed = [*changed, StoredLedger(LIMBO_START_ID, b"", is_in_limbo=True)]
        elif checkpoint.limbo_start == "":
            deleted = [*deleted, Deletion(LIMBO_START_ID, None)]
        self._copies.write(
            changed, deleted, self._all_states, checkpoint.new_ledgers, checkpoint.copied_to
        )

    def copy_states(self, states: Sequence[StoredLedger]) -> None:
        """Bring states that the index has into the copies, which lack them."""
        if states:
            self._copies.write(states, [], self._all_states)

    def _all_states(self) -> Iterator[StoredLedger | Deletion]:
        yield from self._index.deletions()
        yield from self._index.ledger_states()
        if self._index.meta(LIMBO_START_KEY) is not None:
            yield StoredLedger(LIMBO_START_ID, b"", is_in_limbo=True)
