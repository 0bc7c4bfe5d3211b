"""Records of Protobuf's binary encoding, by a message of a FileDescriptorSet.

``protoc --include_imports --descriptor_set_out=FILE`` and ``buf build`` write such a set.  The
message's fields are the columns; one that is not set has its default, or is null where the schema
can tell (``optional``, ``oneof``, messages).  ``google.protobuf.Timestamp`` is a time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from quorumbook.env.interfaces import utc_time
from quorumbook.errors import ConfigError
from quorumbook.streams.schemas.columns import Column, ColumnKind, shaped
from quorumbook.streams.schemas.limits import (
    MAX_DEFAULT_BYTES,
    MAX_TYPES,
    MAX_VALUES,
    StepBudget,
    check_depth,
)

_F: Any = FieldDescriptor
_TIMESTAMP = "google.protobuf.Timestamp"
#: Files that schemas import and sets may leave out.
_WELL_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2,
                   timestamp_pb2, wrappers_pb2)
}  # fmt: skip
_KINDS = {
    _F.TYPE_DOUBLE: ColumnKind.FLOAT64, _F.TYPE_FLOAT: ColumnKind.FLOAT32,
    _F.TYPE_INT64: ColumnKind.INT64, _F.TYPE_SINT64: ColumnKind.INT64,
    _F.TYPE_SFIXED64: ColumnKind.INT64, _F.TYPE_INT32: ColumnKind.INT32,
    _F.TYPE_SINT32: ColumnKind.INT32, _F.TYPE_SFIXED32: ColumnKind.INT32,
    _F.TYPE_UINT32: ColumnKind.INT64, _F.TYPE_FIXED32: ColumnKind.INT64,
    # 64 bits without a sign are more than a column of numbers holds.
    _F.TYPE_UINT64: ColumnKind.DECIMAL, _F.TYPE_FIXED64: ColumnKind.DECIMAL,
    _F.TYPE_BOOL: ColumnKind.BOOL, _F.TYPE_STRING: ColumnKind.STRING,
    _F.TYPE_BYTES: ColumnKind.BYTES, _F.TYPE_ENUM: ColumnKind.STRING,
}  # fmt: skip


class ProtobufFormat:
    """One version of a message, compiled."""

    def __init__(self, text: str, message: str) -> None:
        """Compile it.

        Raises:
            ConfigError: the set is damaged, lacks the message, asks for too much, or the message
                contains itself or has no fields.
        """
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(
                base64.b64decode(text, validate=True)
            )
            pool = _pool_of(files)
            #: What the message is.
            self.descriptor: Descriptor = pool.FindMessageTypeByName(message)
            #: Where it is in its file: which message, and which within that.
            self.path = _path_of(self.descriptor)
            self._class: Any = message_factory.GetMessageClass(self.descriptor)
            self.column = _MessageWalk().column(self.descriptor, 0)
            #: A shorter record has not too many messages.
            self._counted_from_bytes = 2 * MAX_VALUES / _most_fields(self.descriptor)
        except KeyError as error:
            raise ConfigError(
                f"the Protobuf schema is not usable: it has no {message!r}"
            ) from error
        except (ValueError, TypeError, binascii.Error, _DECODE_ERROR) as error:
            raise ConfigError(f"the Protobuf schema is not usable: {error}") from error
        if not self.column.fields:
            raise ConfigError(
                f"the Protobuf schema is not usable: {message} has no fields, so no columns"
            )

    def decode(self, payload: bytes, written: ProtobufFormat) -> Any:
        """Return the message that a record holds, read by this version: fields have numbers.

        Raises:
            ValueError: the bytes are not such a message.
        """
        if len(payload) > self._counted_from_bytes:
            _check_messages(self.descriptor, payload)
        try:
            message = self._class.FromString(payload)
        except _DECODE_ERROR as error:
            raise ValueError(f"not a message {self.descriptor.full_name}: {error}") from error
        if not message.IsInitialized():
            raise ValueError(f"a required field of {self.descriptor.full_name} is missing")
        return _value(message, StepBudget(MAX_VALUES, "values in one record"))

    def row(self, value: Any) -> Any:
        """Return a decoded value as its columns hold it."""
        return shaped(self.column, value)

    def encode(self, value: Any) -> bytes:
        """Return the record of a value, which is as Protobuf's JSON has it.

        Raises:
            ValueError: it does not fit the message.
        """
        try:
            message = json_format.ParseDict(value, self._class(), max_recursion_depth=100)
            return bytes(message.SerializeToString(deterministic=True))
        except (json_format.ParseError, _ENCODE_ERROR) as error:
            raise ValueError(f"not a message {self.descriptor.full_name}: {error}") from error


def _errors() -> tuple[type[Exception], type[Exception]]:
    from google.protobuf import message  # noqa: PLC0415

    return message.DecodeError, message.EncodeError


_DECODE_ERROR, _ENCODE_ERROR = _errors()


def _pool_of(files: Any) -> Any:
    """Return the types of a set, whose files may stand in any order."""
    pool = descriptor_pool.DescriptorPool()
    waiting = {file.name: file for file in files.file}
    known: set[str] = set()

    def add(name: str, depth: int) -> None:
        check_depth(depth)
        if name in known:
            return
        known.add(name)
        file = waiting.get(name)
        if file is None and name in _WELL_KNOWN:
            file = descriptor_pb2.FileDescriptorProto()
            _WELL_KNOWN[name].CopyToProto(file)
        if file is None:
            raise ValueError(f"it lacks the file {name!r}; protoc adds it with --include_imports")
        for other in file.dependency:
            add(other, depth + 1)
        pool.Add(file)

    for name in waiting:
        add(name, 0)
    return pool


def _path_of(descriptor: Descriptor) -> tuple[int, ...]:
    """Return a message's place in its file; entries of maps are no messages of the file's."""
    file = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    names = descriptor.full_name.removeprefix(f"{file.package}.").split(".")
    path, level = [], file.message_type
    for name in names:
        known = [each for each in level if not each.options.map_entry]
        index = [each.name for each in known].index(name)
        path.append(index)
        level = known[index].nested_type
    return tuple(path)


class _MessageWalk:
    """Goes through a message once, by what it contains."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._budget = StepBudget(MAX_TYPES, "fields in one message, with what they contain")
        self._defaults = StepBudget(MAX_DEFAULT_BYTES, "bytes of defaults in one message")

    def column(self, descriptor: Descriptor, depth: int) -> Column:
        check_depth(depth)
        name = descriptor.full_name
        if name == _TIMESTAMP:
            return Column(ColumnKind.TIMESTAMP)
        if name in self._open:
            raise ValueError(f"{name} contains itself, so it has no columns")
        self._open.add(name)
        fields = tuple((each.name, self._of_field(each, depth)) for each in descriptor.fields)
        self._open.discard(name)
        return Column(ColumnKind.STRUCT, fields=fields)

    def _of_field(self, field: FieldDescriptor, depth: int) -> Column:
        if is_map(field) and field.message_type is not None:
            self._budget.take()
            value = field.message_type.fields_by_name["value"]
            return Column(ColumnKind.MAP, self._single(value, depth))
        inner = self._single(field, depth)
        return Column(ColumnKind.LIST, inner) if is_repeated(field) else inner

    def _single(self, field: FieldDescriptor, depth: int) -> Column:
        self._budget.take()
        if field.message_type is not None:
            return self.column(field.message_type, depth + 1)
        if isinstance(field.default_value, str | bytes):
            self._defaults.take(len(field.default_value))
        return Column(_KINDS[field.type], digits=(20, 0))


def _most_fields(descriptor: Descriptor, *, is_many: bool = False) -> int:
    """Return how many values a message is at least that a record may have many of; 1: none is."""
    inner = (
        _most_fields(field.message_type, is_many=is_many or is_repeated(field))
        for field in descriptor.fields
        if field.message_type is not None
    )
    return max(1 + len(descriptor.fields) if is_many else 1, *inner, 0)


_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


def _check_messages(descriptor: Descriptor, payload: bytes) -> None:
    """Count the messages of a record, each of which takes memory for all its fields.

    What is no Protobuf is left to whoever decodes it.

    Raises:
        TooMuchError: they are more than ``MAX_VALUES`` values.
    """
    budget = StepBudget(MAX_VALUES, "values in one record")

    def number(at: int) -> tuple[int, int]:
        found = shift = 0
        while True:
            byte = payload[at]
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found, at
            shift += 7
            if shift > 63:
                raise IndexError(at)

    def go(found: Descriptor | None, at: int, end: int, depth: int) -> int:
        """Pass a message, to its end or to that of its group."""
        check_depth(depth)
        if found is not None:
            budget.take(1 if found.full_name == _TIMESTAMP else 1 + len(found.fields))
        fields = {} if found is None else found.fields_by_number
        while at < end:
            tag, at = number(at)
            kind = tag & 7
            field = fields.get(tag >> 3)
            if kind == _GROUP_END:
                return at
            if kind == _VARINT:
                _, at = number(at)
            elif kind == _BYTES:
                size, at = number(at)
                if field is not None and field.message_type is not None:
                    go(field.message_type, at, min(at + size, end), depth + 1)
                at += size
            elif kind == _GROUP:
                at = go(None if field is None else field.message_type, at, end, depth + 1)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise IndexError(at)
        return at

    with contextlib.suppress(IndexError):
        go(descriptor, 0, len(payload), 0)


def is_repeated(field: FieldDescriptor) -> bool:
    """Tell whether a field has several values."""
    return is_labelled(field, "repeated")


def is_labelled(field: FieldDescriptor, label: str) -> bool:
    """Tell whether a field is repeated, or required, in older and newer releases of protobuf."""
    found: bool | None = getattr(field, f"is_{label}", None)
    if found is None:
        found = getattr(field, "label") == getattr(_F, f"LABEL_{label.upper()}")  # noqa: B009
    return found


def is_map(field: FieldDescriptor) -> bool:
    """Tell whether a field is a map."""
    return (
        field.message_type is not None
        and field.message_type.GetOptions().map_entry
        and is_repeated(field)
    )


def _value(message: Any, budget: StepBudget) -> Any:
    """Return a message as values of Python's."""
    descriptor = message.DESCRIPTOR
    budget.take()
    if descriptor.full_name == _TIMESTAMP:
        return utc_time(message.seconds, message.nanos // 1000)
    found: dict[str, Any] = {}
    for field in descriptor.fields:
        budget.take()
        name = field.name
        if is_map(field):
            single = _reader(field.message_type.fields_by_name["value"], budget)
            found[name] = {_key(key): single(each) for key, each in getattr(message, name).items()}
        elif is_repeated(field):
            found[name] = list(map(_reader(field, budget), getattr(message, name)))
        elif field.has_presence and not message.HasField(name):
            found[name] = None
        else:
            found[name] = _reader(field, budget)(getattr(message, name))
    return found


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _reader(field: FieldDescriptor, budget: StepBudget) -> Callable[[Any], Any]:
    """Return what makes a value of Python's of one of a field's."""
    if field.message_type is not None:
        return lambda value: _value(value, budget)
    if field.enum_type is not None:
        names = field.enum_type.values_by_number

        def named(value: Any) -> Any:
            budget.take()
            return names[value].name if value in names else str(value)

        return named

    def plain(value: Any) -> Any:
        budget.take()
        return value

    return plain
