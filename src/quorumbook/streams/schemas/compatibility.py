"""Whether a new version of a schema may follow those before it; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from quorumbook.streams.errors import SchemaIncompatibleError
from quorumbook.streams.format.schemas import Compatibility, Schema, SchemaKind
from quorumbook.streams.schemas.columns import Column

_READS_OLD = (Compatibility.BACKWARD, Compatibility.FULL)
_READ_BY_OLD = (Compatibility.FORWARD, Compatibility.FULL)


class Format(Protocol):
    """One version of a schema, compiled."""

    column: Column

    def decode(self, payload: bytes, written: Any) -> Any:
        """Return the value of a record; ValueError: it has none."""
        ...

    def row(self, value: Any) -> Any:
        """Return a value as the columns hold it; ValueError: it does not fit."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the record of a value; ValueError: it does not fit."""
        ...


@lru_cache(maxsize=256)
def format_of(schema: Schema) -> Format:
    """Compile a schema.

    Raises:
        ConfigError: it is none, asks for too much, or its library is missing.
    """
    if schema.kind is SchemaKind.JSON:
        from quorumbook.streams.schemas.json_format import JsonFormat  # noqa: PLC0415

        return JsonFormat(schema.text)
    if schema.kind is SchemaKind.AVRO:
        from quorumbook.streams.schemas.avro_format import AvroFormat  # noqa: PLC0415

        return AvroFormat(schema.text)
    from quorumbook.streams.schemas.protobuf_format import ProtobufFormat  # noqa: PLC0415

    return ProtobufFormat(schema.text, schema.message)


def check_follows(
    stream: str, new: Schema, before: Sequence[Schema], compatibility: Compatibility
) -> None:
    """Refuse a new version that breaks the rule; a log is read from its beginning, so with all.

    Raises:
        SchemaIncompatibleError: with the field that breaks it.
        ConfigError: it is no schema that can be used.
    """
    compiled = format_of(new)
    if compatibility is Compatibility.NONE:
        return
    for number, old in reversed(list(enumerate(before, 1))):
        if old.kind is not new.kind:
            raise SchemaIncompatibleError(
                f"the schema of stream {stream} cannot become {new.kind.value}: version {number} "
                f"is {old.kind.value}, and compatibility is {compatibility.value}"
            )
        for found, who in _conflicts(new.kind, compiled, format_of(old), compatibility, number):
            raise SchemaIncompatibleError(
                f"the new schema of stream {stream} is not {compatibility.value} compatible with "
                f"version {number}: {found}, so {who}"
            )


def _conflicts(
    kind: SchemaKind, new: Any, old: Any, compatibility: Compatibility, number: int
) -> Iterator[tuple[str, str]]:
    conflict = _rules_of(kind)
    if compatibility in _READS_OLD and (found := conflict(new, old)) is not None:
        yield found, f"its readers cannot read what was written with version {number}"
    if compatibility in _READ_BY_OLD and (found := conflict(old, new)) is not None:
        yield (
            f"from the new version to the old, {found}",
            f"readers of version {number} cannot read what is written with it",
        )


def _rules_of(kind: SchemaKind) -> Callable[[Any, Any], str | None]:
    if kind is SchemaKind.JSON:
        from quorumbook.streams.schemas import json_rules as rules  # noqa: PLC0415
    elif kind is SchemaKind.AVRO:
        from quorumbook.streams.schemas import avro_rules as rules  # type: ignore[no-redef]  # noqa: PLC0415
    else:
        from quorumbook.streams.schemas import (  # type: ignore[no-redef]  # noqa: PLC0415
            protobuf_rules as rules,
        )
    return rules.conflict
