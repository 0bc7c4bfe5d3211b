"""Decodes a stream's records by its schemas, or says why one cannot be decoded; pure.

A record is read by the version that it names in its header, and becomes one of the version that
is asked for: the last, if nothing else is said.  Where versions came from a schema registry, one
without the header is framed as the registry's serializers do it, and names the registry's id.
Otherwise it is of the only version that there is; where there are several, JSON and Protobuf are
read by the last, since fields have names or numbers there, and a record of Avro is bad, since
nothing in it tells what its bytes mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.streams.errors import BadRecordError, SchemaNotFoundError
from quorumbook.streams.format.framed import unframe
from quorumbook.streams.format.schemas import SchemaKind, StreamSchemas, version_in
from quorumbook.streams.schemas.columns import Column
from quorumbook.streams.schemas.compatibility import Format, format_of
from quorumbook.streams.schemas.limits import MAX_RECORD_BYTES

_NO_HEADERS: Mapping[str, bytes] = {}


class Decoder:
    """Decodes records of one stream; the same in readers, frames, Spark and the console."""

    def __init__(self, schemas: StreamSchemas, version: int | None = None) -> None:
        """Take the schemas, and as which version records are wanted; None: the last.

        Raises:
            SchemaNotFoundError: there is no such version.
            ConfigError: it is not usable here; the message says why.
        """
        self.schemas = schemas
        self.version = schemas.last if version is None else version
        self._schema = schemas.of(self.version)
        self._target: Format = format_of(self._schema)
        self._by_registry_id = schemas.by_registry_id

    def __reduce__(self) -> tuple[type[Decoder], tuple[StreamSchemas, int]]:
        """Travel as the schemas, which are compiled again where they arrive."""
        return Decoder, (self.schemas, self.version)

    @property
    def column(self) -> Column:
        """Decode records into one Arrow column: a struct with the schema's fields."""
        return self._target.column

    def value(self, payload: bytes, headers: Mapping[str, bytes] = _NO_HEADERS) -> Any:
        """Return what a record holds, as values of Python's.

        Raises:
            BadRecordError: it is not a record of the version that it names.
        """
        if len(payload) > MAX_RECORD_BYTES:
            raise BadRecordError(
                f"it has {len(payload)} bytes; at most {MAX_RECORD_BYTES} are decoded"
            )
        try:
            written, body = self._opened(payload, headers)
            return self._target.decode(body, written)
        except (ValueError, ConfigError, SchemaNotFoundError) as error:
            raise BadRecordError(str(error)) from error

    def row(self, payload: bytes, headers: Mapping[str, bytes] = _NO_HEADERS) -> Any:
        """Decode one record into the form that ``column`` has; raises as ``value`` does."""
        try:
            return self._target.row(self.value(payload, headers))
        except ValueError as error:
            raise BadRecordError(str(error)) from error

    def encode(self, value: Any) -> bytes:
        """Return the payload of a record; it goes with ``version_headers(decoder.version)``.

        Raises:
            BadRecordError: the value does not fit the schema.
        """
        try:
            return self._target.encode(value)
        except ValueError as error:
            raise BadRecordError(str(error)) from error

    def _opened(self, payload: bytes, headers: Mapping[str, bytes]) -> tuple[Any, bytes]:
        """Return the version that a record was written with, and what that describes."""
        named = version_in(headers)
        if named is not None or not self._by_registry_id:
            return self._written(named), payload
        framed = unframe(payload, has_path=self._schema.kind is SchemaKind.PROTOBUF)
        named = self._by_registry_id.get(framed.registry_id)
        if named is None:
            raise ValueError(
                f"it names the schema {framed.registry_id} of a registry, which is no version "
                f"here; quorumbook stream schema import {self.schemas.stream} brings new ones"
            )
        written = self._written(named)
        if framed.path and framed.path != written.path:
            raise ValueError(
                f"it names another message of its file than {self._schema.message}, by the path "
                f"{list(framed.path)}, not {list(written.path)}"
            )
        return written, framed.body

    def _written(self, named: int | None) -> Any:
        if named is None:
            if self._schema.kind is SchemaKind.AVRO and self.schemas.last > 1:
                raise ValueError(
                    f"it names no version of the {self.schemas.last} that its schema has"
                )
            return self._target
        if named == self.version:
            return self._target
        written = self.schemas.of(named)
        if written.kind is not self._schema.kind:
            raise ValueError(
                f"it is of version {named}, which is {written.kind.value}, and not "
                f"{self._schema.kind.value}"
            )
        return format_of(written)
