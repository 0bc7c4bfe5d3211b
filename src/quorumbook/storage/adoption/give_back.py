"""Handing directories back to the peer: an index in its own form, and nothing of ours in its way.

    1. close      the journal is replayed and flushed; every entry log gets its ledgers map
    2. stage      the peer's index is written into ``giving-back`` beside ``current``.  Up to here
                  a bookie of ours may go on; the next attempt begins anew
    3. note       ``quorumbook.giving-back`` in the first ledger directory: from here on it only
                  goes forward, and no bookie of ours starts any more
    4. move       the staged index goes into ``current``
    5. marks      one file for each journal directory, as the peer reads them
    6. aside      index, copies of the states and notes of ours go to ``after-giving-back``
    7. the note goes
    8. cookies    ``VERSION`` is the peer's alone again, so that it starts

The peer's own tool that builds an index from entry logs cannot do this: it knows no keys and
fences every ledger that is not closed.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate

from google_crc32c import value as crc32c

from quorumbook.env import Env
from quorumbook.errors import (
    CorruptEntryLogError,
    CorruptStateError,
    DiskFullError,
    ForeignDirectoryError,
)
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.adoption.closing import close_entry_logs
from quorumbook.storage.adoption.index_file import (
    IndexHeader,
    find_index_files,
    index_file_path,
    write_index_file,
)
from quorumbook.storage.adoption.rocksdb import remove_databases, write_databases
from quorumbook.storage.adoption.survey import PeerPlaces
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.checkpoint.checkpoint import LIMBO_START_KEY
from quorumbook.storage.directories.places import (
    GIVING_BACK_NAME,
    Directories,
    is_any_ours,
    make_the_peers,
)
from quorumbook.storage.directories.reserve import COMPACTION_NAME, START_NAME
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.entrylog.writer import EntryLogs
from quorumbook.storage.gc.hold import NAME as HOLD_NAME
from quorumbook.storage.index.peer_parts import DATABASES, DB
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.journal.format import NEWEST_NAME
from quorumbook.storage.journal.marks import LogMark, Marks, mark_file_name, write_mark
from quorumbook.storage.journal.synced import SYNCED_NAME
from quorumbook.storage.options import StorageOptions
from quorumbook.storage.startup import open_storage
from quorumbook.storage.states.state_file import NAME as STATES_NAME
from quorumbook.storage.states.state_file import StoredLedger

STAGE_NAME = "giving-back"
ASIDE_NAME = "after-giving-back"


@dataclass(slots=True)
class ReturnNote:
    """What has to be done once the index is staged."""

    marks: list[LogMark]
    #: From, to.
    moves: list[tuple[str, str]] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the content of the note."""
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        return f"{json.dumps(content)}\n".encode()


@dataclass(slots=True)
class Returned:
    """What is given back."""

    ledgers: int = 0
    fenced: int = 0
    explicit_lacs: int = 0
    entries: int = 0
    entry_logs: int = 0
    #: Bytes of entries that had to be copied into another directory.
    copied_bytes: int = 0


def note_path(places: PeerPlaces) -> str:
    """Return where the note lies while directories are on their way back."""
    return f"{places.ledger_files[0]}/{GIVING_BACK_NAME}"


def read_note(env: Env, places: PeerPlaces) -> ReturnNote | None:
    """Return what an earlier attempt has left to be done, None if nothing.

    Raises:
        CorruptStateError: The note cannot be read.
    """
    path = note_path(places)
    if not env.disk.exists(path):
        return None
    try:
        content = json.loads(env.disk.read_file(path))
        return ReturnNote(
            [LogMark(*mark) for mark in content["marks"]],
            [(source, target) for source, target in content["moves"]],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStateError("the note of the return is damaged", path=path) from error


def close_storage(env: Env, directories: Directories) -> Marks:
    """Replay and flush what is left, and close every entry log; return the ends of the journals.

    Blocks.
    """
    options = StorageOptions()
    opened = open_storage(
        env, directories, Caches(read_cache_size_bytes=options.read_cache_size_bytes), options
    )
    try:
        if opened.pending is not None:
            raise DiskFullError("no space to replay the journal", path=directories.ledgers[0])
        opened.entry_logs.close()
        opened.index.truncate_wal()
        close_entry_logs(env, opened.index)
    finally:
        opened.loop_index.close()
        opened.index.close()
    return opened.marks


def demand_certain(index: IndexReader, kind: str) -> None:
    """Refuse ledgers of which something may be missing, where the peer could not say so.

    Raises:
        ForeignDirectoryError: There are some.
    """
    if index.meta(LIMBO_START_KEY) is not None:
        raise ForeignDirectoryError(
            f"the bookie may have lost something ({index.meta(LIMBO_START_KEY)}) and has not "
            "started since; `quorumbook bookie run` marks what it concerns"
        )
    count = index.count_in_limbo()
    if count and kind != DB:
        raise ForeignDirectoryError(
            f"{count} ledgers are in limbo, which index files cannot say, and a Java bookie would "
            "deny entries that it may have lost; --storage db keeps it, or give the cluster an "
            "empty bookie instead"
        )


def stage(
    env: Env, places: PeerPlaces, index: IndexReader, kind: str, keys: Mapping[LedgerId, bytes]
) -> tuple[list[tuple[str, str]], Returned]:
    """Write the peer's index beside; return what has to be moved, and what it holds.  Blocks.

    Args:
        env: The outside world.
        places: The directories.
        index: Ours, closed by its bookie.
        kind: The peer's storage.
        keys: Master keys of ledgers that have none in the index; one without is left out.
    """
    staging = _Staging(env, places, index, keys)
    moves = staging.databases() if kind == DB else staging.index_files()
    return moves, staging.returned


class _Staging:
    def __init__(
        self, env: Env, places: PeerPlaces, index: IndexReader, keys: Mapping[LedgerId, bytes]
    ) -> None:
        self._env = env
        self._places = places
        self._index = index
        self.returned = Returned(entry_logs=len(index.entry_logs()))
        self._states: list[StoredLedger] = []
        for state in index.ledger_states():
            key = state.master_key if any(state.master_key) else keys.get(state.ledger_id)
            if key is not None:
                self._states.append(state._replace(master_key=key))
        self.returned.ledgers = len(self._states)
        self.returned.fenced = sum(state.is_fenced for state in self._states)
        self.returned.explicit_lacs = sum(state.explicit_lac is not None for state in self._states)

    def _directories(self) -> list[tuple[str, str]]:
        """Return where to stage for each index directory, and where it goes."""
        configured = self._places.indexes or self._places.ledgers
        pairs = zip(configured, self._places.index_files, strict=True)
        return [(f"{directory}/{STAGE_NAME}", files) for directory, files in pairs]

    # Index files

    def index_files(self) -> list[tuple[str, str]]:
        disk = self._env.disk
        directories = self._directories()
        for staged, _ in directories:
            disk.make_directory(staged)
            for path in find_index_files(self._env, [staged]).values():
                disk.unlink(path)
        folders: dict[str, None] = {}
        for state in self._states:
            staged, _ = directories[state.ledger_id % len(directories)]
            path = index_file_path(staged, state.ledger_id)
            folder = path.rpartition("/")[0]
            if folder not in folders:
                disk.make_directory(folder)
                folders[folder] = None
            rows = self._index.runs(state.ledger_id)
            write_index_file(
                self._env,
                path,
                IndexHeader(state.master_key, state.is_fenced, state.explicit_lac),
                ((row.first_entry_id, self._locations(row)) for row in rows),
                rows[-1].last_entry_id if rows else -1,
            )
        for folder in folders:
            disk.sync_directory(folder)
        return [
            (f"{staged}/{name}", f"{files}/{name}")
            for staged, files in directories
            for name in disk.list_directory(staged)
        ]

    def _locations(self, row: StoredRun) -> array[int]:
        self.returned.entries += row.entry_count
        return locations_of(row)

    # RocksDB

    def databases(self) -> list[tuple[str, str]]:
        moves: list[tuple[str, str]] = []
        directories = self._directories()
        if len(directories) != len(self._places.ledgers):
            raise ForeignDirectoryError(
                "DbLedgerStorage has one index directory for each ledger directory"
            )
        for number, (staged, files) in enumerate(directories):
            self._env.disk.make_directory(staged)
            remove_databases(self._env, staged)
            states = [
                state for state in self._states if state.ledger_id % len(directories) == number
            ]
            write_databases(staged, states, self._placed(states, number))
            moves += [(f"{staged}/{name}", f"{files}/{name}") for name in DATABASES]
        return moves

    def _placed(
        self, states: list[StoredLedger], number: int
    ) -> Iterator[tuple[LedgerId, EntryId, int]]:
        """Yield locations; entries that lie in another ledger directory are copied into this one.

        Each directory of DbLedgerStorage keeps the ledgers whose id has its number as the
        remainder, and looks nowhere else.
        """
        own = self._places.ledger_files[number]
        where = self._index.entry_logs()
        logs = EntryLogs(self._env, [own], all_directories=self._places.ledger_files)
        reader = EntryLogReader(self._env, self._places.ledger_files)
        try:
            for state in states:
                for row in self._index.runs(state.ledger_id):
                    placed = row
                    if where[row.entry_log_id] != own:
                        placed = self._copy(row, reader, logs)
                    ids = range(row.first_entry_id, row.last_entry_id + 1)
                    for entry_id, location in zip(ids, self._locations(placed), strict=True):
                        if location:
                            yield state.ledger_id, entry_id, location
            logs.close()
        finally:
            reader.close()

    def _copy(self, row: StoredRun, reader: EntryLogReader, logs: EntryLogs) -> StoredRun:
        data = reader.read(row.entry_log_id, row.position, row.size_bytes)
        known = row.written_checksum
        is_other = not row.is_believed_unproven if known is None else crc32c(data) != known
        if len(data) != row.size_bytes or is_other:
            raise CorruptEntryLogError(
                f"entries {row.first_entry_id} to {row.last_entry_id} of ledger {row.ledger_id} "
                f"are damaged in entry log {row.entry_log_id:x}, byte {row.position}"
            )
        run = EntryRun(row.ledger_id, row.first_entry_id, row.last_entry_id, row.sizes, data)
        self.returned.copied_bytes += len(data)
        location = logs.append_run(run)
        return row._replace(entry_log_id=location.entry_log_id, position=location.position)


def locations_of(row: StoredRun) -> array[int]:
    """Return the peer's location of each entry from the first to the last, 0 for a hole."""
    start = (row.entry_log_id << 32) + row.position + 4
    if isinstance(row.sizes, int):
        step = row.sizes + 4
        count = row.last_entry_id - row.first_entry_id + 1
        return array("q", range(start, start + count * step, step))
    ends = accumulate((size + 4 if size else 0 for size in row.sizes), initial=start)
    return array("q", (at if size else 0 for size, at in zip(row.sizes, ends, strict=False)))


def finish(env: Env, directories: Directories, places: PeerPlaces, note: ReturnNote) -> None:
    """Do what is to be done, from the note on; after a failure, the same once more.  Blocks."""
    disk, path = env.disk, note_path(places)
    if not disk.exists(path):
        disk.write_file(path, [note.encode()])
    touched: set[str] = set()
    for source, target in note.moves:
        if disk.exists(source):
            disk.replace(source, target)
            touched.add(target.rpartition("/")[0])
    count = len(places.journals)
    for directory in places.ledger_files:
        for number, mark in enumerate(note.marks):
            write_mark(disk, directory, mark, mark_file_name(number, count))
    for name in (COMPACTION_NAME, START_NAME):
        disk.unlink(f"{places.ledger_files[0]}/{name}")
    for source, target in _own_files(env, directories, places):
        folder = target.rpartition("/")[0]
        disk.make_directory(folder)
        disk.replace(source, target)
        touched |= {folder, source.rpartition("/")[0]}
    for directory in sorted(touched):
        disk.sync_directory(directory)
    disk.unlink(path)
    disk.sync_directory(places.ledger_files[0])
    # Last: a Java bookie must not have written anything when one of these steps is done again.
    make_the_peers(env, directories.all)


def is_the_peers_but_for_cookies(env: Env, directories: Directories, places: PeerPlaces) -> bool:
    """Tell whether only the cookies keep the peer away: not begun, or returned all but them."""
    is_kept = is_any_ours(env, directories.all)
    return is_kept and next(_own_files(env, directories, places), None) is None


def _own_files(env: Env, directories: Directories, places: PeerPlaces) -> Iterator[tuple[str, str]]:
    """Yield what the peer does not know, and where it goes; the index last."""
    index_name = directories.index_path.rpartition("/")[2]
    names = [NEWEST_NAME, SYNCED_NAME, STATES_NAME, HOLD_NAME, "VERSION.past"]
    names += [f"{index_name}{suffix}" for suffix in ("-wal", "-shm", "")]
    pairs = [
        *zip(places.journals, places.journal_files, strict=True),
        *zip(places.ledgers, places.ledger_files, strict=True),
    ]
    for name in names:
        for directory, files in pairs:
            source = f"{files}/{name}"
            if env.disk.exists(source):
                yield source, f"{directory}/{ASIDE_NAME}/{name}"
