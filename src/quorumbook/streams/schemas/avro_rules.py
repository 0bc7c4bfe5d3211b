"""Whether a reader's Avro schema reads what was written with another: Avro's resolution; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quorumbook.streams.schemas.avro_format import AvroFormat

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def conflict(reader: AvroFormat, writer: AvroFormat) -> str | None:
    """Return which field cannot be read and why; None: all can."""
    return next(
        _Rules(reader.names, writer.names).conflicts(reader.schema, writer.schema, ""), None
    )


class _Rules:
    def __init__(self, readers: Mapping[str, Any], writers: Mapping[str, Any]) -> None:
        self._readers, self._writers = readers, writers

    def conflicts(self, reader: Any, writer: Any, where: str) -> Iterator[str]:
        """Yield what cannot be read."""
        reader = self._readers.get(reader, reader) if isinstance(reader, str) else reader
        writer = self._writers.get(writer, writer) if isinstance(writer, str) else writer
        if isinstance(writer, list):
            for branch in writer:
                yield from self.conflicts(reader, branch, where)
        elif isinstance(reader, list):
            yield from self._of_union(reader, writer, where)
        else:
            yield from self._of_kinds(reader, writer, where)

    def _of_union(self, branches: list[Any], writer: Any, where: str) -> Iterator[str]:
        found = f"{_field(where)} was {_said(writer)}, which its union lacks"
        for branch in branches:
            problem = next(self.conflicts(branch, writer, where), None)
            if problem is None:
                return
            reader = self._readers.get(branch, branch) if isinstance(branch, str) else branch
            if _kind(reader) == _kind(writer):
                found = problem
        yield found

    def _of_kinds(self, reader: Any, writer: Any, where: str) -> Iterator[str]:
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if kind not in _PROMOTED.get(written, ()):
                yield f"{_field(where)} was {_said(writer)} and is {_said(reader)}"
            return
        if kind in ("record", "enum", "fixed") and not _is_called(reader, writer["name"]):
            yield f"{_field(where)} was called {writer['name']} and is {reader['name']}"
        elif kind == "record":
            yield from self._of_records(reader, writer, where)
        elif kind == "enum" and "default" not in reader:
            for symbol in writer["symbols"]:
                if symbol not in reader["symbols"]:
                    yield f"{_field(where)} has lost the symbol {symbol}, and has no default"
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield f"{_field(where)} had {writer['size']} bytes and has {reader['size']}"
        elif kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            yield from self.conflicts(reader[inner], writer[inner], f"{where}.{inner}".lstrip("."))
        if _decimal(reader) != _decimal(writer):
            yield f"{_field(where)} has other digits: its decimal was {_decimal(writer)}"

    def _of_records(self, reader: Any, writer: Any, where: str) -> Iterator[str]:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            place = f"{where}.{field['name']}".lstrip(".")
            names = [field["name"], *field.get("aliases", ())]
            found = next((written[name] for name in names if name in written), None)
            if found is not None:
                yield from self.conflicts(field["type"], found["type"], place)
            elif "default" not in field:
                yield f"{_field(place)} is new and has no default"


def _kind(schema: Any) -> str:
    kind = schema if isinstance(schema, str) else schema["type"]
    return "record" if kind == "error" else str(kind)


def _is_called(reader: Any, name: str) -> bool:
    known = [reader["name"], *reader.get("aliases", ())]
    return name.rpartition(".")[2] in [each.rpartition(".")[2] for each in known]


def _decimal(schema: Any) -> tuple[int, int] | None:
    if isinstance(schema, str) or schema.get("logicalType") != "decimal":
        return None
    return schema["precision"], schema["scale"]


def _said(schema: Any) -> str:
    return _kind(schema) if isinstance(schema, str) else str(schema.get("name", _kind(schema)))


def _field(where: str) -> str:
    return f"the field {where}" if where else "the record"
