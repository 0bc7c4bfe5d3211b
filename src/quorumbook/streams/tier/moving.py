"""Moves completed segments between bookies and files; every step may be killed and given again.

    offload        copies a segment's ledger into files, reads them again, lets readers use them
    delete_copy    deletes the bookies' copy, once the files were live for long enough
    restore        makes the ledger again, byte by byte, and removes the files
    remove         removes a segment's files, together with the segment

What is done stands in the segment's ``Manifest``.  Files of an attempt lie in a directory of its
own, so a second attempt, or a second process, never writes into another's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from quorumbook.client.context import Context, client_context
from quorumbook.env import Env, logger
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    ConfigError,
    LedgerExistsError,
    LocalProtocolError,
    MetadataVersionConflict,
    NoSuchLedgerInMetadataError,
    TooManyRequestsError,
)
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.policy import Shape
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import DigestType, master_key
from quorumbook.protocol.status import Status, error_for
from quorumbook.protocol.v3 import client as v3
from quorumbook.streams.errors import CorruptRecordsError, DataLossError, FilesUnavailableError
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.copying import Pace, digester_of, verify, write_parts
from quorumbook.streams.tier.manifest import (
    RESTORING_KEY,
    Manifest,
    OffloadedFile,
    TierState,
    is_restoring,
)
from quorumbook.streams.tier.nodes import StoredManifest, TierNodes
from quorumbook.streams.tier.part_file import PartFacts, PartFile
from quorumbook.streams.tier.places import above, bare, below, check_there, file_system, safe_name
from quorumbook.streams.tier.worker import FileWorker, in_worker

_log = logger("streams.tier")
#: Is told the directory of a segment's files, before anybody reads them.
PutBeside: TypeAlias = Callable[[str], Awaitable[None]]
PART_BYTES = 512 * 1024 * 1024
#: Entries on their way to bookies while a ledger is made again, and their bytes.
_ENTRIES_AT_ONCE = 256
_BYTES_AT_ONCE = 8 * 1024 * 1024
_SHED_RETRY_S = 0.1
_SHED_ATTEMPTS = 100


async def _unhurried(size_bytes: int) -> None:
    del size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInTier:
    """A segment whose files are dealt with."""

    context: StreamContext
    metadata: SegmentMetadata
    #: Waited for with the size of what is about to be read from, or written to, bookies.
    pace: Pace = _unhurried

    @property
    def nodes(self) -> TierNodes:
        """The stream's lists."""
        return TierNodes(self.context.nodes)

    @property
    def env(self) -> Env:
        """The world."""
        return self.context.store.env

    @property
    def number(self) -> int:
        """The segment's."""
        return self.metadata.number

    async def stored(self) -> StoredManifest | None:
        """Return the list of its files; None if it has none.

        Raises:
            CorruptRecordsError: they are the files of another ledger.
        """
        stored, own = await self.nodes.read(self.number), self.metadata.ledger_id
        if stored is not None and stored.manifest.ledger_id != own:
            raise CorruptRecordsError(
                f"segment {self.number} of stream {self.context.name} has ledger {own}, and the "
                f"files listed for it are those of ledger {stored.manifest.ledger_id}; "
                "`quorumbook spark fsck-meta` finds such segments"
            )
        return stored

    def now_ms(self) -> int:
        """The time."""
        return self.env.clock.wall_ms()


async def offload(
    segment: SegmentInTier,
    directory: str,
    *,
    part_bytes: int = PART_BYTES,
    put_beside: PutBeside | None = None,
) -> Manifest:
    """Copy a completed segment into files that readers may use; done already is done.

    Args:
        segment: Which.
        directory: Path or URI below which its files go.
        part_bytes: Where a file is full.
        put_beside: Puts other files into the directory, which go when these go; None: none.

    Raises:
        LocalProtocolError: the segment is being written, or truncated away.
        MetadataVersionConflict: somebody else is at it.
        CorruptRecordsError: what was written reads back otherwise.
        FilesUnavailableError: files cannot be written.
    """
    found = segment.metadata
    if found.is_in_progress or found.truncation is Truncation.TRUNCATED:
        raise LocalProtocolError(f"segment {found.number} is not complete, or truncated away")
    stored = await segment.stored()
    if stored is None or stored.manifest.state is TierState.COPYING:
        stored = await _copy(segment, stored, directory, part_bytes, put_beside)
    if stored.manifest.state is TierState.VERIFIED:
        live = stored.manifest.turned(TierState.LIVE, segment.now_ms())
        stored = await segment.nodes.write(segment.number, live, stored.revision)
    return stored.manifest


async def _copy(
    segment: SegmentInTier,
    stored: StoredManifest | None,
    directory: str,
    part_bytes: int,
    put_beside: PutBeside | None,
) -> StoredManifest:
    ledger = await segment.context.client.ledger_metadata(segment.metadata.ledger_id)
    if not ledger.is_closed:
        raise LocalProtocolError(f"ledger {ledger.ledger_id} is not closed")
    token = f"{segment.env.random.getrandbits(64):016x}"
    name = safe_name(segment.context.name)
    location = below(directory, name, _directory_name(segment.number, token))
    begun = Manifest(
        state=TierState.COPYING, token=token, location=location, ledger=ledger,
        since_ms=segment.now_ms(),
    )  # fmt: skip
    before = stored
    stored = await segment.nodes.write(segment.number, begun, before and before.revision)
    if before is not None:
        await in_worker(segment.env, lambda: _delete_directory(before.manifest.location))
    try:
        parts = await _write_parts(segment, begun, part_bytes)
        await verify(segment.env, replace(begun, parts=tuple(parts)))
        if put_beside is not None:
            await put_beside(location)
        verified = begun.verified(parts, segment.now_ms())
        return await segment.nodes.write(segment.number, verified, stored.revision)
    except MetadataVersionConflict:
        await in_worker(segment.env, lambda: _delete_directory(location))
        raise


async def _write_parts(
    segment: SegmentInTier, manifest: Manifest, part_bytes: int
) -> list[OffloadedFile]:
    ledger = manifest.ledger
    facts = PartFacts(
        await read_instance_id(segment.context.store), ledger.ledger_id,
        ledger.digest_type or DigestType.CRC32, digester_of(manifest).size_bytes,
        ledger.ensemble_size, ledger.write_quorum_size, ledger.ack_quorum_size,
        segment.metadata.record_count,
    )  # fmt: skip
    reader = await segment.context.client.open_ledger(
        ledger.ledger_id, password=ledger.password or b"", recover=False
    )
    async with reader:
        batches = reader.read_batches(0, ledger.last_entry_id)
        return await write_parts(
            segment.env, batches, manifest.location, facts, part_bytes, segment.pace
        )


async def delete_copy(segment: SegmentInTier, *, delay_s: float) -> bool:
    """Delete the bookies' copy if the files were live for long enough; tell whether it is gone.

    The files are verified once more before.
    """
    ledgers = LedgerManager(segment.context.store)
    while True:
        # The ledger before the state: a restore changes the state and then the ledger, so that it
        # keeps none in the version that is read here.
        found = None
        with contextlib.suppress(NoSuchLedgerInMetadataError):
            found = await ledgers.read(segment.metadata.ledger_id)
        if not await _turned_deleted(segment, delay_s):
            return False
        if found is None:
            return True
        ledger, version = found
        # Who copied or restored it meanwhile wrote it: then all is looked at again.
        with contextlib.suppress(MetadataVersionConflict):
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                await ledgers.delete(ledger.ledger_id, version, ledger.incarnation)
            return True


async def _turned_deleted(segment: SegmentInTier, delay_s: float) -> bool:
    """Tell whether the state says that only the files count; have it say so if they may."""
    stored = await segment.stored()
    if stored is None:
        return False
    manifest = stored.manifest
    if manifest.state is not TierState.DELETED:
        if not manifest.may_delete(segment.now_ms(), int(delay_s * 1000)):
            return False
        await verify(segment.env, manifest)
        # The state first: who is interrupted between leaves a ledger that goes the next time.
        deleted = manifest.turned(TierState.DELETED, segment.now_ms())
        await segment.nodes.write(segment.number, deleted, stored.revision)
    return True


# Back to bookies -------------------------------------------------------------------------------


async def restore(segment: SegmentInTier) -> int:
    """Make a segment's ledger again from its files, then remove those; return its entries.

    The ledger gets its id, entries, digests and custom metadata back, on bookies that are chosen
    now.  It is closed from the start, so that nobody recovers it to a shorter one, and carries a
    mark by which streams go on reading the files until every bookie gave every entry back as it
    was sent.

    Raises:
        LocalProtocolError: the segment has no whole files.
        MetadataVersionConflict: somebody else is at it.
        NotEnoughBookiesError: too few bookies take writes.
        CorruptRecordsError: a file is damaged.
    """
    stored = await segment.stored()
    if stored is None or not stored.manifest.is_readable:
        raise LocalProtocolError(f"segment {segment.number} has no files to be restored from")
    manifest = stored.manifest.turned(TierState.RESTORING, segment.now_ms())
    stored = await segment.nodes.write(segment.number, manifest, stored.revision)
    entries = await verify(segment.env, manifest)
    ledgers = LedgerManager(segment.context.store)
    while True:
        current, version = await _restored_ledger(segment, ledgers, manifest.ledger)
        if is_restoring(current):
            await _fill(segment, manifest, current)
            current = replace(
                manifest.ledger, fragments=current.fragments, incarnation=current.incarnation
            )
        # Who copied it elsewhere meanwhile wrote the metadata: then all of it is looked at again.
        # One that is whole is written too, so that whoever was about to delete it fails.
        with contextlib.suppress(MetadataVersionConflict, NoSuchLedgerInMetadataError):
            await ledgers.write(current, version)
            break
        # It may have gone with its segment: then this fails.
        stored = await segment.nodes.write(segment.number, manifest, stored.revision)
    await _remove_listed(segment.context, segment.number, stored)
    return entries


async def _restored_ledger(
    segment: SegmentInTier, ledgers: LedgerManager, old: LedgerMetadata
) -> tuple[LedgerMetadata, int]:
    """Return the ledger's metadata: as it is, or made anew with the mark."""
    with contextlib.suppress(NoSuchLedgerInMetadataError):
        return await ledgers.read(old.ledger_id)
    shape = Shape(old.ensemble_size, old.write_quorum_size, old.ack_quorum_size)
    bookies = client_context(segment.context.client).bookies
    ensemble = await bookies.new_ensemble(shape, old.custom_metadata)
    new = replace(
        old,
        fragments=(Fragment(0, ensemble),),
        custom_metadata={**old.custom_metadata, RESTORING_KEY: b"1"},
    )
    try:
        return await ledgers.create(new)
    except LedgerExistsError:
        return await ledgers.read(old.ledger_id)


async def _fill(segment: SegmentInTier, manifest: Manifest, current: LedgerMetadata) -> None:
    """Write every entry to its write set, and read each copy back."""
    context = client_context(segment.context.client)
    key = master_key(current.password or b"")
    async for first, bodies in _bodies(segment.env, manifest):
        await segment.pace(sum(map(len, bodies)) * current.write_quorum_size)
        for send in (_add, _compare):
            await asyncio.gather(
                *(
                    send(context, current, bookie_id, entry_id, body, key)
                    for entry_id, body in enumerate(bodies, first)
                    for bookie_id in _write_set(current, entry_id)
                )
            )


def _write_set(metadata: LedgerMetadata, entry_id: EntryId) -> list[BookieId]:
    ensemble = metadata.fragment_of(entry_id).ensemble
    sizes = metadata.ensemble_size, metadata.write_quorum_size
    return [ensemble[index] for index in write_set(entry_id, *sizes)]


async def _add(
    context: Context,
    metadata: LedgerMetadata,
    bookie_id: BookieId,
    entry_id: EntryId,
    body: bytes,
    key: bytes,
) -> None:
    for attempt in range(_SHED_ATTEMPTS):
        response = await context.bookies.control(bookie_id).request(
            "a copy",
            lambda txn_id: v3.encode_add(
                txn_id, metadata.ledger_id, entry_id, key, body, is_recovery=True
            ),
        )
        if response.status is Status.OK:
            return
        error = error_for(response.status, ledger_id=metadata.ledger_id, bookie_id=bookie_id)
        if not isinstance(error, TooManyRequestsError) or attempt == _SHED_ATTEMPTS - 1:
            raise error
        await asyncio.sleep(_SHED_RETRY_S)


async def _compare(
    context: Context,
    metadata: LedgerMetadata,
    bookie_id: BookieId,
    entry_id: EntryId,
    body: bytes,
    key: bytes,
) -> None:
    del key
    answer = await context.bookies.fast(bookie_id).read(metadata.ledger_id, entry_id)
    if answer.code or answer.entry != body:
        raise DataLossError(
            f"bookie {bookie_id} gives back other bytes of entry {entry_id} than it was sent",
            ledger_id=metadata.ledger_id,
            entry_id=entry_id,
        )


async def _bodies(env: Env, manifest: Manifest) -> AsyncIterator[tuple[EntryId, list[bytes]]]:
    """Yield the whole entries of a segment's files, some at a time, with the first one's id."""
    worker = FileWorker(env)
    try:
        for part in manifest.parts:
            file = await worker.run(partial(PartFile, manifest.path(part)))
            try:
                for group in file.groups:
                    heads, values = await worker.run(partial(file.read_group, group))
                    bodies = [head + value for head, value in zip(heads, values, strict=True)]
                    first = file.first_of(group)
                    largest = max(map(len, bodies))
                    step = max(1, min(_ENTRIES_AT_ONCE, _BYTES_AT_ONCE // largest))
                    for start in range(0, len(bodies), step):
                        yield first + start, bodies[start : start + step]
            finally:
                await worker.run(file.close)
    finally:
        worker.stop()


# Removal ---------------------------------------------------------------------------------------


async def check_reach(context: StreamContext, numbers: Sequence[int]) -> None:
    """See that the files of segments could be removed; nothing is changed.

    Raises:
        FilesUnavailableError: some could not.
    """
    nodes, env = TierNodes(context.nodes), context.store.env
    lists = zip(numbers, await gather_bounded(nodes.read, numbers), strict=True)
    found = [(number, each.manifest) for number, each in lists if each is not None]
    for number, manifest in found:
        with _telling(manifest.location):
            _check_own(manifest, number)
    # In one directory lie the files of many segments.
    for place, was_made in {_above(manifest) for _, manifest in found}:
        with _telling(place):
            await in_worker(env, partial(check_there, place, was_made=was_made))


async def remove(context: StreamContext, number: int, *, forgets: bool = False) -> str:
    """Remove a segment's files, and then their list; nothing if it has none.

    Whoever is interrupted leaves the list, so that no file is ever without a node that names it.

    Args:
        context: The stream's.
        number: The segment's.
        forgets: Forget files that are out of reach, though they may be there.

    Returns:
        Where there may be files that were forgotten; empty: nowhere.

    Raises:
        FilesUnavailableError: the files cannot be removed now.
    """
    stored = await TierNodes(context.nodes).read(number)
    return "" if stored is None else await _remove_listed(context, number, stored, forgets=forgets)


async def _remove_listed(
    context: StreamContext, number: int, stored: StoredManifest, *, forgets: bool = False
) -> str:
    """Remove the files of a list, if it is still as it was read."""
    nodes, env = TierNodes(context.nodes), context.store.env
    manifest = stored.manifest.turned(TierState.REMOVING, env.clock.wall_ms())
    stored = await nodes.write(number, manifest, stored.revision)
    forgotten = ""
    try:
        with _telling(manifest.location):
            _check_own(manifest, number)
            await in_worker(env, partial(_delete_files, manifest))
    except FilesUnavailableError as error:
        if not forgets:
            raise
        forgotten = manifest.location
        _log.warning("segment %d of stream %s: forgotten, though %s", number, context.name, error)
    await nodes.delete(number, stored.revision)
    return forgotten


@contextlib.contextmanager
def _telling(location: str) -> Iterator[None]:
    """Have an error say which files it is about, and what can be done."""
    try:
        yield
    except (FilesUnavailableError, ConfigError) as error:
        raise FilesUnavailableError(
            f"files in {location} cannot be removed: {error}; if nobody can reach them any more, "
            "`quorumbook stream delete` and `stream retention` go on with --forget-files"
        ) from error


def _check_own(manifest: Manifest, number: int) -> None:
    if not bare(manifest.location).endswith(f"/{_directory_name(number, manifest.token)}"):
        raise FilesUnavailableError(f"segment {number} never had files there")


def _directory_name(number: int, token: str) -> str:
    return f"{number:018d}-{token}"


def _delete_files(manifest: Manifest) -> None:
    place, was_made = _above(manifest)
    check_there(place, was_made=was_made)
    _delete_directory(manifest.location)


def _above(manifest: Manifest) -> tuple[str, bool]:
    """Return where the files' directory is, and whether it must be there."""
    # A copy that was interrupted may not have made it yet.
    return above(manifest.location), bool(manifest.parts)


def _delete_directory(location: str) -> None:
    system, path = file_system(location)
    with contextlib.suppress(FileNotFoundError):
        system.delete_dir(path)
