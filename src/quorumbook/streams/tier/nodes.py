"""The nodes that list segments' files: read, and changed by compare-and-set."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from quorumbook.errors import (
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.nodes import make_below, with_living_session
from quorumbook.metadata.store import Create, Operation, Revision, Set
from quorumbook.streams.format.names import segment_number
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.metadata.segment_nodes import decoded_segment
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.manifest import Manifest


class StoredManifest(NamedTuple):
    """What was read, and the revision of its node."""

    manifest: Manifest
    revision: Revision


class TierNodes:
    """The lists of one stream."""

    def __init__(self, nodes: StreamNodes) -> None:
        """Take the stream's nodes."""
        self._store = nodes.store
        self._paths = nodes.paths

    async def read(self, number: int) -> StoredManifest | None:
        """Return what is known of a segment's files; None if it has none."""
        node = await self._store.exists(self._paths.segment_tier(number))
        if node is None:
            return None
        return StoredManifest(Manifest.decode(node.data), node.revision)

    async def numbers(self) -> list[int]:
        """Return the segments that have files, ascending."""
        try:
            names = await self._store.children(self._paths.tier)
        except NoSuchNodeError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    async def write(
        self, number: int, manifest: Manifest, revision: Revision | None
    ) -> StoredManifest:
        """Replace what was read; None: there was nothing.

        A list begins together with a change of its segment's node, so that whoever is about to give
        the segment another number, which would leave its list behind, does not.

        Raises:
            MetadataVersionConflict: somebody else was first, or the segment is another one by now.
        """
        path, data = self._paths.segment_tier(number), manifest.encode()

        async def write() -> Revision:
            if revision is not None:
                await self._store.set(path, data, *revision)
                return revision.next
            await make_below(self._store, self._paths.tier)
            touched = await self._touched(number, manifest.ledger_id)
            try:
                await self._store.multi([*touched, Create(path, data)])
            except NodeExistsError as error:
                raise MetadataVersionConflict(f"{path} is there already") from error
            return (await self._store.get(path)).revision

        try:
            return StoredManifest(manifest, await with_living_session(self._store, write))
        except NoSuchNodeError as error:
            raise MetadataVersionConflict(f"{path}, or its segment, is gone") from error

    async def _touched(self, number: int, ledger_id: LedgerId) -> list[Operation]:
        """Return what writes a segment's node as it is, if it still has this ledger."""
        path = self._paths.segment(number, is_in_progress=False)
        node = await self._store.exists(path)
        if node is not None and decoded_segment(node.data, path).ledger_id == ledger_id:
            return [Set(path, node.data, *node.revision)]
        names = await self._store.children(self._paths.segments)
        if node is None and any(segment_number(name) in (None, number) for name in names):
            return []  # old writers named nodes otherwise: nobody gives such a segment a number
        raise MetadataVersionConflict(f"segment {number} is another one than it was: try again")

    async def delete(self, number: int, revision: Revision) -> None:
        """Forget a segment's files; nothing if they are forgotten already."""
        path = self._paths.segment_tier(number)
        with contextlib.suppress(NoSuchNodeError):
            await with_living_session(self._store, lambda: self._store.delete(path, *revision))


async def ledger_of(context: StreamContext, segment: SegmentMetadata) -> LedgerMetadata:
    """Return the metadata of a segment's ledger, as it was if only the segment's files are left.

    Raises:
        NoSuchLedgerInMetadataError: neither is left.
    """
    try:
        return await context.client.ledger_metadata(segment.ledger_id)
    except NoSuchLedgerInMetadataError:
        stored = await TierNodes(context.nodes).read(segment.number)
        if stored is None or stored.manifest.ledger_id != segment.ledger_id:
            raise
        return stored.manifest.ledger
