"""From a set of directories to a storage that serves: open or rebuild, replay, flush.

    cookies                               say from now on that the directories are ours
    marks, index, copies of the states    the index is rebuilt from entry logs and copies if it is
                                          lost, damaged or older than the marks
    entry logs                            those nothing points to are removed; a new one is begun
    journal                               replayed from the smallest mark on
    one full checkpoint                   its mark is the end of the replay, so a bookie that only
                                          ever restarts does not replay for ever (S45)

Where acknowledged entries, fences or keys may be gone (a damaged end of the journal, an index
lost together with the copies, damaged runs while rebuilding), a limbo start is demanded, and the
demand is stored with the checkpoint that lets the journal go.

Everything here blocks and runs as one job, before anybody is served.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from google_crc32c import value as crc32c

from quorumbook.env import Env, logger
from quorumbook.errors import DiskFullError, ForeignDirectoryError, StorageError
from quorumbook.ids import LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.checkpoint.checkpoint import (
    LIMBO_START_ID,
    LIMBO_START_KEY,
    MARK_KEY,
    REBUILT_KEY,
    Checkpoint,
    Checkpointer,
    decode_index_marks,
    encode_index_marks,
    missed_by_rebuild,
)
from quorumbook.storage.checkpoint.visible_ledgers import VisibleLedgers
from quorumbook.storage.directories.places import Directories, current, make_ours
from quorumbook.storage.directories.reserve import START_NAME, START_SIZE_BYTES, Reserve
from quorumbook.storage.directories.unclean import was_unclean
from quorumbook.storage.entrylog.format import entry_log_name
from quorumbook.storage.entrylog.scan import DamagedStretch, ScannedRun, scan_entry_log
from quorumbook.storage.entrylog.writer import (
    EntryLogs,
    delete_entry_log,
    find_entry_logs,
    newest_entry_log_id,
)
from quorumbook.storage.index.files import BUILDING_SUFFIX
from quorumbook.storage.index.peer_parts import index_parts
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import DamagedIndexError, Index
from quorumbook.storage.journal.marks import NO_MARK, LastMarks, Marks, has_reached
from quorumbook.storage.journal.removal import JournalRemoval
from quorumbook.storage.journal.replay import journal_ids, replay
from quorumbook.storage.options import StartReport, StorageOptions
from quorumbook.storage.settling import settle
from quorumbook.storage.states.ledgers import lac_of_packet
from quorumbook.storage.states.merging import merged_deletions, merged_states
from quorumbook.storage.states.state_file import StateCopies, StateFileContent, StoredLedger

_REBUILD_ROWS = 500
_log = logger("storage")


@dataclass(slots=True)
class Opened:
    """A storage after its start."""

    index: Index
    loop_index: IndexReader
    entry_logs: EntryLogs
    checkpointer: Checkpointer
    visible: VisibleLedgers
    marks: Marks
    report: StartReport
    #: A checkpoint that could not be finished because a disk is full.
    pending: Checkpoint | None = None
    #: Entries known to be lost, found while rebuilding.
    damages: list[DamagedStretch] = field(default_factory=list)


def open_storage(
    env: Env,
    directories: Directories,
    caches: Caches,
    options: StorageOptions,
    indexes: IndexPlace | None = None,
) -> Opened:
    """Do all of it; the index is a file unless it is said to be elsewhere.

    Raises:
        CorruptJournalError, NewerIndexError, CorruptStateError: Refused.
        StorageError: A disk failed.
    """
    opening = _Opening(env, directories, caches, options, indexes or IndexPlace())
    try:
        return opening.run()
    except BaseException:
        opening.close()
        raise


class _Opening:
    def __init__(
        self,
        env: Env,
        directories: Directories,
        caches: Caches,
        options: StorageOptions,
        indexes: IndexPlace,
    ) -> None:
        self._env = env
        self._directories = directories
        self._indexes = indexes
        self._caches = caches
        self._options = options
        self._report = StartReport()
        self._reasons: list[str] = []
        self._damages: list[DamagedStretch] = []
        self._index: Index | None = None
        self._loop_index: IndexReader | None = None

    def close(self) -> None:
        """Let go of what was opened before the failure."""
        for index in (self._loop_index, self._index):
            if index is not None:
                index.close()

    def run(self) -> Opened:
        env, directories = self._env, self._directories
        self._demand_no_peer()
        make_ours(env, directories.all)
        reserve = Reserve(env.disk, f"{directories.ledgers[0]}/{START_NAME}")
        reserve.give()
        marks = LastMarks(env, directories.ledgers, len(directories.journals))
        marks.load()
        copies = StateCopies(env, directories.ledgers)
        contents = copies.load()
        index = self._index = self._open_index(marks, contents)
        self._loop_index = index.another()
        self._remove_unused_logs(index)
        self._condemn_lost_logs(index)
        entry_logs = EntryLogs(
            env,
            directories.ledgers,
            size_bytes_max=self._options.entry_log_size_bytes,
            least_id=max(index.entry_logs(), default=-1) + 1,
        )
        checkpointer = Checkpointer(
            index,
            entry_logs,
            copies,
            marks,
            JournalRemoval(env, directories.journals),
            now_ns=env.clock.now_ns,
        )
        visible = VisibleLedgers(
            self._loop_index,
            self._caches,
            max_idle_handles=self._options.max_idle_handles,
            wall_ms=env.clock.wall_ms,
        )
        self._complete_copies(checkpointer, contents)
        marks.prepare()
        opened = Opened(
            index, self._loop_index, entry_logs, checkpointer, visible, (), self._report
        )
        self._replay(opened, marks)
        opened.damages = self._damages
        reserve.take(START_SIZE_BYTES)
        return opened

    # The index

    def _demand_no_peer(self) -> None:
        """Refuse directories in which the peer keeps an index: ours would know nothing of it."""
        for directory in map(current, self._directories.all):
            parts = index_parts(self._env, directory)
            if parts:
                raise ForeignDirectoryError(
                    "a Java bookie keeps its index here; stop it, and `quorumbook bookie "
                    "adopt` takes the directories over",
                    path=f"{directory}/{parts[0]}",
                )

    def _open_index(
        self, marks: LastMarks, contents: list[StateFileContent | StorageError | None]
    ) -> Index:
        path = self._directories.index_path
        if not self._indexes.exists(path):
            is_first = (
                not any(map(any, marks.maxima))
                and not any(contents)
                and not find_entry_logs(self._env, self._directories.ledgers)
            )
            if is_first:
                return self._new_index()
            _log.error("the index %s is lost, it is rebuilt from the entry logs", path)
            return self._rebuild(contents)
        try:
            self._indexes.settle(path)
            return self._trusted_index(marks, contents)
        except DamagedIndexError as error:
            aside = self._indexes.set_aside(path)
            _log.error("%s; it is kept as %s and rebuilt from the entry logs", error, aside)
            return self._rebuild(contents)

    def _new_index(self) -> Index:
        index = self._indexes.open(self._directories.index_path, create=True)
        self._env.disk.sync_directory(self._directories.ledgers[0])
        return index

    def _trusted_index(
        self, marks: LastMarks, contents: list[StateFileContent | StorageError | None]
    ) -> Index:
        # An index file of which nothing was ever committed is an empty one, so it is made anew.
        path = self._directories.index_path
        index = self._indexes.open(path, create=not any(map(any, marks.maxima)))
        try:
            if self._indexes.is_distrusted(path):
                raise DamagedIndexError("scrub found the index damaged")
            missed = missed_by_rebuild(index, find_entry_logs(self._env, self._directories.ledgers))
            if missed:
                raise DamagedIndexError(
                    f"entry log {min(missed):x} was away when the index was rebuilt", path=path
                )
            if index.is_small:
                index.check_whole()
                if index.ledger_ids_without_state():
                    raise DamagedIndexError("the index lost the state of a ledger", path=path)
            reached = decode_index_marks(index.meta(MARK_KEY), marks.journal_count)
            if not has_reached(reached, marks.maxima):
                # Somebody put an old copy back, or its log of changes is gone; or lastMark is
                # damaged, and would skip what only the journal has.
                self._mend_marks(marks, reached)
                raise DamagedIndexError(
                    f"the index is older than the marks ({reached} before {marks.maxima})",
                    path=path,
                )
            reason = index.meta(LIMBO_START_KEY)
            if reason is not None:
                self._report.needs_limbo_start = True
                self._report.limbo_reason = reason
            elif any(
                isinstance(content, StateFileContent) and LIMBO_START_ID in content.states
                for content in contents
            ):
                self._reasons.append("a limbo start was not finished")
            # A sync that failed in an earlier process leaves commits that can be read, and that
            # no later sync writes.  The next start does what a full disk refuses.
            with contextlib.suppress(DiskFullError):
                index.truncate_wal()
        except BaseException:
            index.close()
            raise
        return index

    def _complete_copies(
        self,
        checkpointer: Checkpointer,
        contents: list[StateFileContent | StorageError | None],
    ) -> None:
        """Write down which ledgers are in limbo, where a copy lacks it.

        A bookie may have been killed behind the index's commit.  Everything else that the copies
        would lack then, the journal still has.
        """
        assert self._index is not None
        copies = [each.states for each in contents if isinstance(each, StateFileContent)]
        lacking = [
            state
            for ledger_id in self._index.ledgers_in_limbo()
            if (state := self._index.ledger_state(ledger_id)) is not None
            and not all(ledger_id in each and each[ledger_id].is_in_limbo for each in copies)
        ]
        # The next start does what a full disk refuses.
        with contextlib.suppress(DiskFullError):
            checkpointer.copy_states(lacking)

    def _mend_marks(self, marks: LastMarks, reached: Marks) -> None:
        """Replay from where the index got to, if the journals from there on are still there."""
        for number, directory in enumerate(self._directories.journals):
            ids = journal_ids(self._env, directory)
            if reached[number].journal_id in ids or (reached[number] == NO_MARK and ids):
                marks.mend(reached[number], number)

    def _rebuild(self, contents: list[StateFileContent | StorageError | None]) -> Index:
        self._report.is_index_rebuilt = True
        path = self._directories.index_path
        building = f"{path}{BUILDING_SUFFIX}"
        self._indexes.remove(building)
        states = merged_states(contents)
        deletions = merged_deletions(contents)
        if states is None:
            self._reasons.append("the index and the copies of the ledger states are lost")
        elif states.pop(LIMBO_START_ID, None) is not None:
            self._reasons.append("a limbo start was not finished")
        index = self._index = self._indexes.open(building, create=True)
        logs = find_entry_logs(self._env, self._directories.ledgers)
        rows: list[StoredRun] = []
        for entry_log_id in sorted(logs):
            rows += self._scan(logs[entry_log_id], entry_log_id, states)
            if len(rows) >= _REBUILD_ROWS:
                index.commit(runs=rows)
                rows = []
        index.commit(runs=rows, entry_logs=logs.items(), states=list((states or {}).values()),
                     deletions=deletions)  # fmt: skip
        unknown = index.ledger_ids_without_state()
        index.commit(states=[StoredLedger(ledger_id, b"") for ledger_id in unknown])
        if self._damages:
            self._reasons.append("entries in the entry logs are damaged")
            # Whose entries lay there is not known, so nobody is told "no such entry" (R9).
            index.commit(
                states=[state._replace(is_in_limbo=True) for state in index.ledger_states()]
            )
        if self._reasons:
            index.commit(meta=[(LIMBO_START_KEY, "; ".join(self._reasons))])
        marks = LastMarks(self._env, self._directories.ledgers, len(self._directories.journals))
        below = newest_entry_log_id(self._env, self._directories.ledgers) + 1
        index.commit(meta=[(MARK_KEY, encode_index_marks(marks.maxima)), (REBUILT_KEY, str(below))])
        # Only a whole index gets the name, so a crash meanwhile begins the work again.
        index.truncate_wal()
        index.close()
        self._index = None
        self._indexes.move(building, path)
        return self._indexes.open(path)

    def _scan(
        self, directory: str, entry_log_id: int, states: dict[LedgerId, StoredLedger] | None
    ) -> Iterable[StoredRun]:
        """Yield the runs of a log, without those of ledgers that were deleted.

        The states do not know these, or know a later ledger of the same id.
        """
        settle(self._env.disk, f"{directory}/{entry_log_name(entry_log_id)}")
        for found in scan_entry_log(self._env, directory, entry_log_id):
            if not isinstance(found, ScannedRun):
                _log.error("%s is damaged at byte %d: %s", found.path, found.position, found.reason)
                self._damages.append(found)
                continue
            run = found.run
            if states is not None:
                state = states.get(run.ledger_id)
                if state is None or entry_log_id << 32 | found.position < state.born_at:
                    continue
            yield StoredRun(
                run.ledger_id,
                run.first_entry_id,
                run.last_entry_id,
                entry_log_id,
                found.position,
                run.sizes,
                crc32c(run.data) if found.is_verified else None,
                run.last_add_confirmed(),
            )

    def _remove_unused_logs(self, index: Index) -> None:
        """Remove logs in which no run lies: a flush failed, or everything was deleted."""
        if self._report.is_index_rebuilt:
            return
        known = index.entry_logs()
        unused = set(index.entry_logs_without_runs())
        logs = find_entry_logs(self._env, self._directories.ledgers)
        for entry_log_id, directory in logs.items():
            is_unused = entry_log_id in unused or entry_log_id not in known
            # The runs have the last word: they are sealed, the list of logs is not.
            if is_unused and not index.runs_behind(entry_log_id, 0, 1):
                _log.info("entry log %x holds nothing any more, it is removed", entry_log_id)
                delete_entry_log(self._env, directory, entry_log_id)
        # The newest id stays known, so that it is never used again.
        forgotten = unused - {max(known, default=-1)}
        if forgotten:
            index.commit(deleted_entry_logs=forgotten)

    def _condemn_lost_logs(self, index: Index) -> None:
        """Put the entries of logs that are gone on record as damaged."""
        there = find_entry_logs(self._env, self._directories.ledgers)
        for entry_log_id in sorted(set(index.entry_logs()) - set(there)):
            lost = index.runs_in(entry_log_id)
            if lost:
                _log.error(
                    "entry log %x is gone, and with it %d runs of entries; they are copied again "
                    "from other bookies", entry_log_id, len(lost),
                )  # fmt: skip
                index.divide((row, [row.condemned(was_read=False)]) for row in lost)

    # The journal

    def _replay(self, opened: Opened, marks: LastMarks) -> None:
        report = self._report
        starts = marks.minima
        visitor = _Replay(opened, self._options.write_cache_size_bytes, starts)
        report.was_unclean = was_unclean(self._env.disk, self._directories.ledgers)
        for directory in self._directories.journals:
            # Whoever made the newest one may have died before its name was durable, and the mark
            # of this start will name it.
            self._env.disk.sync_directory(directory)
        replays = [
            replay(self._env, directory, start, visitor, was_unclean=report.was_unclean)
            for directory, start in zip(self._directories.journals, starts, strict=True)
        ]
        opened.marks = tuple(found.end for found in replays)
        damage = [place for found in replays for place in found.damage]
        report.has_damaged_journal_tail = bool(damage)
        report.replayed_entries = visitor.entries
        report.replayed_bytes = visitor.size_bytes
        if damage:
            where = ", ".join(f"{path} at byte {offset}" for path, offset in damage)
            self._reasons.append(f"the end of the journal is damaged ({where})")
        if self._reasons:
            if report.limbo_reason:
                self._reasons.insert(0, report.limbo_reason)
            report.needs_limbo_start = True
            report.limbo_reason = "; ".join(self._reasons)
            opened.visible.limbo_start = report.limbo_reason
        if opened.visible.is_dirty or opened.marks != starts:
            visitor.flush(opened.marks)
        report.is_full = opened.pending is not None
        if report.is_full:
            # It is served from memory, and whoever was killed may not have synced it.
            for path in itertools.chain.from_iterable(found.files for found in replays):
                settle(self._env.disk, path)
        report.ledgers_in_limbo = opened.index.count_in_limbo()


class _Replay:
    """Takes records over as if they had just become durable; flushes when a cache is full."""

    def __init__(self, opened: Opened, limit_bytes: int, marks: Marks) -> None:
        self._opened = opened
        self._visible = opened.visible
        self._limit_bytes = limit_bytes
        self._marks = marks
        self._cached = 0
        self.entries = 0
        self.size_bytes = 0

    def on_run(self, run: EntryRun) -> None:
        """Entries."""
        self._visible.add_replayed(self._visible.get_or_create(run.ledger_id), run)
        self.entries += run.count
        self.size_bytes += len(run.data)
        self._cached += len(run.data)
        if self._cached >= self._limit_bytes:
            self.flush(self._marks)

    def on_key(self, ledger_id: LedgerId, master_key: bytes) -> None:
        """A ledger's key: stored again (S48)."""
        self._visible.set_key(self._visible.get_or_create(ledger_id), master_key)

    def on_fence(self, ledger_id: LedgerId) -> None:
        """A fence."""
        self._visible.set_fenced(self._visible.get_or_create(ledger_id))

    def on_lac(self, ledger_id: LedgerId, packet: bytes) -> None:
        """An explicit LAC."""
        handle = self._visible.get_or_create(ledger_id)
        self._visible.set_explicit_lac(handle, packet, lac_of_packet(packet))

    def flush(self, marks: Marks) -> None:
        """Bring what was replayed to its place; on a full disk it stays in memory (S55)."""
        self._cached = 0
        opened = self._opened
        try:
            if opened.pending is not None:
                opened.checkpointer.run(opened.pending)
                self._visible.settle(opened.pending)
                opened.pending = None
            checkpoint = self._visible.checkpoint(marks)
            opened.pending = checkpoint
            opened.checkpointer.run(checkpoint)
            self._visible.settle(checkpoint)
            opened.pending = None
        except DiskFullError as error:
            _log.error("the replay cannot be flushed: %s", error)
