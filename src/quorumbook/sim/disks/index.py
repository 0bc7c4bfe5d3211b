"""A model of a bookie's index: the same interface as the SQLite file, and its crash contract.

A commit is written, then synced, and readers see it when its sync is over.  A process that is
killed in between leaves it: the next one finds it there, and it is not durable before that one
settles the index or commits.  A power cut takes what is not durable, or leaves it.

A commit whose sync fails is not made, as far as the process can see.  It lies in SQLite's log of
changes all the same, where the next commit writes over it.  A process that starts after a kill
finds it there, and no sync makes it durable any more.

Look-ups fail where the disk fails reads, and commits where it has no room for a page.

``unit/storage/test_storage_index_crash.py`` and ``property/test_property_storage_index.py`` hold
both to the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from quorumbook.errors import StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.disks.tables import Stored, Tables, first_entry_of, normal
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredExtent, StoredRun
from quorumbook.storage.index.tables import DamagedIndexError, Index
from quorumbook.storage.states.state_file import Deletion, StoredLedger

_MAX_ENTRY_ID = 2**63 - 1
_PAGE = 1000
#: A commit takes a page of the log of changes, at least.
_COMMIT_BYTES = 4096


class ModelPlace(IndexPlace):
    """The indexes on a simulated disk.

    Args:
        disk: Which.
    """

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def exists(self, path: str) -> bool:
        """Tell whether there is an index."""
        self._disk.faults.run("exists", path)
        return path in self._disk.indexes

    def open(self, path: str, *, create: bool = False) -> Index:
        """Return its writer."""
        if path not in self._disk.indexes:
            if not create:
                raise DamagedIndexError("the index is missing", path=path)
            self._disk.indexes[path] = Stored()
        stored = self._disk.indexes[path]
        stored.found()
        return ModelIndex(self._disk, path, stored)

    def settle(self, path: str) -> None:
        """Make it durable as it can be read."""
        stored = self._disk.indexes[path]
        stored.found()
        tables = stored.visible
        try:
            self._disk.faults.run("sync", path)
        except StorageError:
            if tables is not stored.durable:
                stored.fail_sync(is_end=False)
            raise
        stored.durable = tables

    def set_aside(self, path: str) -> str:
        """Move a damaged one out of the way."""
        self._disk.indexes.pop(path)
        return f"{path}.damaged"

    def remove(self, path: str) -> None:
        """Remove one."""
        self._disk.indexes.pop(path, None)

    def move(self, source: str, target: str) -> None:
        """Give a closed one its name."""
        self._disk.indexes[target] = self._disk.indexes.pop(source)

    def distrust(self, path: str) -> None:
        """Have the next start rebuild it."""
        self._disk.indexes[path].is_distrusted = True

    def is_distrusted(self, path: str) -> bool:
        """Tell whether somebody found it damaged."""
        self._disk.faults.run("exists", path)
        return self._disk.indexes[path].is_distrusted


class ModelReader(IndexReader):
    """Look-ups; each sees what was committed last."""

    def __init__(self, disk: SimDisk, path: str, stored: Stored) -> None:
        self._disk = disk
        self._path = path
        self._stored = stored

    @property
    def _tables(self) -> Tables:
        self._disk.faults.run("read", self._path)
        return self._stored.visible

    def another(self) -> IndexReader:
        """Return a reader of the same index."""
        return ModelReader(self._disk, self._path, self._stored)

    def close(self) -> None:
        """Do nothing."""

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> StoredRun | None:
        """Return the run that holds the entry."""
        rows = self._tables.runs.get(ledger_id, [])
        at = bisect_right(rows, entry_id, key=first_entry_of) - 1
        if at < 0 or rows[at].last_entry_id < entry_id or not rows[at].size_of(entry_id):
            return None
        return rows[at]

    def last_run(self, ledger_id: LedgerId) -> StoredRun | None:
        """Return the run with the ledger's highest entry."""
        rows = self._tables.runs.get(ledger_id)
        return rows[-1] if rows else None

    def last_entry(self, ledger_id: LedgerId) -> tuple[EntryId, EntryId | None] | None:
        """Return the ledger's highest entry id and the last add confirmed it carries."""
        run = self.last_run(ledger_id)
        return None if run is None else (run.last_entry_id, run.last_add_confirmed)

    def runs(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId = 0,
        last_entry_id: EntryId = _MAX_ENTRY_ID,
        *,
        limit: int = -1,
    ) -> list[StoredRun]:
        """Return the runs that touch a range of ids, ascending."""
        found = self._tables.between(ledger_id, first_entry_id, last_entry_id)
        return found if limit < 0 else found[:limit]

    def ledger_state(self, ledger_id: LedgerId) -> StoredLedger | None:
        """Return what is stored of a ledger besides its entries."""
        return self._tables.states.get(ledger_id)

    def ledger_states(self) -> Iterator[StoredLedger]:
        """Yield the states of all ledgers, ascending, read some at a time."""
        for ledger_id in self.ledger_ids():
            state = self._tables.states.get(ledger_id)
            if state is not None:
                yield state

    def ledger_ids(self) -> Iterator[LedgerId]:
        """Yield all ledgers, ascending, read some at a time."""
        last: LedgerId | None = None
        while page := self.ledger_ids_above(last, _PAGE):
            yield from page
            last = page[-1]

    def ledger_ids_above(self, ledger_id: LedgerId | None, count: int) -> list[LedgerId]:
        """Return the lowest ledgers above one, or of all, so many at most."""
        ids = sorted(self._tables.states)
        at = 0 if ledger_id is None else bisect_right(ids, ledger_id)
        return ids[at : at + count]

    def births(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, int]:
        """Return ``LedgerState.born_at`` of those of these ledgers that are here."""
        states = self._tables.states
        return {each: states[each].born_at for each in sorted(ledger_ids) if each in states}

    def extents(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, StoredExtent]:
        """Return the extents of those of these ledgers that have runs."""
        found = {}
        for ledger_id in sorted(ledger_ids):
            rows = self._tables.runs.get(ledger_id)
            if rows:
                found[ledger_id] = StoredExtent(
                    len(rows),
                    sum(row.last_entry_id - row.first_entry_id + 1 for row in rows),
                    sum(row.entry_log_id for row in rows),
                    sum(row.position for row in rows),
                )
        return found

    def highest_ledger_id(self) -> LedgerId:
        """Return the highest ledger with a state or a remembered deletion, -1 if none has."""
        return max(-1, *self._tables.states, *self._tables.deleted, -1)

    def was_deleted(self, ledger_id: LedgerId) -> bool:
        """Tell whether a ledger's deletion is remembered."""
        return ledger_id in self._tables.deleted

    def deletions(self) -> Iterator[Deletion]:
        """Yield the deletions that are remembered, ascending."""
        for ledger_id in sorted(self._tables.deleted):
            yield self._tables.deleted[ledger_id]

    def ledger_ids_without_state(self) -> list[LedgerId]:
        """Return ledgers that have runs but no state."""
        return [each for each in sorted(self._tables.runs) if each not in self._tables.states]

    def count_in_limbo(self) -> int:
        """Count the ledgers in limbo."""
        return len(self.ledgers_in_limbo())

    def ledgers_in_limbo(self) -> list[LedgerId]:
        """Return the ledgers in limbo, ascending."""
        states = self._tables.states
        return [each for each in sorted(states) if states[each].is_in_limbo]

    def entry_logs(self) -> dict[int, str]:
        """Return the directory of each entry log."""
        logs = self._tables.entry_logs
        return {each: logs[each] for each in sorted(logs)}

    def entry_logs_without_runs(self) -> list[int]:
        """Return known entry logs in which no run lies any more."""
        used = {run.entry_log_id for run in self._tables.all_runs()}
        return [each for each in self.entry_logs() if each not in used]

    def live_bytes(self, behind: int = -1, logs_max: int = -1) -> dict[int, tuple[int, int, int]]:
        """Return for each entry log with runs their bytes, their number and that of ledgers."""
        by_log: dict[int, list[StoredRun]] = {}
        for run in self._tables.all_runs():
            if run.entry_log_id > behind:
                by_log.setdefault(run.entry_log_id, []).append(run)
        chosen = sorted(by_log) if logs_max < 0 else sorted(by_log)[:logs_max]
        return {
            log: (
                sum(run.size_bytes for run in by_log[log]),
                len(by_log[log]),
                len({run.ledger_id for run in by_log[log]}),
            )
            for log in chosen
        }

    def runs_in(self, entry_log_id: int) -> list[StoredRun]:
        """Return the runs in an entry log, in the order of the file."""
        found = [run for run in self._tables.all_runs() if run.entry_log_id == entry_log_id]
        return sorted(found, key=_position)

    def runs_behind(self, entry_log_id: int, position: int, limit: int) -> list[StoredRun]:
        """Return some runs of an entry log from a position on, in the order of the file."""
        found = [run for run in self.runs_in(entry_log_id) if run.position >= position]
        return found if limit < 0 else found[:limit]

    def damaged_runs(self, ledger_id: LedgerId | None = None) -> list[StoredRun]:
        """Return the runs that are known to be damaged, of one ledger or of all."""
        found = self._tables.all_runs()
        return [run for run in found if run.is_damaged and ledger_id in (None, run.ledger_id)]

    def check_whole(self) -> None:
        """Find nothing wrong: no bit of it changes by itself."""

    def meta(self, key: str) -> str | None:
        """Return a remembered text."""
        return self._tables.meta.get(key)


class ModelIndex(ModelReader, Index):
    """The writer."""

    def __init__(self, disk: SimDisk, path: str, stored: Stored) -> None:
        # What prepares an SQLite file is not wanted here.
        ModelReader.__init__(self, disk, path, stored)

    def close(self) -> None:
        """Drop what a failed sync left in the log, as SQLite does with the last connection."""
        # The dead close nothing.
        self._disk.faults.run("close", self._path)
        self._stored.drop_end()

    @property
    def is_small(self) -> bool:
        """Say yes."""
        return True

    def _write(self, tables: Tables) -> None:
        stored = self._stored
        self._disk.check_free(_COMMIT_BYTES)
        stored.pending = tables
        try:
            self._disk.faults.run("sync", self._path)
        except StorageError:
            stored.fail_sync(is_end=True)
            raise
        stored.visible = stored.durable = tables
        stored.drop_end()

    def commit(
        self,
        *,
        runs: Iterable[StoredRun] = (),
        states: Sequence[StoredLedger] = (),
        entry_logs: Iterable[tuple[int, str]] = (),
        deleted_ledgers: Iterable[LedgerId] = (),
        deletions: Iterable[Deletion] = (),
        deleted_entry_logs: Iterable[int] = (),
        meta: Iterable[tuple[str, str | None]] = (),
        pause: Callable[[], None] = lambda: None,
    ) -> list[tuple[LedgerId, EntryId, EntryId]]:
        """Write all of it in one step; deletions come first."""
        pause()  # whatever others do meanwhile, they do not see a part of it
        tables = self._tables.copy()
        for ledger_id in deleted_ledgers:
            tables.runs.pop(ledger_id, None)
            tables.states.pop(ledger_id, None)
        tables.deleted.update({each[0]: Deletion(*each) for each in deletions})
        for entry_log_id in deleted_entry_logs:
            tables.entry_logs.pop(entry_log_id, None)
        tables.entry_logs.update(entry_logs)
        replaced = [
            (run.ledger_id, run.first_entry_id, run.last_entry_id)
            for run in map(normal, runs)
            if tables.lay_over(run)
        ]
        tables.states.update({each.ledger_id: each for each in states})
        for key, text in meta:
            tables.meta.pop(key, None)
            if text is not None:
                tables.meta[key] = text
        self._write(tables)
        return replaced

    def repoint(self, old: StoredRun, entry_log_id: int, position: int) -> bool:
        """Move a run to another entry log if it is still the one that was copied."""
        tables = self._tables.copy()
        is_moved = tables.repoint(old, entry_log_id, position)
        if is_moved:
            self._write(tables)
        return is_moved

    def divide(self, changes: Iterable[tuple[StoredRun, Sequence[StoredRun]]]) -> int:
        """Put parts in the place of runs, none to drop one, in one step."""
        tables, count = self._tables.copy(), 0
        for old, parts in changes:
            if normal(old) in tables.runs.get(old.ledger_id, []):
                tables.drop(old)
                for part in parts:
                    tables.put(normal(part))
                count += 1
        self._write(tables)
        return count

    def move_runs(
        self,
        moves: Iterable[tuple[StoredRun, int, int]],
        entry_logs: Iterable[tuple[int, str]],
    ) -> int:
        """Re-point copied runs (run, new entry log, position) in one step."""
        tables = self._tables.copy()
        tables.entry_logs.update(entry_logs)
        moved = sum(tables.repoint(*move) for move in moves)
        self._write(tables)
        return moved

    def forget_deletions(self, before_ms: int, count_max: int) -> int:
        """Forget deletions before a time, and the oldest beyond a number; return how many."""
        newest = sorted(self._tables.deleted.values(), key=lambda each: (each.at_ms or 0, each[0]))
        kept = newest[max(len(newest) - count_max, 0) :]
        left = {each[0]: each for each in kept if (each.at_ms or 0) >= before_ms}
        count = len(newest) - len(left)
        if count:
            self._write(replace(self._tables.copy(), deleted=left))
        return count

    def truncate_wal(self) -> None:
        """Write what the log has into the file, where no failed sync was before."""
        self._disk.faults.run("sync", self._path)
        stored = self._stored
        stored.durable, stored.lost_to = stored.visible, None
        stored.drop_end()


def _position(run: StoredRun) -> int:
    return run.position
