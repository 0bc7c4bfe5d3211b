"""Whether a version of a Protobuf message reads what was written with another; pure.

Fields are known by their numbers.  A field may get another name; a name that moves to another
number would lose what was written under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from quorumbook.streams.schemas.protobuf_format import (
    ProtobufFormat,
    is_labelled,
    is_repeated,
)

_F: Any = FieldDescriptor
#: Types whose bytes mean the same to each other; others only to themselves.
_ALIKE = (
    {_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM},
    {_F.TYPE_SINT32, _F.TYPE_SINT64},
    {_F.TYPE_FIXED32, _F.TYPE_SFIXED32},
    {_F.TYPE_FIXED64, _F.TYPE_SFIXED64},
    {_F.TYPE_STRING, _F.TYPE_BYTES},
)


def conflict(reader: ProtobufFormat, writer: ProtobufFormat) -> str | None:
    """Return which field cannot be read and why; None: all can."""
    return next(_conflicts(reader.descriptor, writer.descriptor, ""), None)


def _conflicts(reader: Descriptor, writer: Descriptor, where: str) -> Iterator[str]:
    written = {field.number: field for field in writer.fields}
    numbers = {field.name: field.number for field in writer.fields}
    for field in reader.fields:
        place = f"{where}.{field.name}".lstrip(".")
        old = written.get(field.number)
        moved = numbers.get(field.name, field.number)
        if moved != field.number:
            yield f"the field {place} had the number {moved} and has {field.number}"
        if old is None:
            if field.has_presence and _is_required(field):
                yield f"the field {place} is new and required"
        elif _is_required(field) and not _is_required(old):
            yield f"the field {place} is required, and was not"
        elif is_repeated(field) != is_repeated(old):
            yield f"the field {place} is {_many(field)} and was {_many(old)}"
        elif not _is_alike(field, old):
            yield f"the field {place} was {_said(old)} and is {_said(field)}"
        elif field.message_type is not None and old.message_type is not None:
            yield from _conflicts(field.message_type, old.message_type, place)


def _is_required(field: FieldDescriptor) -> bool:
    return is_labelled(field, "required")


def _is_alike(field: FieldDescriptor, old: FieldDescriptor) -> bool:
    return field.type == old.type or any({field.type, old.type} <= alike for alike in _ALIKE)


def _many(field: FieldDescriptor) -> str:
    return "repeated" if is_repeated(field) else "single"


def _said(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return field.message_type.full_name
    return str(descriptor_type(field))


def descriptor_type(field: FieldDescriptor) -> str:
    """Return the name of a field's type, as ``.proto`` files have it."""
    names = {getattr(_F, name): name[5:].lower() for name in dir(_F) if name.startswith("TYPE_")}
    return names[field.type]
