"""Writing entry logs: runs are buffered, written in large pieces, and synced at a checkpoint.

A location is good once ``sync`` has returned; until then nothing may point to it, and the
entries stay in the write cache.  Each start, and each failure, begins a new log: what a crash or
a failed sync left behind is never written to again.  Logs are spread over the ledger
directories, one after the other.  All calls block and come from one worker; which entries go in,
and when a log is deleted, is decided by flush, compaction and garbage collection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from quorumbook.env import Env, File, logger
from quorumbook.errors import (
    CorruptEntryLogError,
    DiskFullError,
    LocalProtocolError,
    NoWritableDirectoryError,
    StorageError,
)
from quorumbook.ids import LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.entrylog.format import (
    HEADER_SIZE,
    RUN_RECORD_SIZE,
    RUN_SIZE_LIMIT_BYTES,
    Location,
    decode_last_id,
    encode_header,
    encode_last_id,
    encode_ledgers_map,
    encode_run_record,
    entry_log_id_of,
    entry_log_name,
)

DEFAULT_SIZE_BYTES = 1024 * 1024 * 1024
#: The peer keeps positions as 31-bit numbers.
SIZE_LIMIT_BYTES = 2**31 - 1
#: A log's map of them is in memory until it is complete, and a client may write to millions.
LEDGERS_MAX = 200_000
#: One piece of a flush; the journal's writes wait behind no more than this.
WRITE_BUFFER_BYTES = 256 * 1024
#: A piece that is larger has a large run, and few others.
_NOT_JOINED_BYTES = 512 * 1024
#: Pieces are synced together when they come to this.
_SYNC_BYTES = 1024 * 1024
#: Between borders of this size a write passes the system's cache by.
_BLOCK_BYTES = 4096

_log = logger("storage.entrylog")


def find_entry_logs(env: Env, directories: Sequence[str]) -> dict[int, str]:
    """Return the directory of each entry log.

    Raises:
        CorruptEntryLogError: Two directories hold a log of the same id.
    """
    found: dict[int, str] = {}
    for directory in directories:
        for name in env.disk.list_directory(directory):
            entry_log_id = entry_log_id_of(name)
            if entry_log_id is None:
                continue
            if entry_log_id in found:
                raise CorruptEntryLogError(
                    f"the log is also in {found[entry_log_id]}", path=f"{directory}/{name}"
                )
            found[entry_log_id] = directory
    return found


def delete_entry_log(env: Env, directory: str, entry_log_id: int) -> None:
    """Remove an entry log that nothing points to; durable when this returns."""
    env.disk.unlink(f"{directory}/{entry_log_name(entry_log_id)}")
    env.disk.sync_directory(directory)


def newest_entry_log_id(env: Env, directories: Sequence[str]) -> int:
    """Return the highest id ever used, -1 if none was."""
    newest = max(find_entry_logs(env, directories), default=-1)
    for directory in directories:
        path = f"{directory}/lastId"
        if env.disk.exists(path):
            newest = max(newest, decode_last_id(env.disk.read_file(path)))
    return newest


@dataclass(slots=True)
class _Log:
    """A log that is being written."""

    id: int
    directory: str
    file: File
    written: int = HEADER_SIZE
    buffers: list[bytes] = field(default_factory=list)
    buffered: int = 0
    #: Written since the last sync.
    unsynced: int = 0
    ledgers: dict[LedgerId, int] = field(default_factory=dict)
    #: Something may point to what lies before this; 0 while the log is new.
    synced: int = 0

    @property
    def end(self) -> int:
        return self.written + self.buffered

    def write_piece(self) -> None:
        """Write what is buffered up to the last border of a block, and sync now and then.

        Piece by piece, so that a checkpoint does not hit the journal's disk with all of a write
        cache at once; between borders, so that it passes the system's cache by.
        """
        # Many small ones are joined; to join large ones would hold the interpreter for long.
        is_large = self.buffered >= _NOT_JOINED_BYTES
        data: Sequence[bytes | memoryview] = self.buffers if is_large else [b"".join(self.buffers)]
        start = -self.written % _BLOCK_BYTES
        size = (self.buffered - start) // _BLOCK_BYTES * _BLOCK_BYTES
        head, data = _cut(data, start)
        whole, rest = _cut(data, size)
        if head:
            self.file.write(head, self.written)
        self.file.write(whole, self.written + start)
        self.written += start + size
        self.unsynced += start + size
        if self.unsynced >= _SYNC_BYTES:
            self.file.sync()
            self.unsynced = 0
        self.buffers, self.buffered = [b"".join(rest)], self.buffered - start - size

    def write_out(self) -> None:
        """Write everything; a sync follows."""
        if self.buffered >= WRITE_BUFFER_BYTES // 4:
            self.write_piece()
        if self.buffered:
            self.file.write(self.buffers, self.written)
            self.written += self.buffered
            self.buffers, self.buffered = [], 0


def _cut(
    buffers: Sequence[bytes | memoryview], size_bytes: int
) -> tuple[Sequence[bytes | memoryview], Sequence[bytes | memoryview]]:
    """Return the first bytes of buffers that lie one behind the other, and the rest."""
    for index, buffer in enumerate(buffers):
        if size_bytes < len(buffer):
            view = memoryview(buffer)
            before = [*buffers[:index], view[:size_bytes]] if size_bytes else buffers[:index]
            return before, [view[size_bytes:], *buffers[index + 1 :]]
        size_bytes -= len(buffer)
    return buffers, []


class EntryLogs:
    """The writer of all entry logs of a bookie.

    Args:
        env: The outside world.
        directories: The ledger directories (the peer's ``current``) that take new logs.
        size_bytes_max: A log is finished when a run would exceed this.
        least_id: No new log gets a lower id; the index may know of ids that the disk forgot.
        all_directories: Where logs of earlier starts may lie, if more than ``directories``.
        ids: The next id, shared with another writer; then nothing is looked up.
    """

    def __init__(
        self,
        env: Env,
        directories: Sequence[str],
        *,
        size_bytes_max: int = DEFAULT_SIZE_BYTES,
        least_id: int = 0,
        all_directories: Sequence[str] | None = None,
        ids: list[int] | None = None,
    ) -> None:
        self._env = env
        self._directories = list(directories)
        self._size_bytes_max = min(size_bytes_max, SIZE_LIMIT_BYTES)
        everywhere = list(dict.fromkeys([*directories, *(all_directories or ())]))
        #: The next id, shared with siblings.
        self._ids = ids or [max(newest_entry_log_id(env, everywhere) + 1, least_id)]
        self._turn = self._ids[0]
        self._log: _Log | None = None
        self._finished: list[_Log] = []
        self._new_names: dict[str, None] = {}
        self._places: dict[int, str] = {}
        self.bytes_written = 0
        self.syncs = 0
        #: By directory: syncs of logs at the end of a checkpoint, and their nanoseconds.
        self.sync_times: dict[str, tuple[int, int]] = {}

    def directory_of(self, entry_log_id: int) -> str:
        """Return the directory of a log that was begun since the start."""
        return self._places[entry_log_id]

    @property
    def current_id(self) -> int | None:
        """The log that is being written, or None: no log at or above it may be deleted."""
        return self._log.id if self._log else None

    @property
    def next_place(self) -> int:
        """The place, log id << 32 | position, before which everything lies that was appended."""
        return self._log.id << 32 | self._log.end if self._log else self._ids[0] << 32

    @property
    def open_ids(self) -> set[int]:
        """The logs that are not finished and synced."""
        return {log.id for log in self._open_logs()}

    def sibling(self) -> EntryLogs:
        """Return another writer with logs of its own, which takes ids from the same row."""
        return EntryLogs(
            self._env, self._directories, size_bytes_max=self._size_bytes_max, ids=self._ids
        )

    def append_run(self, run: EntryRun, checksum: int | None = None) -> Location:
        """Append a run and its check; where it lies is good once ``sync`` has returned.

        ``checksum`` is the CRC32C of its bytes, if that is known already.

        Raises:
            StorageError: Everything appended since the last ``sync`` is to be appended again.
        """
        size = len(run.data) + RUN_RECORD_SIZE
        if size > RUN_SIZE_LIMIT_BYTES:
            raise LocalProtocolError(f"a run of {len(run.data)} bytes is too large")
        log = self._log
        if log is not None and log.end > HEADER_SIZE:
            is_full = log.end + size > self._size_bytes_max
            if is_full or len(log.ledgers) >= LEDGERS_MAX:
                self._finish()
                log = None
        if log is None:
            log = self._new_log()
        position = log.end
        record = encode_run_record(log.id, position + len(run.data), run, checksum)
        log.buffers += (run.data, record)
        log.buffered += size
        log.ledgers[run.ledger_id] = log.ledgers.get(run.ledger_id, 0) + len(run.data)
        self.bytes_written += size
        if log.buffered >= WRITE_BUFFER_BYTES:
            try:
                log.write_piece()
            except StorageError:
                self._abandon()
                raise
        return Location(log.id, position)

    def rotate(self) -> None:
        """Finish the current log; the next run goes into a new one."""
        self._finish()

    def sync(self) -> None:
        """Make everything appended durable: content, lengths and names.

        Raises:
            StorageError: As for ``append_run``.
        """
        try:
            if self._log is not None:
                self._log.write_out()
            for log in self._open_logs():
                before = self._env.clock.now_ns()
                log.file.sync()
                directory = self._places[log.id]
                count, total_ns = self.sync_times.get(directory, (0, 0))
                total_ns += self._env.clock.now_ns() - before
                self.sync_times[directory] = count + 1, total_ns
            for directory in self._new_names:
                self._env.disk.sync_directory(directory)
        except StorageError:
            self._abandon()
            raise
        self.syncs += 1
        if self._log is not None:
            self._log.synced = self._log.written
            self._log.unsynced = 0
        for log in self._finished:
            log.file.close()
        self._finished.clear()
        self._new_names.clear()

    def close(self) -> None:
        """Finish and sync everything."""
        self._finish()
        self.sync()

    def _new_log(self) -> _Log:
        if not self._directories:
            raise NoWritableDirectoryError("no ledger directory takes new entry logs")
        error: StorageError | None = None
        for _ in self._directories:
            directory = self._directories[self._turn % len(self._directories)]
            self._turn += 1
            try:
                self._log = self._create(directory)
            except DiskFullError as full:
                error = full
            else:
                return self._log
        assert error is not None
        self._abandon()
        raise error

    def _create(self, directory: str) -> _Log:
        entry_log_id = self._ids[0]
        self._ids[0] += 1
        path = f"{directory}/{entry_log_name(entry_log_id)}"
        file = self._env.disk.open(path, create=True, uncached=True)
        try:
            header = encode_header(entry_log_id)
            file.write([header + bytes(HEADER_SIZE - len(header))], 0)
            # The id is spent before anything can point to the log.
            self._env.disk.write_file(f"{directory}/lastId", [encode_last_id(entry_log_id)])
        except StorageError:
            file.close()
            self._env.disk.unlink(path)
            raise
        self._new_names[directory] = None
        self._places[entry_log_id] = directory
        return _Log(entry_log_id, directory, file)

    def _finish(self) -> None:
        """Write the ledgers map and the final header; the next ``sync`` makes them durable."""
        log, self._log = self._log, None
        if log is None:
            return
        self._finished.append(log)
        try:
            log.write_out()
            ledgers_map = encode_ledgers_map(log.ledgers)
            if ledgers_map:
                log.file.write([ledgers_map], log.written)
                log.file.write([encode_header(log.id, log.written, len(log.ledgers))], 0)
        except StorageError:
            self._abandon()
            raise

    def _open_logs(self) -> list[_Log]:
        return [*self._finished, *([self._log] if self._log else [])]

    def _abandon(self) -> None:
        """Leave the open logs: nobody knows what of them is on the disk behind the last sync.

        That part is given back if it can be: a flush that is tried again and again on a full
        disk would otherwise eat up whatever somebody frees there.
        """
        logs = self._open_logs()
        self._log = None
        self._finished.clear()
        self._new_names.clear()
        for log in logs:
            _log.warning("entry log %s is left after a failed write or sync", log.file.path)
            with contextlib.suppress(StorageError):
                if log.synced:
                    log.file.truncate(log.synced)
                else:
                    self._env.disk.unlink(log.file.path)
            log.file.close()
