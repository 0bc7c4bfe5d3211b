"""The journal: what is enqueued while one write and sync runs is the next group.

The event loop enqueues records (already framed) and goes on; one worker thread writes a group
with one write, syncs it, and wakes the loop once, which then calls everybody who waits, in the
order of the enqueues.  There is no artificial wait and one group in flight, so after a crash
only the end of the newest file can be torn.

A failed write or sync is the end: after it nobody knows what is on the disk, so nothing more is
written or synced, everybody who waits and everybody who comes later gets the error, and the
owner is told once.  What is visible when, and when to delete, is the owner's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quorumbook.env import Env, File, logger
from quorumbook.errors import DiskFullError, LocalProtocolError, StorageError
from quorumbook.storage.journal.format import (
    ALIGNMENT,
    GROUP_SIZE_LIMIT_BYTES,
    HEADER_SIZE,
    NEWEST_NAME,
    boot_mark,
    closing_record,
    encode_header,
    journal_id_of,
    journal_name,
)
from quorumbook.storage.journal.marks import NO_MARK, LogMark
from quorumbook.storage.journal.synced import Synced, SyncedNote
from quorumbook.storage.times import GroupTimes

Done = Callable[[BaseException | None], None]

#: Space is reserved in steps, so that a sync rarely has a new length to make durable.
PREALLOCATION_BYTES = 16 * 1024 * 1024
DEFAULT_FILE_SIZE_BYTES = 2 * 1024 * 1024 * 1024
DEFAULT_GROUP_SIZE_BYTES = 16 * 1024 * 1024
#: A small group takes the zeros behind it along up to the next multiple of this.  Those that
#: follow overwrite what the file already has, and their syncs have nothing but data to make
#: durable: measured with groups of 28 KB, 0.11 instead of 0.2 ms for write and sync.
ZERO_STEP_BYTES = 256 * 1024
#: From this size on a group is not worth it.
_ZERO_GROUP_BYTES = 64 * 1024
#: From here on one joined copy is cheaper than a checksum call and an iovec per buffer; not of
#: buffers that are large: to copy 5 MB holds the interpreter for milliseconds.
_JOIN_FROM_BUFFERS = 8
_LARGE_BYTES = 256 * 1024

_log = logger("storage.journal")


@dataclass(slots=True)
class JournalStatistics:
    """Counters since the start; times are nanoseconds."""

    groups: int = 0
    enqueued: int = 0
    bytes_written: int = 0
    syncs: int = 0
    files_created: int = 0
    write_ns: int = 0
    sync_ns: int = 0
    last_group_enqueued: int = 0
    last_group_bytes: int = 0
    pending_bytes: int = 0
    pending: int = 0


class _Item:
    """What one enqueue brought."""

    __slots__ = ("buffers", "done", "on_written", "size")

    def __init__(
        self, buffers: Sequence[bytes], size: int, done: Done, on_written: Callable[[], None] | None
    ) -> None:
        self.buffers = buffers
        self.size = size
        self.done = done
        self.on_written = on_written


class JournalStoppedError(StorageError):
    """The journal takes nothing more."""


def _joined(buffers: list[bytes]) -> list[bytes]:
    """Join small buffers; large ones, each a long time with the interpreter, stay as they are."""
    if max(map(len, buffers)) < _LARGE_BYTES:
        return [b"".join(buffers)]
    joined: list[bytes] = []
    small: list[bytes] = []
    for buffer in buffers:
        if len(buffer) < _LARGE_BYTES:
            small.append(buffer)
        else:
            joined += (b"".join(small), buffer)
            small = []
    return [*joined, b"".join(small)]


class _Writer:
    """The file side of the journal; every method runs in a job of the worker."""

    def __init__(self, env: Env, directory: str, mark: LogMark, file_size_bytes: int) -> None:
        self._clock = env.clock
        self._disk = env.disk
        self._random = env.random
        self._directory = directory
        self._start = mark
        self._file_size_bytes = file_size_bytes
        self._file: File | None = None
        self._note: SyncedNote | None = None
        self._journal_id = -1
        self._salt = 0
        self._offset = 0
        self._allocated = 0
        #: Up to here the file has been written to, be it with zeros.
        self._written = 0
        self.files_created = 0
        self.write_ns = 0
        self.sync_ns = 0
        # Of the group at hand: when its write began and ended, and when it was synced.
        self.began_ns = 0
        self.written_ns = 0
        self.synced_ns = 0

    def write_group(
        self, buffers: list[bytes], size: int, written: Callable[[], None] | None
    ) -> LogMark | None:
        """Write and sync a group; return its end, or None if there was nothing to sync."""
        file = self._file
        if size:
            if file is None or (
                self._offset > HEADER_SIZE and self._offset + size > self._file_size_bytes
            ):
                file = self._roll()
            self._append(file, buffers)
        if written is not None:
            written()
        if file is None:
            return None
        if not size:
            self.began_ns = self.written_ns = self._clock.now_ns()
        before = self._clock.now_ns()
        file.sync()
        if self._note is not None and size:
            self._note.write(Synced(self._journal_id, self._salt, self._offset))
        self.synced_ns = self._clock.now_ns()
        self.sync_ns += self.synced_ns - before
        return LogMark(self._journal_id, self._offset)

    def _append(self, file: File, buffers: list[bytes]) -> None:
        offset = self._offset
        if len(buffers) >= _JOIN_FROM_BUFFERS:
            buffers = _joined(buffers)
        closing = closing_record(self._journal_id, offset, buffers, self._salt)
        pieces = [*buffers, closing]
        end = offset + sum(map(len, pieces))
        if end >= self._allocated:
            self._allocate(file, end)
        if end > self._written:
            self._written = end
            if end - offset < _ZERO_GROUP_BYTES:
                steps = -(-end // ZERO_STEP_BYTES)
                self._written = max(end, min(steps * ZERO_STEP_BYTES, self._allocated))
                pieces.append(bytes(self._written - end))
        self.began_ns = self._clock.now_ns()
        file.write(pieces, offset)
        self.written_ns = self._clock.now_ns()
        self.write_ns += self.written_ns - self.began_ns
        self._offset = end

    def _allocate(self, file: File, end: int) -> None:
        # A file that ends with its data looks as if something had been cut off (``replay``).
        least = end + ALIGNMENT
        steps = -(-least // PREALLOCATION_BYTES)
        size = max(least, min(steps * PREALLOCATION_BYTES, self._file_size_bytes))
        try:
            file.allocate(size)
            self._allocated = size
        except DiskFullError:
            # The reserve does not fit any more; the group itself still may.
            self._allocated = end

    def _roll(self) -> File:
        """Start the next file; its header and name are durable before anything is acked."""
        old = self._file
        if old is None:
            ids = [journal_id_of(name) for name in self._disk.list_directory(self._directory)]
            newest = max((i for i in ids if i is not None), default=-1)
            journal_id = max(newest, self._start.journal_id) + 1
            previous = self._start if self._start.journal_id == newest else LogMark(-1, -1)
            if newest < 0 and self._start == NO_MARK:
                journal_id = self._clock.wall_ms()
        else:
            journal_id = self._journal_id + 1
            previous = LogMark(self._journal_id, self._offset)
        path = f"{self._directory}/{journal_name(journal_id)}"
        file = self._disk.open(path, create=True, uncached=True)
        self._file, self._journal_id, self._allocated = file, journal_id, 0
        self._salt = self._random.getrandbits(64)
        self._offset = self._written = HEADER_SIZE
        self._allocate(file, HEADER_SIZE)
        header = encode_header(
            journal_id,
            previous_id=previous.journal_id,
            previous_end=previous.offset,
            is_start=old is None,
            boot=boot_mark(self._clock.boot_id()),
            salt=self._salt,
        )
        file.write([header], 0)
        file.sync()
        if self._note is None:
            self._note = SyncedNote(self._disk, self._directory)
        self._disk.sync_directory(self._directory)
        self._disk.write_file(f"{self._directory}/{NEWEST_NAME}", [b"%x\n" % journal_id])
        self.files_created += 1
        if old is not None:
            # What is reserved behind its end is given back; nothing depends on it.
            with contextlib.suppress(StorageError):
                old.truncate(previous.offset)
            old.close()
        return file

    def close(self) -> None:
        for file in (self._file, self._note):
            if file is not None:
                file.close()
        self._file = self._note = None


class Journal:
    """One journal directory, written by one worker thread; call it on the loop's thread.

    Args:
        env: The outside world.
        directory: Where the ``.txn`` files lie (the peer's ``current``).
        mark: The end of what replay found, ``ReplayReport.end``; the next file's id follows it.
        file_size_bytes: A new file is begun when a group would exceed this.
        group_size_bytes_max: What waits beyond this many bytes goes into a later group.
        on_failed: Called once, with the error, when the journal has failed for good.
        on_group: Called with the times of each group just before those who wait for it are.
        on_told: Called right behind those.
        name: Of its thread.
    """

    def __init__(
        self,
        env: Env,
        directory: str,
        *,
        mark: LogMark = NO_MARK,
        file_size_bytes: int = DEFAULT_FILE_SIZE_BYTES,
        group_size_bytes_max: int = DEFAULT_GROUP_SIZE_BYTES,
        on_failed: Callable[[BaseException], None],
        on_group: Callable[[GroupTimes], None] = lambda _: None,
        on_told: Callable[[], None] = lambda: None,
        name: str = "journal",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._mark = mark
        self._group_size_bytes_max = min(group_size_bytes_max, GROUP_SIZE_LIMIT_BYTES // 4)
        self._on_failed = on_failed
        self._on_group = on_group
        self._on_told = on_told
        self._clock = env.clock
        self._writer = _Writer(env, directory, mark, file_size_bytes)
        self._worker = env.threads.start_worker(name)
        self._pending: deque[_Item] = deque()
        self._pending_bytes = 0
        self._in_flight: list[_Item] | None = None
        self._error: BaseException | None = None
        self._idle: asyncio.Future[None] | None = None
        self._statistics = JournalStatistics()

    @property
    def pending_bytes(self) -> int:
        """Bytes enqueued and not yet durable."""
        return self._pending_bytes

    @property
    def error(self) -> BaseException | None:
        """Why the journal takes nothing more, or None while it works."""
        return self._error

    def durable_mark(self) -> LogMark:
        """Return the end of the last group whose waiters have all been called.

        Inside a ``done`` this is still the end of the group before: what other waiters of the
        same group are about to make visible is not covered by a checkpoint taken now.
        """
        return self._mark

    def statistics(self) -> JournalStatistics:
        """Return the counters."""
        statistics, writer = self._statistics, self._writer
        statistics.pending_bytes = self._pending_bytes
        statistics.pending = len(self._pending) + len(self._in_flight or ())
        statistics.files_created = writer.files_created
        statistics.write_ns = writer.write_ns
        statistics.sync_ns = writer.sync_ns
        return statistics

    def enqueue(
        self,
        buffers: Sequence[bytes],
        done: Done,
        *,
        on_written: Callable[[], None] | None = None,
    ) -> None:
        """Append framed records; ``done`` is called once, in order, when they are durable.

        Args:
            buffers: Whole records, ``EntryRun.data`` or those of ``format``; none at all is a
                force: everything enqueued before it is durable when ``done`` is called.
            done: Called on the loop with None, or with the error that ended the journal.
            on_written: Called on the loop after the write and before ``done``; for writers who
                asked for an answer before the sync.  Not called if the write fails.
        """
        if self._error is not None:
            self._loop.call_soon(self._call, done, self._error)
            return
        size = sum(map(len, buffers))
        if size > GROUP_SIZE_LIMIT_BYTES // 2:
            error = LocalProtocolError(f"{size} bytes are more than a journal group can hold")
            self._loop.call_soon(self._call, done, error)
            return
        self._pending.append(_Item(buffers, size, done, on_written))
        self._pending_bytes += size
        self._statistics.enqueued += 1
        if self._in_flight is None:
            self._start_group()

    async def stop(self) -> None:
        """Wait for what is enqueued, then end the thread and close the file."""
        while self._in_flight is not None:
            self._idle = self._loop.create_future()
            await self._idle
        if self._error is None:
            self._error = JournalStoppedError("the journal is stopped", path=self._directory)
        self._worker.stop()
        self._writer.close()

    def _start_group(self) -> None:
        pending = self._pending
        if self._pending_bytes <= self._group_size_bytes_max:
            group = list(pending)
            pending.clear()
            size = self._pending_bytes
        else:
            group = [pending.popleft()]
            size = group[0].size
            while pending and size + pending[0].size <= self._group_size_bytes_max:
                size += pending[0].size
                group.append(pending.popleft())
        self._in_flight = group
        buffers = [buffer for item in group for buffer in item.buffers]
        written: Callable[[], None] | None = None
        if any(item.on_written for item in group):
            tell = partial(self._group_written, group, size)
            written = partial(self._worker.call_on_loop, tell)
        writer = self._writer
        self._worker.submit(lambda: writer.write_group(buffers, size, written), self._group_done)

    def _group_written(self, group: list[_Item], size: int) -> None:
        # The worker syncs meanwhile: what the group before it has left there is not its own.
        self._on_group(self._times(group, size, synced_ns=0))
        for item in group:
            if item.on_written is not None:
                try:
                    item.on_written()
                except Exception:
                    _log.exception("a waiter for a journal write failed")

    def _group_done(self, result: LogMark | BaseException | None) -> None:
        """Runs on the loop once per group."""
        group = self._in_flight
        assert group is not None
        if isinstance(result, BaseException):
            self._fail(result)
            return
        size = sum(item.size for item in group)
        self._pending_bytes -= size
        statistics = self._statistics
        statistics.groups += 1
        statistics.syncs += 1
        statistics.bytes_written += size
        statistics.last_group_enqueued = len(group)
        statistics.last_group_bytes = size
        self._in_flight = None
        # Before the next group overwrites them.
        times = self._times(group, size, synced_ns=self._writer.synced_ns)
        # The next group starts before anybody is called: the disk works meanwhile.
        if self._pending:
            self._start_group()
        if result is not None:
            self._on_group(times)
        for item in group:
            self._call(item.done, None)
        self._on_told()
        if result is not None:
            self._mark = result
        if self._in_flight is None:
            self._now_idle()

    def _times(self, group: list[_Item], size: int, *, synced_ns: int) -> GroupTimes:
        writer, told_ns = self._writer, self._clock.now_ns()
        return GroupTimes(writer.began_ns, writer.written_ns, synced_ns, told_ns, len(group), size)

    def _fail(self, error: BaseException) -> None:
        _log.critical("the journal in %s failed: %s", self._directory, error)
        self._error = error
        waiting = [*(self._in_flight or ()), *self._pending]
        self._in_flight = None
        self._pending.clear()
        self._pending_bytes = 0
        for item in waiting:
            self._call(item.done, error)
        try:
            self._on_failed(error)
        except Exception:
            _log.exception("the journal's owner failed to take its failure")
        self._now_idle()

    def _now_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

    @staticmethod
    def _call(done: Done, error: BaseException | None) -> None:
        try:
            done(error)
        except Exception:
            # One broken connection must not cost the others of the group their answers.
            _log.exception("a waiter for the journal failed")
