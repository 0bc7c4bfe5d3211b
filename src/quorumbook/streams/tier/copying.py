"""How a ledger's entries get into files, and how files are looked through again.

While one row group is compressed and written, the entries of the next ones come from bookies;
what waits to be written is bounded.  Files are read again by two workers, each a row group at a
time, since nearly all of that is done outside of Python.
"""

from __future__ import annotations

import contextlib
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

import google_crc32c

from quorumbook.client.reading.entries import EntryBatch
from quorumbook.env import Env
from quorumbook.ids import LedgerId
from quorumbook.protocol.digest import Digester, DigestType, digester
from quorumbook.streams.errors import CorruptRecordsError
from quorumbook.streams.tier import part_file
from quorumbook.streams.tier.manifest import Manifest, OffloadedFile
from quorumbook.streams.tier.part_file import PartFacts, PartFile, PartWriter, VerifiedGroup
from quorumbook.streams.tier.worker import FileWorker, forget

#: Row groups that were read from bookies and are not written yet.
_GROUPS_AHEAD = 2
_CHECKERS = 2
Pace = Callable[[int], Awaitable[None]]


def digester_of(manifest: Manifest) -> Digester:
    """Return what verifies the entries of a segment's ledger."""
    ledger = manifest.ledger
    return digester(ledger.digest_type or DigestType.CRC32, ledger.password or b"")


async def write_parts(
    env: Env,
    batches: AsyncGenerator[EntryBatch, None],
    location: str,
    facts: PartFacts,
    part_bytes: int,
    pace: Pace,
) -> list[OffloadedFile]:
    """Write all entries into files, and return those.

    Args:
        env: The world.
        batches: The entries; closed at the end.
        location: Where the files go.
        facts: What they say of the ledger.
        part_bytes: Where a file is full.
        pace: Waited for with the size of what was read.

    Raises:
        FilesUnavailableError: files cannot be written.
    """
    files = _Files(location, facts)
    worker = FileWorker(env)
    under_way: deque[Future[None]] = deque()
    held: list[EntryBatch] = []
    held_bytes = written_bytes = 0
    try:
        async with contextlib.aclosing(batches):
            async for batch in batches:
                await pace(batch.size_bytes)
                held.append(batch)
                held_bytes += batch.size_bytes
                written_bytes += batch.size_bytes
                is_full = written_bytes >= part_bytes
                if is_full or held_bytes >= part_file.ROW_GROUP_BYTES:
                    under_way.append(worker.run(partial(files.add, held, ends_file=is_full)))
                    held, held_bytes = [], 0
                    written_bytes = 0 if is_full else written_bytes
                while len(under_way) > _GROUPS_AHEAD:
                    await under_way.popleft()
        if held:
            under_way.append(worker.run(partial(files.add, held, ends_file=True)))
        while under_way:
            await under_way.popleft()
        return await worker.run(files.close)
    finally:
        forget(under_way)
        await worker.run(files.abandon)
        worker.stop()


class _Files:
    """A segment's files, one after the other; blocks."""

    def __init__(self, location: str, facts: PartFacts) -> None:
        self._location, self._facts = location, facts
        self._parts: list[OffloadedFile] = []
        self._writer: PartWriter | None = None

    def add(self, batches: list[EntryBatch], *, ends_file: bool) -> None:
        """Write a row group."""
        if self._writer is None:
            name = f"part-{len(self._parts):05d}.parquet"
            self._writer = PartWriter(self._location, name, self._facts, batches[0].first_entry_id)
        self._writer.add(batches)
        if ends_file:
            self.close()

    def close(self) -> list[OffloadedFile]:
        """Finish the file that is being written, if there is one; return all."""
        if self._writer is not None:
            self._parts.append(self._writer.close())
            self._writer = None
        return self._parts

    def abandon(self) -> None:
        """Close what will never be used."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None


async def verify(env: Env, manifest: Manifest) -> int:
    """Read all files of a segment again, recompute every digest, and return the entries.

    Raises:
        CorruptRecordsError: a file is damaged or not the one that was written.
        FilesUnavailableError: a file cannot be read.
        UnsupportedFormatError: a file says that it is of another release.
    """
    seal = digester_of(manifest)
    workers = [FileWorker(env) for _ in range(_CHECKERS)]
    try:
        for part in manifest.parts:
            await _verify_part(workers, manifest.path(part), part, manifest.ledger_id, seal)
    finally:
        for worker in workers:
            worker.stop()
    return sum(part.last - part.first + 1 for part in manifest.parts)


async def _verify_part(
    workers: list[FileWorker], path: str, part: OffloadedFile, ledger_id: LedgerId, seal: Digester
) -> None:
    files: list[PartFile] = []
    under_way: deque[Future[VerifiedGroup]] = deque()
    checksum = 0
    try:
        file = await workers[0].run(partial(PartFile, path))
        files.append(file)
        for worker in workers[1 : len(file.groups)]:
            files.append(await worker.run(partial(PartFile, path)))  # noqa: PERF401 - closed below
        if (file.ledger_id, file.first, file.last) != (ledger_id, part.first, part.last):
            raise CorruptRecordsError(
                f"{path} holds entries {file.first} to {file.last} of ledger {file.ledger_id}, not "
                f"{part.first} to {part.last} of ledger {ledger_id}"
            )
        for group in file.groups:
            turn = group % len(files)
            job = partial(files[turn].verified_group, group, ledger_id, seal)
            under_way.append(workers[turn].run(job))
            if len(under_way) > len(files):
                checksum = _extended(checksum, await under_way.popleft())
        while under_way:
            checksum = _extended(checksum, await under_way.popleft())
    finally:
        forget(under_way)
        for worker, each in zip(workers, files, strict=False):
            await worker.run(each.close)
    if checksum != part.checksum or checksum != file.checksum:
        raise CorruptRecordsError(f"{path}: the entries do not match the file's checksum")


def _extended(checksum: int, group: VerifiedGroup) -> int:
    checksum = google_crc32c.extend(checksum, group.heads)
    extended: int = google_crc32c.extend(checksum, group.values)
    return extended
