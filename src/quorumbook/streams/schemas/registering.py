"""Reads and sets the schemas of a stream in the metadata store.

The node ``schemas`` lies beside what Apache DistributedLog knows, which reads its own nodes by
name.  A new version is created together with the list that counts it, in one step: of several who
set one at a time, one does, and the others look again.  A partition has the schema of its whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

from quorumbook.errors import (
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import change_once
from quorumbook.metadata.store import Create, MetadataStore, Operation, Revision, Set
from quorumbook.streams.errors import CorruptRecordsError, SchemaConflictError, SchemaNotFoundError
from quorumbook.streams.format.schemas import (
    MAX_VERSIONS,
    Compatibility,
    Schema,
    SchemaList,
    StreamSchemas,
    version_name,
)
from quorumbook.streams.schemas.compatibility import check_follows
from quorumbook.streams.stream_context import StreamContext

#: Others may set versions as often as we do; nobody is that unlucky.
_ATTEMPTS = 32


@dataclass(frozen=True, slots=True)
class SchemaNodes:
    """Where the schemas of one stream are."""

    store: MetadataStore
    #: What the stream is called in messages.
    stream: str
    #: The node above the versions.
    path: str

    async def read(self) -> StreamSchemas:
        """Return all versions.

        Raises:
            SchemaNotFoundError: there is none.
        """
        found = await self._read()
        if found is None:
            raise SchemaNotFoundError(_no_schema(self.stream))
        return found[0]

    async def set(
        self,
        schema: Schema | None,
        compatibility: Compatibility | None,
        expected: int | None,
    ) -> StreamSchemas:
        """Add a version, change the rule, or both; see ``Stream.set_schema``."""
        tried: StreamSchemas | None = None
        for _ in range(_ATTEMPTS):
            found = await self._read()
            schemas = None if found is None else found[0]
            if tried and schemas and schemas.versions[: tried.last] == tried.versions:
                # Nobody heard of it, and others followed; or somebody set the same one before us.
                if compatibility in (None, schemas.compatibility):
                    return tried
                schema = expected = None
            last = 0 if schemas is None else schemas.last
            if expected is not None and expected != last:
                raise SchemaConflictError(
                    f"the schema of stream {self.stream} is at version {last}, not {expected}; "
                    "read it again"
                )
            changed = self._changed(schemas, schema, compatibility)
            if changed == schemas:
                return changed
            tried = changed if changed.last > last else None
            operations = self._operations(found and found[1], last, changed)
            with contextlib.suppress(NodeExistsError, MetadataVersionConflict):
                what = f"setting the schema of stream {self.stream}"
                await change_once(self.store, operations, partial(self._is, changed), what)
                return changed
        raise SchemaConflictError(f"others keep changing the schema of stream {self.stream}")

    def _changed(
        self,
        schemas: StreamSchemas | None,
        schema: Schema | None,
        compatibility: Compatibility | None,
    ) -> StreamSchemas:
        if schemas is None:
            if schema is None:
                raise SchemaNotFoundError(_no_schema(self.stream))
            schemas = StreamSchemas(self.stream, Compatibility.BACKWARD, ())
        rule = schemas.compatibility if compatibility is None else compatibility
        versions = schemas.versions
        if schema is not None and versions[-1:] != (schema,):  # else it is set already
            if len(versions) == MAX_VERSIONS:
                raise SchemaConflictError(
                    f"the schema of stream {self.stream} has {MAX_VERSIONS} versions, the most"
                )
            check_follows(self.stream, schema, versions, rule)
            versions = (*versions, schema)
        return StreamSchemas(self.stream, rule, versions)

    def _operations(
        self, revision: Revision | None, last: int, changed: StreamSchemas
    ) -> list[Operation]:
        data = SchemaList(changed.compatibility, changed.last).encode()
        operations: list[Operation] = [
            Create(self.path, data) if revision is None else Set(self.path, data, *revision)
        ]
        if changed.last > last:
            operations.append(Create(self._node(changed.last), changed.of().encode()))
        return operations

    async def _is(self, changed: StreamSchemas) -> bool:
        # Whoever set it so: a version never changes, and a rule is as it was asked for.
        found = await self._read()
        return found is not None and found[0] == changed

    def _node(self, number: int) -> str:
        return f"{self.path}/{version_name(number)}"

    async def _read(self) -> tuple[StreamSchemas, Revision] | None:
        node = await self.store.exists(self.path)
        if node is None:
            return None
        listed = SchemaList.decode(node.data, self.path)
        names = [self._node(number + 1) for number in range(listed.last)]
        try:
            nodes = await asyncio.gather(*map(self.store.get, names))
        except NoSuchNodeError as error:
            raise CorruptRecordsError(
                f"the schema of stream {self.stream} lacks a version that {self.path} counts: "
                f"{error}"
            ) from error
        versions = [Schema.decode(each.data, name) for name, each in zip(names, nodes, strict=True)]
        return StreamSchemas(self.stream, listed.compatibility, tuple(versions)), node.revision


async def schema_nodes(context: StreamContext) -> SchemaNodes:
    """Return where a stream's schemas are; of a partition, those of the whole.

    Raises:
        StreamNotFoundError: there is no such stream.
    """
    await context.nodes.max_txid()  # says so
    whole = context.nodes.paths.whole()
    if whole is not None and await context.store.exists(whole.partitions) is not None:
        return SchemaNodes(context.store, whole.name, whole.partitioned_schemas)
    return SchemaNodes(context.store, context.name, context.nodes.paths.schemas)


def _no_schema(stream: str) -> str:
    return f"stream {stream} has no schema; set one: quorumbook stream schema set {stream} FILE"
