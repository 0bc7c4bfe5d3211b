"""A segment's ledger, read from its files: for those who would read it from bookies.

A worker thread reads a row group at a time.  Two take turns while entries are handed out in order,
since nearly all of that is done outside of Python.
"""

from __future__ import annotations

import itertools
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar

from quorumbook.client.reading.entries import Entry, EntryBatch
from quorumbook.env import Env
from quorumbook.errors import LedgerClosedError, NoSuchEntryError
from quorumbook.ids import EntryId
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.streams.tier.manifest import Manifest, OffloadedFile
from quorumbook.streams.tier.part_file import PartFile
from quorumbook.streams.tier.worker import FileWorker, forget

T = TypeVar("T")
#: Threads that take turns, and row groups that are read ahead of the one that is handed out.
_WORKERS = 2


class PartsReader:
    """The face of a ``LedgerReader`` of a closed ledger, as far as streams use it."""

    is_closed = True

    def __init__(self, env: Env, manifest: Manifest) -> None:
        """Take a list of files that may be read."""
        ledger = manifest.ledger
        self._manifest = manifest
        self._digester = digester(ledger.digest_type or DigestType.CRC32, ledger.password or b"")
        self.last_add_confirmed = ledger.last_entry_id
        self.length = ledger.length
        self._workers = [_Worker(env) for _ in range(_WORKERS)]
        self._is_open = True
        #: The row group that single entries were last read from; used by the first worker only.
        self._held: tuple[PartFile, int, EntryBatch] | None = None

    async def close(self) -> None:
        """Let go of the files."""
        if not self._is_open:
            return
        self._is_open = False
        for worker in self._workers:
            await worker.close()

    async def read_last_add_confirmed(self) -> EntryId:
        """Return the last entry, which never changes."""
        return self.last_add_confirmed

    async def read_entry(self, entry_id: EntryId) -> Entry:
        """Return one entry, by reading one row group."""
        self._check(entry_id)
        path = self._manifest.path(self._part_of(entry_id))
        batch = await self._workers[0].run(path, lambda file: self._holding(file, entry_id))
        return next(iter(batch.part(entry_id, entry_id)))

    async def read_batches(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries, a row group at a time."""
        last = self.last_add_confirmed if last is None else last
        if first > last:
            return
        self._check(last)
        coming: deque[Future[EntryBatch]] = deque()
        turns = itertools.cycle(self._workers)
        try:
            begin = first
            while begin <= last:
                part = self._part_of(begin)
                path, ids = self._manifest.path(part), (begin, min(last, part.last))
                for group in await self._workers[0].run(path, partial(_groups, ids)):
                    coming.append(next(turns).run(path, partial(self._batch_of, group)))
                    if len(coming) > _WORKERS:
                        yield _within(await coming.popleft(), first, last)
                begin = part.last + 1
            while coming:
                yield _within(await coming.popleft(), first, last)
        finally:
            forget(coming)

    def tail_batches(self, first: EntryId = 0) -> AsyncGenerator[EntryBatch, None]:
        """Yield what there is: nothing comes any more."""
        return self.read_batches(first)

    def _check(self, entry_id: EntryId) -> None:
        if not self._is_open:
            raise LedgerClosedError("these files are closed")
        if not 0 <= entry_id <= self.last_add_confirmed:
            raise NoSuchEntryError(
                f"ledger {self._manifest.ledger_id} has no entry {entry_id}",
                ledger_id=self._manifest.ledger_id,
                entry_id=entry_id,
            )

    def _part_of(self, entry_id: EntryId) -> OffloadedFile:
        return next(part for part in self._manifest.parts if part.last >= entry_id)

    # On a worker -----------------------------------------------------------------------------

    def _batch_of(self, group: int, file: PartFile) -> EntryBatch:
        first, data, payloads = file.read_run(group, self._digester)
        offset = self._digester.payload_offset
        return EntryBatch(self._manifest.ledger_id, first, data, payloads, offset)

    def _holding(self, file: PartFile, entry_id: EntryId) -> EntryBatch:
        group = file.group_of(entry_id)
        if self._held is None or self._held[:2] != (file, group):
            self._held = file, group, self._batch_of(group, file)
        return self._held[2]


class _Worker:
    """A thread with files of its own, which are opened when something of them is read."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._thread: FileWorker | None = None
        # Used by the thread only.
        self._files: dict[str, PartFile] = {}

    def run(self, path: str, job: Callable[[PartFile], T]) -> Future[T]:
        """Run a job with a file."""
        if self._thread is None:
            self._thread = FileWorker(self._env)
        return self._thread.run(lambda: job(self._file(path)))

    async def close(self) -> None:
        """Let go of the files."""
        if self._thread is not None:
            await self._thread.run(self._close_files)
            self._thread.stop()

    def _file(self, path: str) -> PartFile:
        found = self._files.get(path)
        if found is None:
            found = self._files[path] = PartFile(path)
        return found

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()


def _groups(ids: tuple[EntryId, EntryId], file: PartFile) -> range:
    """Return the row groups that have the entries between two ids, both included."""
    return range(file.group_of(ids[0]), file.group_of(ids[1]) + 1)


def _within(batch: EntryBatch, first: EntryId, last: EntryId) -> EntryBatch:
    return batch.part(max(first, batch.first_entry_id), min(last, batch.last_entry_id))
