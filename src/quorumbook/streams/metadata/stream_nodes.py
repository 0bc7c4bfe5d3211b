"""A stream's nodes in the metadata store: every change of them in one place.

``format.names`` says where they lie, ``segment_nodes`` reads those of segments.  The node
``ledgers`` is the arbiter among writers: whoever starts or completes a segment sets it by version,
in the same step.  Truncation changes segments only: a completed one is deleted and created again,
as the peer does, so that watches on the list fire; one in progress is set by version, so that its
writer notices when it completes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from quorumbook.errors import (
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.nodes import (
    change_once,
    create_with_parents,
    delete_tree,
    make_below,
    with_living_session,
)
from quorumbook.metadata.store import Check, Create, Delete, Operation, Revision, Set
from quorumbook.streams.errors import CorruptRecordsError, StreamExistsError
from quorumbook.streams.format.names import LAYOUT_VERSION_DATA
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.metadata.segment_nodes import LIST_ATTEMPTS, SegmentNodes, decoded_segment

#: Versions of a segment's node that truncation tells apart.
_VERSIONS = 4


@dataclass(frozen=True, slots=True)
class StreamState:
    """The nodes that a writer changes by version."""

    #: The highest segment number ever used.
    max_segment: int
    max_segment_version: int
    max_txid: int
    max_txid_version: int
    #: A ledger made ahead for the next segment.
    allocated: LedgerId | None
    allocation_version: int
    #: Which nodes these are: a stream may be deleted, and made again under its old writer.
    segments_creation_id: int
    max_txid_creation_id: int
    allocation_creation_id: int


class StreamNodes(SegmentNodes):
    """The nodes of one stream."""

    # The stream itself ---------------------------------------------------------------------

    async def create(self, data: bytes) -> None:
        """Create the stream, with all its nodes in one step.

        Raises:
            StreamExistsError: there is one of this name.
        """
        paths = self.paths
        parent = paths.stream.rpartition("/")[0]
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self.store, parent)
        nodes = [
            Create(paths.root),
            Create(paths.max_txid, b"0"),
            Create(paths.version, LAYOUT_VERSION_DATA),
            Create(paths.lock),
            Create(paths.read_lock),
            Create(paths.segments, b"0"),
            Create(paths.allocation),
        ]
        # The peer deletes node by node: one that died then has left some of them.
        there = await asyncio.gather(*(self.store.exists(each.path) for each in nodes))
        if None in there:
            nodes = [each for each, found in zip(nodes, there, strict=True) if found is None]
        node = await self.store.exists(paths.stream)
        if node is None:
            # It may be the parent of nested streams, or hold what an application put there.
            top: Create | Set = Create(paths.stream, data)
        else:
            top = Set(paths.stream, data or node.data, *node.revision)

        async def was_created() -> bool:
            # Whoever made it: as it was to be, nobody has written into it yet.
            node = await self.store.exists(paths.stream)
            return node is not None and node.data == top.data and await self.exists()

        try:
            await self.change([top, *nodes], was_created, "creating a stream")
        except (NodeExistsError, MetadataVersionConflict) as error:
            raise StreamExistsError(f"stream {paths.name} exists already") from error

    async def delete(self) -> None:
        """Delete all nodes; those without which it is no stream go last, in one step.

        Whoever is interrupted before that leaves a stream, which can be deleted again.
        """
        paths, store = self.paths, self.store
        last = [paths.max_txid, paths.version, paths.lock, paths.read_lock, paths.segments]
        last.append(paths.allocation)

        async def was_deleted() -> bool:
            return await store.exists(paths.root) is None

        for _ in range(LIST_ATTEMPTS):
            for name in await store.children(paths.root):
                path = f"{paths.root}/{name}"
                await delete_tree(store, path, keeps_top=path in last)
            try:
                operations = [Delete(path) for path in (*last, paths.root)]
                await self.change(operations, was_deleted, "deleting a stream")
            except NodeNotEmptyError:
                continue  # somebody waits for its lock
            return
        raise MetadataUnavailableError(
            f"stream {paths.name} was not deleted: other processes keep using it"
        )

    async def exists(self) -> bool:
        """Tell whether the stream exists."""
        return await self.store.exists(self.paths.segments) is not None

    async def read_state(self) -> StreamState:
        """Return what a writer sets by version.

        Raises:
            StreamNotFoundError: there is no such stream.
            CorruptRecordsError: a node is damaged, or of another layout.
        """
        paths = self.paths
        try:
            segments, max_txid, allocation, version = await asyncio.gather(
                *map(
                    self.store.get,
                    (paths.segments, paths.max_txid, paths.allocation, paths.version),
                )
            )
        except NoSuchNodeError as error:
            raise self.not_found() from error
        if version.data != LAYOUT_VERSION_DATA:
            raise CorruptRecordsError(
                f"stream {paths.name} has layout version {version.data.hex()}, not "
                f"{LAYOUT_VERSION_DATA.hex()}"
            )
        return StreamState(
            _number(segments.data, paths.segments),
            segments.version,
            _number(max_txid.data, paths.max_txid),
            max_txid.version,
            _number(allocation.data, paths.allocation) if allocation.data else None,
            allocation.version,
            segments.creation_id,
            max_txid.creation_id,
            allocation.creation_id,
        )

    async def read_data(self) -> tuple[bytes, Revision]:
        """Return the data of the stream's own node, which hold its policy, and their revision."""
        try:
            node = await self.store.get(self.paths.stream)
        except NoSuchNodeError as error:
            raise self.not_found() from error
        return node.data, node.revision

    async def max_txid(self) -> int:
        """Return the largest transaction id of completed segments; END_TXID of a sealed stream."""
        try:
            node = await self.store.get(self.paths.max_txid)
        except NoSuchNodeError as error:
            raise self.not_found() from error
        return _number(node.data, self.paths.max_txid)

    # What writers change -------------------------------------------------------------------

    async def set_allocation(self, ledger_id: LedgerId | None, state: StreamState) -> int:
        """Name the ledger that the next segment will have; return the node's new version.

        Raises:
            MetadataVersionConflict: another writer is at work.
        """
        data = b"" if ledger_id is None else str(ledger_id).encode()
        path, version = self.paths.allocation, state.allocation_version

        async def was_set() -> bool:
            node = await self.store.get(path)
            return (node.data, node.version) == (data, version + 1)

        operation = Set(path, data, version, state.allocation_creation_id)
        await self.change([operation], was_set, "allocating a ledger")
        return version + 1

    async def fence_allocation(self, state: StreamState) -> StreamState:
        """Have the last writer, which may not know that it is, allocate and start no more.

        It sets by version what is changed here.  The version that this makes is the next writer's
        epoch: no two writers have the same, and the later one has the greater.

        Raises:
            MetadataVersionConflict: it, or somebody else, was faster; after a lost answer it may
                have been this very change, for nothing in the node tells who made it.
        """
        operation, fenced = self.fence(state)

        async def was_set() -> bool:
            return False

        await self.change([operation], was_set, "shutting the last writer out")
        return fenced

    def fence(self, state: StreamState) -> tuple[Set, StreamState]:
        """Return the change that ``fence_allocation`` makes, and the state as that leaves it."""
        version = state.allocation_version
        data = b"" if state.allocated is None else str(state.allocated).encode()
        operation = Set(self.paths.allocation, data, version, state.allocation_creation_id)
        return operation, replace(state, allocation_version=version + 1)

    async def start_segment(self, segment: SegmentMetadata, state: StreamState) -> None:
        """Record a new segment, whose ledger is the allocated one.

        Raises:
            MetadataVersionConflict: another writer is at work.
        """
        path = self.paths.segment(segment.number, is_in_progress=True)
        data = segment.encode().encode()

        async def was_started() -> bool:
            node = await self.store.exists(path)
            return node is not None and node.data == data

        await self.change(
            [
                Set(
                    self.paths.allocation,
                    b"",
                    state.allocation_version,
                    state.allocation_creation_id,
                ),
                Create(path, data),
                Set(
                    self.paths.segments,
                    str(max(segment.number, state.max_segment)).encode(),
                    state.max_segment_version,
                    state.segments_creation_id,
                ),
            ],
            was_started,
            f"starting segment {segment.number}",
        )

    async def complete_segment(
        self, segment: SegmentMetadata, revision: Revision, state: StreamState
    ) -> None:
        """Put a completed segment in the place of the one in progress.

        Args:
            segment: What it is now.
            revision: Of the node of the segment in progress.
            state: Of the stream.

        Raises:
            MetadataVersionConflict: another writer is at work, or it was truncated meanwhile.
        """
        path = self.paths.segment(segment.number, is_in_progress=False)
        data = segment.encode().encode()

        async def was_completed() -> bool:
            return await self.is_completed_as(segment)

        await self.change(
            [
                Create(path, data),
                Delete(self.paths.segment(segment.number, is_in_progress=True), *revision),
                Set(
                    self.paths.segments,
                    str(max(segment.number, state.max_segment)).encode(),
                    state.max_segment_version,
                    state.segments_creation_id,
                ),
                Set(
                    self.paths.max_txid,
                    str(max(segment.last_txid, state.max_txid)).encode(),
                    state.max_txid_version,
                    state.max_txid_creation_id,
                ),
            ],
            was_completed,
            f"completing segment {segment.number}",
        )

    async def is_completed_as(self, segment: SegmentMetadata) -> bool:
        """Tell whether a segment is completed just so, however it was truncated since."""
        found = await self.segment(segment.number, is_in_progress=False)
        return found is not None and segment.truncated_as(found[0]) == found[0]

    async def drop_empty_segment(self, number: int, revision: Revision, state: StreamState) -> None:
        """Forget a segment in progress in which nothing was ever stored; its number is free."""
        path = self.paths.segment(number, is_in_progress=True)

        async def was_dropped() -> bool:
            # Another writer that takes over sets the allocation before it drops anything.
            node = await self.store.exists(self.paths.allocation)
            is_ours = node is not None and node.version == state.allocation_version
            return is_ours and await self.store.exists(path) is None

        data = str(state.max_segment).encode()
        segments = Set(
            self.paths.segments, data, state.max_segment_version, state.segments_creation_id
        )
        await self.change(
            [Delete(path, *revision), segments],
            was_dropped,
            f"dropping empty segment {number}",
        )

    # What truncation changes ---------------------------------------------------------------

    async def prepare_cursors(self) -> None:
        """Make the node that cursors are below, if the stream has none yet.

        Raises:
            StreamNotFoundError: there is no such stream (any more).
        """
        try:
            await make_below(self.store, self.paths.subscribers)
        except NoSuchNodeError as error:
            raise self.not_found() from error

    def news_for_retention(self) -> Operation:
        """Return what goes with a cursor that keeps more from now on than it did."""
        return Set(self.paths.subscribers, b"")

    async def keep_as_now(self) -> tuple[Check, Check]:
        """Return what demands that no cursor keeps more than now, nor the stream's own policy."""
        _, policy = await self.read_data()
        above = await self.store.exists(self.paths.subscribers)
        if above is None:
            await self.prepare_cursors()
            above = await self.store.get(self.paths.subscribers)
        return Check(self.paths.stream, *policy), Check(self.paths.subscribers, *above.revision)

    async def replace_segment(
        self, old: SegmentMetadata, new: SegmentMetadata, *demands: Check
    ) -> bool:
        """Write other metadata of a segment; False if it, or what is demanded, has changed."""
        path = self.paths.segment(old.number, is_in_progress=old.is_in_progress)
        data = new.encode().encode()

        async def was_replaced() -> bool:
            node = await self.store.exists(path)
            return node is not None and node.data == data

        try:
            node = await self.store.get(path)
            if node.data != old.encode().encode():
                return False
            operations: list[Operation] = [Set(path, data, *node.revision)]
            if not old.is_in_progress:
                operations = [Delete(path, *node.revision), Create(path, data)]
                # A new node begins at version 0: who read the old one must not take it for that.
                operations += [Set(path, data)] * (node.version % _VERSIONS + 1)
            await self.change(
                [*demands, *operations], was_replaced, f"truncating segment {old.number}"
            )
        except (NoSuchNodeError, MetadataVersionConflict):
            return False
        return True

    async def truncations(self) -> list[Operation]:
        """Return what truncates all completed segments away, if they are as they are now."""
        operations: list[Operation] = []
        for segment in await self.segments():
            if segment.is_in_progress or segment.truncation is Truncation.TRUNCATED:
                continue
            found = await self.segment(segment.number, is_in_progress=False)
            if found is None:
                raise MetadataVersionConflict(f"segment {segment.number} has changed")
            path = self.paths.segment(segment.number, is_in_progress=False)
            operations.append(Set(path, found[0].truncated(None).encode().encode(), *found[1]))
        return operations

    async def delete_segment(self, segment: SegmentMetadata) -> None:
        """Forget a completed segment whose ledger is deleted; another of its number stays."""
        path = self.paths.segment(segment.number, is_in_progress=segment.is_in_progress)
        with contextlib.suppress(NoSuchNodeError, MetadataVersionConflict):
            node = await self.store.get(path)
            if decoded_segment(node.data, path).ledger_id == segment.ledger_id:
                delete = partial(self.store.delete, path, *node.revision)
                await with_living_session(self.store, delete)

    # Inside --------------------------------------------------------------------------------

    async def change(
        self,
        operations: Sequence[Operation],
        was_done: Callable[[], Awaitable[bool]],
        what: str,
    ) -> None:
        """Carry operations out in one step, once; see ``change_once``."""
        await change_once(self.store, operations, was_done, f"stream {self.paths.name}: {what}")


def _number(data: bytes, path: str) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise CorruptRecordsError(f"metadata node {path} holds {data!r}, no number") from error
