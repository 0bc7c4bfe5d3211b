"""Moving a cluster's metadata to another store, or into a file and out of it.

Everything persistent below the ledgers root moves, byte for byte: ledgers of any layout, cookies,
under-replication, and whatever else lies there; LAYOUT and INSTANCEID; and the id generators, so
that no id is given again.  Ephemeral nodes belong to sessions of the source and stay there;
versions and creation times of nodes begin anew.  Roots may differ, the layout stays what it is.

The source must be quiet: registered bookies, writers and locks are refused, and at the end it is
read once more.  ``is_online`` allows them; what changes meanwhile may then be missing, and ids of
the target leap over those that the source may give.

A target is empty at first.  Until everything in it has been read back, it has neither LAYOUT nor
INSTANCEID and so is no cluster for anybody, and a node ``transfer`` marks it.  What a killed move
leaves behind is taken away by the next one, which begins again; a move that fails takes it away
itself.  ``transfer-lock``, ephemeral, keeps two moves apart, and since every write is bound to the
session that holds it, a move that was paused for too long writes nothing more.

Nodes are read in windows and written in batches: memory is that of the widest node's names.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from quorumbook.env import patience
from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataMoveError,
    NodeExistsError,
    NoSuchNodeError,
    QuorumbookError,
)
from quorumbook.metadata.cluster import Layout, not_initialized, read_layout
from quorumbook.metadata.dump import DumpedNode, DumpHeader, DumpTarget, DumpWriter
from quorumbook.metadata.ids import IdCounters, raise_id_counters, read_id_counters
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import READ_ONLY_NAME, TreePaths, is_kept_apart
from quorumbook.metadata.store import Create, Delete, MetadataStore, Node, Operation, Set, split
from quorumbook.metadata.uri import named_layout

#: Takes what is being done and how much of it was done since the last call.
Report: TypeAlias = Callable[[str, int], None]

_WINDOW = 64
#: The peer's store takes a request of 1 MB, but keeps its last 500 requests in memory.
_BATCH_OPERATIONS = 100
_BATCH_BYTES = 100_000
_LEDGER_NAME = re.compile(r"L\d{4,}")


def _silent(_stage: str, _done: int) -> None:
    pass


@dataclass(slots=True)
class Summary:
    """What a move carried, and its digest."""

    nodes: int = 0
    ledgers: int = 0
    _sha256: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, record: DumpedNode) -> None:
        """Count one node."""
        path = record.path.encode()
        self._sha256.update(b"%d %d\n" % (len(path), len(record.data)) + path)
        self._sha256.update(record.data)
        self.nodes += 1
        self.ledgers += _LEDGER_NAME.fullmatch(record.path.rpartition("/")[2]) is not None

    def is_same(self, other: Summary) -> bool:
        """Tell whether both saw the same nodes with the same data."""
        return self._sha256.digest() == other._sha256.digest()


class TransferSource(Protocol):
    """Where a move begins; ``dump.DumpReader`` is one, ``ClusterReader`` the other."""

    @property
    def header(self) -> DumpHeader:
        """What the cluster is."""
        ...

    def records(self) -> AsyncIterator[DumpedNode]:
        """Yield all nodes, every parent first, siblings sorted."""
        ...

    async def finish(self) -> IdCounters:
        """After ``records``: return how far the id generators had come."""
        ...


class ClusterReader:
    """A cluster in a store, as the source of a move."""

    def __init__(self, store: MetadataStore, header: DumpHeader, report: Report) -> None:
        self.header = header
        self._store = store
        self._report = report
        self._summary = Summary()

    @classmethod
    async def open(
        cls, store: MetadataStore, *, is_online: bool = False, report: Report = _silent
    ) -> ClusterReader:
        """Look what the cluster is, and whether anybody is registered there.

        Raises:
            ClusterNotInitializedError: there is no cluster.
            MetadataMoveError: it is in use, and ``is_online`` was not said.
        """
        paths = TreePaths(store.ledgers_root)
        try:
            await read_layout(store)  # one without LAYOUT gets it
            layout = (await store.get(paths.layout)).data
            instance_id = (await store.get(paths.instance_id)).data
        except NoSuchNodeError as error:
            raise not_initialized(store) from error
        Layout.decode(layout)
        if not is_online:
            await _refuse_bookies(store, paths)
        return cls(store, DumpHeader(layout, instance_id, is_online), report)

    async def records(self) -> AsyncIterator[DumpedNode]:
        """Yield all nodes."""
        self._summary = Summary()
        async for record in _walk(self._store, is_online=self.header.is_online):
            self._summary.add(record)
            yield record

    async def finish(self) -> IdCounters:
        """Return how far the id generators have come; a source that was to be quiet must be so.

        Raises:
            MetadataMoveError: it changed since ``records`` began.
        """
        counters = await read_id_counters(self._store)
        if self.header.is_online:
            return counters
        again = Summary()
        async for record in _walk(self._store, is_online=False):
            again.add(record)
            self._report("checking the source", 1)
        if not again.is_same(self._summary) or counters != await read_id_counters(self._store):
            raise _in_use(self._store, "it was changed")
        return counters


async def copy_metadata(
    source: MetadataStore,
    target: MetadataStore,
    *,
    is_online: bool = False,
    report: Report = _silent,
) -> Summary:
    """Copy a cluster's metadata into an empty store.

    Raises:
        ClusterNotInitializedError: the source holds no cluster.
        MetadataMoveError: the source is in use, or the target not empty.
    """
    reader = await ClusterReader.open(source, is_online=is_online, report=report)
    return await restore_metadata(reader, target, report=report)


async def dump_metadata(
    source: MetadataStore, file: DumpTarget, *, is_online: bool = False, report: Report = _silent
) -> Summary:
    """Write a cluster's metadata to a file.

    Raises:
        ClusterNotInitializedError: the source holds no cluster.
        MetadataMoveError: the source is in use.
    """
    reader = await ClusterReader.open(source, is_online=is_online, report=report)
    writer = DumpWriter(file, reader.header)
    summary = Summary()
    async for record in reader.records():
        writer.add(record)
        summary.add(record)
        report("reading", 1)
    counters = await reader.finish()
    # A dump that could not be restored is no use to anybody.
    counters.steps(Layout.decode(reader.header.layout).kind, leap=is_online)
    writer.end(counters)
    return summary


async def restore_metadata(
    source: TransferSource, target: MetadataStore, *, leap: bool = False, report: Report = _silent
) -> Summary:
    """Fill an empty store.

    Args:
        source: a checked dump, or a cluster.
        target: the store.
        leap: the cluster went on after the dump was made: ids must be beyond those it gave since.
        report: hears of progress.

    Raises:
        MetadataMoveError: the target is not empty, or another move into it is under way.
    """
    leap = leap or source.header.is_online
    kind = Layout.decode(source.header.layout).kind
    wanted = named_layout(target.uri)
    if wanted not in (None, kind):
        raise MetadataMoveError(
            f"{target.uri} names another layout than the source has, which is {kind.value}; a move "
            "keeps the layout"
        )
    await _claim(target)
    try:
        summary = await _write(source.records(), target, report)
        counters = await source.finish()
        found = Summary()
        async for record in _walk(target, is_online=False):
            found.add(record)
            report("reading back", 1)
        if not found.is_same(summary):
            raise MetadataMoveError(f"{target.uri} does not hold what was written to it")
        await raise_id_counters(
            target, kind, counters, leap=leap, report=lambda done: report("raising ids", done)
        )
        await _open_for_all(target, source.header)
    except Exception:
        with contextlib.suppress(QuorumbookError):
            await _give_up(target)
        raise
    return summary


async def _write(
    records: AsyncIterator[DumpedNode], target: MetadataStore, report: Report
) -> Summary:
    root = target.ledgers_root
    summary = Summary()
    batch: list[Create | Set] = []
    size = 0

    async def flush() -> None:
        await target.multi(batch)
        report("writing", len(batch))
        batch.clear()

    async for record in records:
        summary.add(record)
        if len(batch) >= min(_BATCH_OPERATIONS, target.multi_limit) or (
            batch and size + len(record.data) > _BATCH_BYTES
        ):
            await flush()
            size = 0
        size += len(record.data) + len(record.path)
        if record.path:
            batch.append(Create(f"{root}/{record.path}", record.data))
        else:
            batch.append(Set(root, record.data))
    await flush()
    return summary


async def _open_for_all(target: MetadataStore, header: DumpHeader) -> None:
    """Make the target a cluster, in one step."""
    paths = TreePaths(target.ledgers_root)
    operations: list[Operation] = [
        Create(paths.instance_id, header.instance_id),
        Create(paths.layout, header.layout),
        Delete(paths.transfer),
        Delete(paths.transfer_lock),
    ]
    try:
        await target.multi(operations)
    except MetadataFateUnknownError:
        # Nobody else takes the mark away while the lock is ours.
        if await target.exists(paths.transfer) is not None:
            raise


async def _claim(target: MetadataStore) -> None:
    """Make sure that the target is empty and this move's own."""
    paths = TreePaths(target.ledgers_root)
    if await target.exists(paths.root) is None:
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(target, paths.root)
    names = await target.children(paths.root)
    _, transfer = split(paths.transfer)
    if names and transfer not in names:
        raise MetadataMoveError(
            f"{target.uri} is not empty: there is {paths.root}/{names[0]}; name an empty store"
        )
    if not names:
        with contextlib.suppress(NodeExistsError):
            await target.multi(
                [Create(paths.transfer), Create(paths.transfer_lock, ephemeral=True)]
            )
            return
    await _take_lock(target, paths.transfer_lock)
    # It may have ended well just before its lock was ours.
    if await target.exists(paths.transfer) is None:
        await target.delete(paths.transfer_lock)
        raise MetadataMoveError(f"{target.uri} was just filled by another move")
    await _clear(target)


async def _take_lock(target: MetadataStore, path: str) -> None:
    """Take the lock, after its lease if whoever held it was killed."""
    with contextlib.suppress(TimeoutError):
        async with patience.timeout(target.session_timeout_s * 1.5):
            while True:
                with contextlib.suppress(NodeExistsError, NoSuchNodeError):
                    await target.create(path, ephemeral=True)
                    return
                gone = asyncio.Event()
                try:
                    if await target.exists(path, gone.set) is not None:
                        await gone.wait()
                finally:
                    target.unwatch(gone.set)
    raise MetadataMoveError(f"another move of metadata into {target.uri} is under way")


async def _give_up(target: MetadataStore) -> None:
    """Take everything away, unless the target is no longer this move's own."""
    paths = TreePaths(target.ledgers_root)
    lock = await target.exists(paths.transfer_lock)
    if lock is not None and lock.owner == target.session_id:
        await _clear(target)
        await target.multi([Delete(paths.transfer), Delete(paths.transfer_lock)])


async def _clear(target: MetadataStore) -> None:
    """Take away what a move has written, but not what says that there was one."""
    paths = TreePaths(target.ledgers_root)
    await _delete_below(target, paths.root, {paths.transfer, paths.transfer_lock})
    await target.set(paths.root, b"")


async def _delete_below(store: MetadataStore, parent: str, kept: Iterable[str] = ()) -> None:
    names = await store.children(parent)
    limit = min(_BATCH_OPERATIONS, store.multi_limit)
    for start in range(0, len(names), limit):
        paths = [f"{parent}/{name}" for name in names[start : start + limit]]
        paths = [path for path in paths if path not in kept]
        for path, node in zip(paths, await _get_all(store, paths), strict=True):
            if node is not None and node.children_count:
                await _delete_below(store, path)
        try:
            await store.multi([Delete(path) for path in paths])
        except MetadataFateUnknownError:
            await _delete_below(store, parent, kept)
            return


async def _walk(store: MetadataStore, *, is_online: bool) -> AsyncIterator[DumpedNode]:
    """Yield the persistent nodes below the root, and the root itself first."""
    root = await store.exists(store.ledgers_root)
    if root is None:
        raise not_initialized(store)
    yield DumpedNode("", root.data, root.ctime_ms)
    async for record in _below(store, "", is_online=is_online):
        yield record


async def _below(
    store: MetadataStore, parent: str, *, is_online: bool
) -> AsyncIterator[DumpedNode]:
    try:
        names = await store.children(f"{store.ledgers_root}{parent and '/'}{parent}")
    except NoSuchNodeError:
        if not is_online:
            raise _in_use(store, f"{parent} was deleted") from None
        return
    paths = [f"{parent}{parent and '/'}{name}" for name in names]
    if not parent:
        paths = [path for path in paths if not is_kept_apart(path)]
    for start in range(0, len(paths), _WINDOW):
        window = paths[start : start + _WINDOW]
        nodes = await _get_all(store, [f"{store.ledgers_root}/{path}" for path in window])
        for path, node in zip(window, nodes, strict=True):
            if node is None or node.is_ephemeral:
                if not is_online:
                    raise _in_use(store, f"{path} is {'held' if node else 'deleted'} by somebody")
                continue
            yield DumpedNode(path, node.data, node.ctime_ms)
            if node.children_count:
                async for record in _below(store, path, is_online=is_online):
                    yield record


async def _get_all(store: MetadataStore, paths: list[str]) -> list[Node | None]:
    return list(await asyncio.gather(*(store.exists(path) for path in paths)))


async def _refuse_bookies(store: MetadataStore, paths: TreePaths) -> None:
    for parent in (paths.available, paths.read_only):
        with contextlib.suppress(NoSuchNodeError):
            for name in await store.children(parent):
                if name != READ_ONLY_NAME:
                    raise _in_use(store, f"bookie {name} is registered")


def _in_use(store: MetadataStore, why: str) -> MetadataMoveError:
    return MetadataMoveError(
        f"{store.uri} is in use: {why}; stop its bookies and writers, or say --online and miss "
        "what changes meanwhile"
    )
