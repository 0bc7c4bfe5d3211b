"""The schemas of a stream as the metadata store keeps them, and how a record names its own; pure.

    <ns>/<stream>/<default>/schemas          {"version": 1, "compatibility": "backward", "last": 2}
    <ns>/<stream>/<partitions>/schemas       the same of a partitioned stream
      …/<10 digits>                          {"version": 1, "kind": "avro", "text": …}, from 1 on

``text`` is a JSON Schema or an Avro schema as it was given; of Protobuf it is a FileDescriptorSet
in base64, and ``message`` names one of its messages.  A version that came from a schema registry
says under which ``registry_id``.  A version is created once and never changes.

A record names the version it was written with in its header ``schema-version``, in decimal, or is
framed as a registry's serializers do it (``framed``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.streams.errors import (
    CorruptRecordsError,
    SchemaNotFoundError,
    UnsupportedFormatError,
)

#: The header of a record that says with which version it was written.
VERSION_HEADER = "schema-version"
#: A version is one node of the metadata store, and is compiled by everybody who reads.
MAX_TEXT_BYTES = 256 * 1024
MAX_VERSIONS = 1000
_VERSION = 1


class SchemaKind(Enum):
    """The language that a schema is written in."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compatibility(Enum):
    """What a new version of a schema must be able to do with all versions before it."""

    #: Its readers read what was written with any of them.
    BACKWARD = "backward"
    #: Their readers read what is written with it.
    FORWARD = "forward"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that a stream's records may have."""

    kind: SchemaKind
    #: JSON of a JSON Schema or an Avro schema, base64 of a FileDescriptorSet.
    text: str
    #: The full name of Protobuf's message; empty of the others.
    message: str = ""
    #: What it is called in the schema registry that it came from; 0: it came from none.
    registry_id: int = 0

    def __post_init__(self) -> None:
        """Refuse what is too large, lacks its message, or has an id that is none."""
        size = len(self.text.encode())
        if size > MAX_TEXT_BYTES:
            raise ConfigError(f"a schema has at most {MAX_TEXT_BYTES} bytes, this one {size}")
        if (self.kind is SchemaKind.PROTOBUF) != bool(self.message):
            raise ConfigError("a Protobuf schema must name its message, and no other schema may")
        if not 0 <= self.registry_id < 1 << 32:
            raise ConfigError(
                f"a registry's id must be a number of 32 bits, not {self.registry_id}"
            )

    def encode(self) -> bytes:
        """Return the data of a version's node."""
        found = {"version": _VERSION, "kind": self.kind.value, "text": self.text}
        others = {"message": self.message, "registry_id": self.registry_id}
        return json.dumps(found | {name: each for name, each in others.items() if each}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Schema:
        """Read the data of a version's node.

        Raises:
            UnsupportedFormatError: a newer release wrote it.
            CorruptRecordsError: it is damaged.
        """
        found = _read(data, path)
        try:
            return cls(
                SchemaKind(found["kind"]),
                str(found["text"]),
                str(found.get("message", "")),
                int(found.get("registry_id", 0)),
            )
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CorruptRecordsError(f"metadata node {path} holds no schema: {error}") from error


@dataclass(frozen=True, slots=True)
class SchemaList:
    """The node above the versions."""

    compatibility: Compatibility
    #: The number of the last version.
    last: int

    def encode(self) -> bytes:
        """Return the node's data."""
        return json.dumps(
            {
                "version": _VERSION,
                "compatibility": self.compatibility.value,
                "last": self.last,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> SchemaList:
        """Read the node's data; raises as ``Schema.decode`` does."""
        found = _read(data, path)
        try:
            last = int(found["last"])
            if not 0 < last <= MAX_VERSIONS:
                raise ValueError(f"{last} versions")
            return cls(Compatibility(found["compatibility"]), last)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptRecordsError(f"metadata node {path} lists no schemas: {error}") from error


@dataclass(frozen=True, slots=True)
class StreamSchemas:
    """All versions of a stream's schema, from version 1 on."""

    stream: str
    compatibility: Compatibility
    versions: tuple[Schema, ...]

    @property
    def last(self) -> int:
        """The number of the last version."""
        return len(self.versions)

    @property
    def by_registry_id(self) -> dict[int, int]:
        """The versions that came from a schema registry, by their ids there."""
        found = {each.registry_id: number for number, each in enumerate(self.versions, 1)}
        return {each: number for each, number in found.items() if each}

    def of(self, version: int | None = None) -> Schema:
        """Return one version; None: the last.

        Raises:
            SchemaNotFoundError: there is no such version.
        """
        number = self.last if version is None else version
        if not 0 < number <= self.last:
            raise SchemaNotFoundError(
                f"stream {self.stream} has no version {number} of its schema; the last is "
                f"{self.last}"
            )
        return self.versions[number - 1]


def version_name(number: int) -> str:
    """Return the name of a version's node."""
    return f"{number:010d}"


def version_headers(version: int) -> dict[str, bytes]:
    """Return the headers of a record that is written with a version."""
    return {VERSION_HEADER: b"%d" % version}


def version_in(headers: Mapping[str, bytes]) -> int | None:
    """Return which version a record names; None: none.

    Raises:
        ValueError: what it names is not a number.
    """
    found = headers.get(VERSION_HEADER)
    if found is None:
        return None
    if not (found.isdigit() and len(found) <= 10):
        raise ValueError(f"its header {VERSION_HEADER} is {found[:20]!r}, not a version")
    return int(found)


def _read(data: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
        version = found["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordsError(f"metadata node {path} holds {data[:60]!r}") from error
    if version != _VERSION:
        raise UnsupportedFormatError(f"the schema at {path} is of version {version}, not 1")
    return dict(found)
