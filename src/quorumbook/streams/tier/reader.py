"""A segment's ledger, read from its files: for those who would read it from bookies.

One worker thread reads a row group at a time; the next one is read while the last is handed out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from quorumbook.client import Entry, EntryBatch
from quorumbook.env import Env
from quorumbook.errors import LedgerClosedError, NoSuchEntryError
from quorumbook.ids import EntryId
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.streams.tier.manifest import Manifest
from quorumbook.streams.tier.part_file import PartFile
from quorumbook.streams.tier.worker import FileWorker


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
        self._worker = FileWorker(env)
        self._is_open = True
        # Used by the worker only.
        self._files: dict[str, PartFile] = {}
        #: The row group that single entries were last read from.
        self._held: tuple[PartFile, int, EntryBatch] | None = None

    async def close(self) -> None:
        """Let go of the files."""
        if not self._is_open:
            return
        self._is_open = False

        def close() -> None:
            for file in self._files.values():
                file.close()

        await self._worker.run(close)
        self._worker.stop()

    async def read_last_add_confirmed(self) -> EntryId:
        """Return the last entry, which never changes."""
        return self.last_add_confirmed

    async def read_entry(self, entry_id: EntryId) -> Entry:
        """Return one entry, by reading one row group."""
        self._check(entry_id)
        batch = await self._worker.run(lambda: self._group_of(entry_id))
        return next(iter(batch.part(entry_id, entry_id)))

    async def read_batches(
        self, first: EntryId = 0, last: EntryId | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries, a row group at a time."""
        last = self.last_add_confirmed if last is None else last
        if first > last:
            return
        self._check(last)
        coming = self._worker.run(lambda: self._group_of(first))
        try:
            while True:
                batch = await coming
                following = batch.last_entry_id + 1
                if following <= last:
                    coming = self._worker.run(lambda entry_id=following: self._group_of(entry_id))  # type: ignore[misc]
                yield _within(batch, first, last)
                if following > last:
                    return
        finally:
            coming.cancel()

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

    # On the worker ---------------------------------------------------------------------------

    def _group_of(self, entry_id: EntryId) -> EntryBatch:
        part = next(part for part in self._manifest.parts if part.last >= entry_id)
        file = self._files.get(part.name)
        if file is None:
            file = self._files[part.name] = PartFile(self._manifest.path(part))
        group = file.group_of(entry_id)
        if self._held is None or self._held[:2] != (file, group):
            first, data, payloads = file.read_run(group, self._digester)
            batch = EntryBatch(
                self._manifest.ledger_id, first, data, payloads, self._digester.payload_offset
            )
            self._held = file, group, batch
        return self._held[2]


def _within(batch: EntryBatch, first: EntryId, last: EntryId) -> EntryBatch:
    return batch.part(max(first, batch.first_entry_id), min(last, batch.last_entry_id))
