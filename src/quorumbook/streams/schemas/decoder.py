"""Decodes a stream's records by its schemas, or says why one cannot be decoded; pure.

A record is read by the version that it names in its header, and becomes one of the version that
is asked for: the last, if nothing else is said.  One that names none is of the only version that
there is; where there are several, JSON and Protobuf are read by the last, since fields have names
or numbers there, and a record of Avro is bad, since nothing in it tells what its bytes mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.streams.errors import BadRecordError, SchemaNotFoundError
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

    def __reduce__(self) -> tuple[type[Decoder], tuple[StreamSchemas, int]]:
        """Travel as the schemas, which are compiled again where they arrive."""
        return Decoder, (self.schemas, self.version)

    @property
    def column(self) -> Column:
        """The column of decoded records: a struct of the schema's fields."""
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
            return self._target.decode(payload, self._written(headers))
        except (ValueError, ConfigError, SchemaNotFoundError) as error:
            raise BadRecordError(str(error)) from error

    def row(self, payload: bytes, headers: Mapping[str, bytes] = _NO_HEADERS) -> Any:
        """Return the same as ``column`` holds it; raises as ``value`` does."""
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

    def _written(self, headers: Mapping[str, bytes]) -> Any:
        named = version_in(headers)
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
