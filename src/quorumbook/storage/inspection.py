"""Looking through a stopped bookie's files without changing any: what is wrong, and what it means.

    marks and journals     replayed as a start would, into nothing
    ledger-states          every copy
    index                  a copy of it in a scratch directory: SQLite writes beside what it reads
    entry logs             scanned from end to end, and every run of the index read and checked

Works on directories of the peer as far as they have no index of ours.  Everything blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quorumbook.env import Env
from quorumbook.errors import StorageError
from quorumbook.ids import LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.checkpoint.checkpoint import MARK_KEY, decode_index_marks
from quorumbook.storage.directories.places import Directories, current
from quorumbook.storage.directories.unclean import was_unclean
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.entrylog.scan import DamagedStretch, scan_entry_log
from quorumbook.storage.entrylog.writer import find_entry_logs
from quorumbook.storage.index.files import copy_index, index_exists
from quorumbook.storage.index.peer_parts import index_parts
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import DamagedIndexError
from quorumbook.storage.journal.marks import LastMarks
from quorumbook.storage.journal.replay import replay
from quorumbook.storage.reading.loading import Loader, ReadStatistics
from quorumbook.storage.states.state_file import read_states

HARMLESS, REPAIRABLE, LOST = "harmless", "repairable", "lost"
_COPIED = "start the bookie: what it lacks is unknown until other bookies' copies are here"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, what it means, and what to do about it."""

    kind: str
    path: str
    problem: str
    meaning: str
    remedy: str
    #: ``HARMLESS``; ``REPAIRABLE`` from what is here; ``LOST`` here, other bookies have it.
    severity: str = REPAIRABLE
    offset: int | None = None
    ledger_id: LedgerId | None = None


@dataclass(slots=True)
class JournalSummary:
    """Counts what a replay would bring; a ``JournalVisitor``."""

    entries: int = 0
    entry_bytes: int = 0
    keys: int = 0
    fences: int = 0
    lacs: int = 0

    def on_run(self, run: EntryRun) -> None:
        """Entries."""
        self.entries += run.count
        self.entry_bytes += len(run.data)

    def on_key(self, ledger_id: LedgerId, master_key: bytes) -> None:
        """A key."""
        self.keys += 1

    def on_fence(self, ledger_id: LedgerId) -> None:
        """A fence."""
        self.fences += 1

    def on_lac(self, ledger_id: LedgerId, packet: bytes) -> None:
        """An explicit LAC."""
        self.lacs += 1


def inspect(env: Env, directories: Directories, scratch: str) -> Iterator[Finding]:
    """Yield all that is wrong with the storage.

    Args:
        env: The outside world.
        directories: Of a stopped bookie.
        scratch: A directory with room for a copy of the index.
    """
    yield from _journals(env, directories)
    yield from _states(env, directories)
    logs = find_entry_logs(env, directories.ledgers)
    index, problem = _index(env, directories, scratch, has_logs=bool(logs))
    if problem is not None:
        yield problem
    try:
        for entry_log_id, directory in sorted(logs.items()):
            for found in scan_entry_log(env, directory, entry_log_id):
                if isinstance(found, DamagedStretch):
                    yield _stretch(found, _living(found, entry_log_id, index))
        if index is not None:
            yield from _runs(env, directories, index)
    finally:
        if index is not None:
            index.close()


def open_copy(directories: Directories, scratch: str) -> IndexReader:
    """Open a copy of the index.

    Raises:
        DamagedIndexError: It is missing or damaged.
    """
    if not index_exists(directories.index_path):
        raise DamagedIndexError("the index is missing", path=directories.index_path)
    return IndexReader(copy_index(directories.index_path, scratch))


def _journals(env: Env, directories: Directories) -> Iterator[Finding]:
    marks = LastMarks(env, directories.ledgers, len(directories.journals))
    try:
        marks.load()
    except StorageError as error:
        yield _of(
            "mark", error, "where the replay of the journal begins is not known",
            "--repair removes it: everything in the journals is replayed",
        )  # fmt: skip
        return
    is_unclean = was_unclean(env.disk, directories.ledgers)
    for journal, start in zip(directories.journals, marks.minima, strict=True):
        try:
            report = replay(env, journal, start, JournalSummary(), was_unclean=is_unclean)
        except StorageError as error:
            yield _of(
                "journal", error, "acknowledged entries and fences may be lost here",
                "--repair sets the journals from there on aside; other bookies have the entries",
                LOST,
            )  # fmt: skip
            continue
        for path, offset in report.damage:
            yield Finding(
                "end of journal", path, "the last group is torn, or the file was cut",
                "a crash does that before anything of the group is acknowledged; damage may have "
                "done it behind", _COPIED, LOST, offset,
            )  # fmt: skip


def _states(env: Env, directories: Directories) -> Iterator[Finding]:
    for directory in directories.ledgers:
        try:
            read_states(env.disk, directory)
        except StorageError as error:
            yield _of(
                "ledger states", error, "a copy of keys and fences is damaged; the index has them",
                "the next checkpoint writes it again", HARMLESS,
            )  # fmt: skip


def _index(
    env: Env, directories: Directories, scratch: str, *, has_logs: bool
) -> tuple[IndexReader | None, Finding | None]:
    foreign = [
        f"{directory}/{part}"
        for directory in map(current, directories.all)
        for part in index_parts(env, directory)[:1]
    ]
    if foreign:
        return None, Finding(
            "index", foreign[0], "these are directories of a Java bookie",
            "its index is not looked at",
            "`quorumbook bookie adopt` reads it", HARMLESS,
        )  # fmt: skip
    # Outside of what makes a finding: nothing is to be repaired because a disk did not answer.
    is_there = index_exists(directories.index_path)
    if not has_logs and not is_there:
        return None, None
    index = None
    try:
        index = open_copy(directories, scratch)
        index.check_whole()
        decode_index_marks(index.meta(MARK_KEY), len(directories.journals))
    except StorageError as error:
        if index is not None:
            index.close()
        return None, _of(
            "index", error, "where entries lie is not known",
            "--repair rebuilds it from the entry logs; so does the next start",
        )  # fmt: skip
    return index, None


def _runs(env: Env, directories: Directories, index: IndexReader) -> Iterator[Finding]:
    reader = EntryLogReader(env, directories.ledgers, open_files_max=1)
    loader = Loader(index, reader.read, ReadStatistics())
    try:
        for entry_log_id in sorted(index.entry_logs()):
            for row in index.runs_in(entry_log_id):
                try:
                    loader.load_run(row)
                except StorageError as error:
                    yield _run(row, error)
    finally:
        reader.close()


def _run(row: StoredRun, error: StorageError) -> Finding:
    known = " (on record already)" if row.is_damaged else ""
    return Finding(
        "entries", f"entry log {row.entry_log_id:x}",
        f"entries {row.first_entry_id} to {row.last_entry_id} of ledger {row.ledger_id} are "
        f"damaged{known}: {error}",
        "they, or some of them, answer an I/O error",
        "start the bookie: scrub finds which, and they are copied from other bookies",
        LOST, row.position, row.ledger_id,
    )  # fmt: skip


def _living(
    found: DamagedStretch, entry_log_id: int, index: IndexReader | None
) -> list[StoredRun] | None:
    """Return the runs that lie where a log is damaged; None if nobody knows."""
    if index is None:
        return None
    end = found.position + found.size_bytes
    return [
        row
        for row in index.runs_in(entry_log_id)
        if row.position < end and row.position + row.size_bytes > found.position
    ]


def _stretch(found: DamagedStretch, living: list[StoredRun] | None) -> Finding:
    of = "" if found.ledger_id is None else f" of ledger {found.ledger_id}"
    if living:
        meaning, severity = f"entries{of} are lost here, or some of them", LOST
        remedy = "start the bookie: scrub finds which, and they are copied from other bookies"
    elif living is not None:
        meaning, remedy, severity = "nothing that lives is there", "-", HARMLESS
    elif found.is_tail:
        meaning, remedy, severity = "a crash explains it", "-", HARMLESS
    else:
        meaning, remedy, severity = f"entries{of} are lost here", _COPIED, LOST
    return Finding(
        "entry log", found.path, f"{found.size_bytes} bytes: {found.reason}", meaning, remedy,
        severity, found.position, found.ledger_id,
    )  # fmt: skip


def _of(
    kind: str, error: StorageError, meaning: str, remedy: str, severity: str = REPAIRABLE
) -> Finding:
    return Finding(kind, error.path or "", str(error), meaning, remedy, severity, error.offset)
