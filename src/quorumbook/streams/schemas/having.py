"""What has a schema: the methods that streams and partitioned streams share."""

from __future__ import annotations

from quorumbook.streams.format.schemas import Compatibility, Schema, StreamSchemas
from quorumbook.streams.schemas.decoder import Decoder
from quorumbook.streams.schemas.registering import SchemaNodes
from quorumbook.streams.stream_context import StreamContext


class HasSchemas:
    """What has records that may have a schema; needs the extra ``[schema]``."""

    async def _schema_nodes(self) -> tuple[StreamContext, SchemaNodes]:
        """Return where the schemas are."""
        raise NotImplementedError

    async def schemas(self) -> StreamSchemas:
        """Return all versions of the schema, and the rule that a new one keeps to.

        Raises:
            SchemaNotFoundError: it has none.
            StreamNotFoundError: there is no such stream.
        """
        _, nodes = await self._schema_nodes()
        return await nodes.read()

    async def schema(self, version: int | None = None) -> Schema:
        """Return one version of the schema; None: the last.

        Raises:
            SchemaNotFoundError: it has none, or no such version.
            StreamNotFoundError: there is no such stream.
        """
        return (await self.schemas()).of(version)

    async def set_schema(
        self,
        schema: Schema | None = None,
        *,
        compatibility: Compatibility | None = None,
        expected: int | None = None,
    ) -> StreamSchemas:
        """Add a version to the schema, change the rule that new versions keep to, or both.

        A version that is the last one already is not added again, so a call may be repeated.

        Args:
            schema: The new version; it is compared with all versions before it, since a stream is
                read from its beginning.  None: the versions stay as they are.
            compatibility: The rule from now on, for ``schema``, too; None: as it is, and
                ``BACKWARD`` at first.
            expected: The number of the last version, 0 if there is none; None: whichever.

        Returns:
            The schemas as they are now; the version's number is their ``last``.

        Raises:
            SchemaIncompatibleError: the schema breaks the rule; the message names the field.
            SchemaConflictError: the last version is not as expected.
            ConfigError: it is not a schema, asks for too much, or its library is missing.
            StreamNotFoundError: there is no such stream.
        """
        context, nodes = await self._schema_nodes()
        context.check_writable()
        return await nodes.set(schema, compatibility, expected)

    async def decoder(self, version: int | None = None) -> Decoder:
        """Return what decodes records, and encodes them.

        Args:
            version: As which version records are wanted; None: the last.

        Raises:
            SchemaNotFoundError: it has no schema, or no such version.
            ConfigError: the schema's library is missing.
        """
        return Decoder(await self.schemas(), version)
