"""What is done to entry logs besides filling them: counting what lives, removing, compacting.

Compaction moves runs, never entries: one read, one check, one write.  The order is what a crash
at any point relies on:

    1. runs are copied to a log of compaction's own; the log and its name are synced
    2. one index transaction points them there, each only if it still lies where it was copied from
    3. a log that no run lies in any more is unlinked, after that transaction is durable

So a crash leaves a log that nothing points to, which the next start removes, or an old log with
less in it, which a later pass finds.

An index that is rebuilt lets the log with the higher id win.  Copies are old, and may end up in a
log younger than the one that is being flushed to; that one is finished then, so that whatever is
added after the copy also lies behind it.

On a full disk the end of the old log is cut off behind each step, so that moving it takes no more
space than one step; a file of some MB is kept for that step.

All calls block and run on the flush worker, which they share with checkpoints; when, and how
fast, is decided by ``collector``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quorumbook.env import Env, logger
from quorumbook.errors import StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.checkpoint.checkpoint import Checkpointer, missed_by_rebuild
from quorumbook.storage.directories.reserve import COMPACTION_NAME, Reserve
from quorumbook.storage.entrylog.format import entry_log_name, is_start_of_run
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.entrylog.writer import EntryLogs, delete_entry_log, find_entry_logs
from quorumbook.storage.gc.decisions import LogUsage, removable
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import Index
from quorumbook.storage.options import Damage
from quorumbook.storage.reading.loading import Loader, ReadStatistics

_log = logger("storage.gc")


@dataclass(slots=True)
class CompactionStep:
    """What one step did; ``is_done`` when nothing of the log is left to be moved."""

    is_done: bool = False
    moved_bytes: int = 0
    moved_runs: int = 0
    #: By how much the logs and positions of a ledger's runs, each summed up, grew by the move.
    shifts: dict[LedgerId, tuple[int, int]] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)


def log_usages(
    env: Env,
    directories: Sequence[str],
    live: Mapping[int, tuple[int, int, int]],
    open_ids: frozenset[int],
) -> list[LogUsage]:
    """Return all entry logs, with what the index says of what lives in them."""
    usages = []
    for entry_log_id, directory in sorted(find_entry_logs(env, directories).items()):
        path = f"{directory}/{entry_log_name(entry_log_id)}"
        try:
            file = env.disk.open(path, read_only=True)
        except StorageError:
            # It was removed meanwhile.
            continue
        try:
            size = file.size_bytes()
        finally:
            file.close()
        bytes_alive, runs, ledgers = live.get(entry_log_id, (0, 0, 0))
        is_open = entry_log_id in open_ids
        usages.append(LogUsage(entry_log_id, size, bytes_alive, runs, ledgers, is_open))
    return usages


def _shifts(moves: Sequence[tuple[StoredRun, int, int]]) -> dict[LedgerId, tuple[int, int]]:
    shifts: dict[LedgerId, tuple[int, int]] = {}
    for run, entry_log_id, position in moves:
        logs, positions = shifts.get(run.ledger_id, (0, 0))
        shifts[run.ledger_id] = (
            logs + entry_log_id - run.entry_log_id, positions + position - run.position
        )  # fmt: skip
    return shifts


class EntryLogKeeper:
    """Removes and compacts entry logs.

    Args:
        env: The outside world.
        directories: The ledger directories.
        index: The writer.
        entry_logs: The writer that checkpoints use.
        checkpointer: Knows whether runs lie in logs that the index has not heard of.
    """

    def __init__(
        self,
        env: Env,
        directories: Sequence[str],
        index: Index,
        entry_logs: EntryLogs,
        checkpointer: Checkpointer,
    ) -> None:
        self._env = env
        self._directories = list(directories)
        self._index = index
        self._flushed = entry_logs
        self._copies = entry_logs.sibling()
        self._checkpointer = checkpointer
        self._reader = EntryLogReader(env, directories, open_files_max=1)
        self._loader = Loader(index, self._reader.read, ReadStatistics())
        #: The log under compaction and its runs, the last one in the file at the end.
        self._current: tuple[int, list[StoredRun]] | None = None
        self._unreadable: set[tuple[LedgerId, EntryId, int]] = set()
        self._reserve = Reserve(env.disk, f"{directories[0]}/{COMPACTION_NAME}")
        #: Logs of which nothing is left that could be moved.
        self.stuck: set[int] = set()
        #: Give the end of a log back as soon as it was moved.
        self.is_short_of_space = False

    @property
    def open_ids(self) -> frozenset[int]:
        """The logs that are being written."""
        return frozenset(self._flushed.open_ids | self._copies.open_ids)

    def remove_unused(self) -> dict[int, int]:
        """Delete the logs in which no run lies; return the size of each."""
        if self._checkpointer.has_unindexed_runs:
            return {}
        unused = self._index.entry_logs_without_runs()
        if self._flushed.current_id in unused:
            self._flushed.rotate()
            self._flushed.sync()
        removed: dict[int, int] = {}
        known = self._index.entry_logs()
        found = find_entry_logs(self._env, self._directories)
        # What the index never heard of is left of a step that failed, if no run lies there.
        unknown = {one for one in found.keys() - known.keys() if not self._index.runs_in(one)}
        # The next start makes an index that knows of these.
        unknown.difference_update(missed_by_rebuild(self._index, unknown))
        strays = removable(unknown, self.open_ids)
        if strays:
            # The step may have failed in the sync of its commit, which a next process would find
            # if this one were killed: another commit has to lie over it before they go.
            self._index.commit(entry_logs=[(each, found[each]) for each in strays])
            known = self._index.entry_logs()
        gone = removable({*unused, *unknown}, self.open_ids)
        for entry_log_id in gone:
            if entry_log_id not in found:
                continue
            directory = found[entry_log_id]
            removed[entry_log_id] = self._size_bytes(f"{directory}/{entry_log_name(entry_log_id)}")
            delete_entry_log(self._env, directory, entry_log_id)
            self._reader.forget(entry_log_id)
        # The newest id stays known, so that it is never used again.
        forgotten = known.keys() & set(gone) - {max(known, default=-1)}
        if forgotten:
            self._index.commit(deleted_entry_logs=forgotten)
        return removed

    def forget_deletions(self, before_ms: int, count_max: int) -> int:
        """Forget which ledgers were deleted before a time, and the oldest beyond a number."""
        return self._index.forget_deletions(before_ms, count_max)

    def _size_bytes(self, path: str) -> int:
        file = self._env.disk.open(path, read_only=True)
        try:
            return file.size_bytes()
        finally:
            file.close()

    # Compaction

    def compact_some(self, entry_log_id: int, size_bytes: int) -> CompactionStep:
        """Move some runs out of a log, about so many bytes, those at its end first.

        Raises:
            DiskFullError: Nothing was moved.
            StorageError: The same.
        """
        step = CompactionStep()
        if self._checkpointer.has_unindexed_runs or entry_log_id in self.open_ids:
            step.is_done = True
            return step
        try:
            moves = self._copy(entry_log_id, size_bytes, step)
            if moves:
                self._copies.sync()
                logs = {move[1] for move in moves}
                step.moved_runs = self._index.move_runs(
                    moves, [(log_id, self._copies.directory_of(log_id)) for log_id in logs]
                )
                if step.moved_runs == len(moves):
                    step.shifts = _shifts(moves)
        except BaseException:
            self._current = None
            raise
        self._keep_order()
        if moves and self.is_short_of_space:
            self._cut(entry_log_id, moves)
        return step

    def _copy(
        self, entry_log_id: int, size_bytes: int, step: CompactionStep
    ) -> list[tuple[StoredRun, int, int]]:
        moves: list[tuple[StoredRun, int, int]] = []
        if (self._copies.current_id or 0) < entry_log_id:
            # A copy lies behind what it copies, as behind the birth of its ledger.
            self._copies.rotate()
        rows = self._rows(entry_log_id)
        if not rows:
            step.is_done = True
            self._current = None
            self._reader.forget(entry_log_id)
            if self._index.runs_in(entry_log_id):
                self.stuck.add(entry_log_id)
        while rows and step.moved_bytes < size_bytes:
            row = rows.pop()
            if self._index.find(row.ledger_id, row.first_entry_id) != row:
                continue
            try:
                run = self._loader.load_run(row)
            except StorageError as error:
                _log.error("a run stays in entry log %x: %s", entry_log_id, error)
                self._unreadable.add((row.ledger_id, row.first_entry_id, entry_log_id))
                step.damages.append(
                    Damage(row.ledger_id, row.first_entry_id, row.last_entry_id, str(error))
                )
                continue
            location = self._copies.append_run(run, row.checksum)
            moves.append((row, *location))
            step.moved_bytes += len(run.data)
        return moves

    def _rows(self, entry_log_id: int) -> list[StoredRun]:
        """Return the runs that are left to be moved; asked for again when they are used up."""
        if self._current is None or self._current[0] != entry_log_id or not self._current[1]:
            rows = [
                row
                for row in self._index.runs_in(entry_log_id)
                if not row.is_damaged
                and (row.ledger_id, row.first_entry_id, entry_log_id) not in self._unreadable
            ]
            self._current = (entry_log_id, rows)
        return self._current[1]

    def _keep_order(self) -> None:
        """Let what is flushed from now on lie in a younger log than any copy."""
        flushed, copied = self._flushed.current_id, self._copies.current_id
        if flushed is not None and copied is not None and flushed < copied:
            self._flushed.rotate()

    def _cut(self, entry_log_id: int, moves: list[tuple[StoredRun, int, int]]) -> None:
        """Give back the end of a log, from the start of a whole run on."""
        left = self._index.runs_in(entry_log_id)
        end = left[-1].position if left else -1
        starts = sorted(row.position for row, *_ in moves if row.position > end)
        if not starts:
            return
        directory = self._index.entry_logs()[entry_log_id]
        file = self._env.disk.open(f"{directory}/{entry_log_name(entry_log_id)}")
        try:
            for start in starts:
                # Where a run was cut its check lies behind, and what is left of it needs that.
                if is_start_of_run(file, entry_log_id, start):
                    file.truncate(start)
                    break
        finally:
            file.close()

    def begin(self) -> None:
        """Compaction begins: what could not be read the last time is read again."""
        self._unreadable.clear()
        self.stuck.clear()

    def finish(self) -> None:
        """Compaction rests: its log is complete."""
        self._current = None
        self._copies.close()

    def close(self) -> None:
        """Close what was read."""
        self._reader.close()

    # Space for a full disk

    def keep_reserve(self, size_bytes: int) -> None:
        """Take the space that a step needs, if there is any."""
        self.is_short_of_space = False
        self._reserve.take(size_bytes)

    def give_reserve(self) -> bool:
        """Give the reserve to a step that met a full disk; tell whether that is new."""
        is_new = not self.is_short_of_space
        self.is_short_of_space = True
        self._reserve.give()
        return is_new
