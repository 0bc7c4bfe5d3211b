"""The nodes that list segments' files: read, and changed by compare-and-set."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from quorumbook.errors import MetadataVersionConflict, NodeExistsError, NoSuchNodeError
from quorumbook.metadata.nodes import create_with_parents, with_living_session
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.tier.manifest import Manifest


class StoredManifest(NamedTuple):
    """What was read, and the version of its node."""

    manifest: Manifest
    version: int


class TierNodes:
    """The lists of one stream."""

    def __init__(self, nodes: StreamNodes) -> None:
        """Take the stream's nodes."""
        self._store = nodes.store
        self._paths = nodes.paths

    async def read(self, number: int) -> StoredManifest | None:
        """Return what is known of a segment's files; None if it has none."""
        node = await self._store.exists(self._paths.segment_tier(number))
        return None if node is None else StoredManifest(Manifest.decode(node.data), node.version)

    async def numbers(self) -> list[int]:
        """Return the segments that have files, ascending."""
        try:
            names = await self._store.children(self._paths.tier)
        except NoSuchNodeError:
            return []
        return sorted(int(name) for name in names if name.isdigit())

    async def write(self, number: int, manifest: Manifest, version: int | None) -> StoredManifest:
        """Replace what was read; None: there was nothing.

        Raises:
            MetadataVersionConflict: somebody else was first.
        """
        path, data = self._paths.segment_tier(number), manifest.encode()

        async def write() -> int:
            if version is not None:
                return await self._store.set(path, data, version)
            try:
                await create_with_parents(self._store, path, data)
            except NodeExistsError as error:
                raise MetadataVersionConflict(f"{path} is there already") from error
            return 0

        try:
            return StoredManifest(manifest, await with_living_session(self._store, write))
        except NoSuchNodeError as error:
            raise MetadataVersionConflict(f"{path} is gone") from error

    async def delete(self, number: int, version: int) -> None:
        """Forget a segment's files; nothing if they are forgotten already."""
        path = self._paths.segment_tier(number)
        with contextlib.suppress(NoSuchNodeError):
            await with_living_session(self._store, lambda: self._store.delete(path, version))
