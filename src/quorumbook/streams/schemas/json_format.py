"""Records of JSON text, by a JSON Schema; pure.

The top level is an object, whose properties are the columns.  References are resolved once, when
the schema is compiled: only ``#/…`` within the schema itself, nothing is ever fetched, and a
schema that comes back to itself has no columns and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.streams.schemas.columns import Column, ColumnKind, shaped
from quorumbook.streams.schemas.json_checks import check_of, problem_of
from quorumbook.streams.schemas.limits import MAX_TYPES, StepBudget, check_depth, parse_json

_ANNOTATIONS = {
    "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default",
    "definitions", "deprecated", "description", "examples", "format", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
_DRAFTS = ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema")
_OF_NAMES = ("properties", "patternProperties")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_OF_ONE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then",
           "else")  # fmt: skip
_INT64 = 1 << 63
_PLAIN = {
    "boolean": ColumnKind.BOOL,
    "integer": ColumnKind.INT64,
    "number": ColumnKind.FLOAT64,
    "string": ColumnKind.STRING,
}


class JsonFormat:
    """One version of a JSON Schema, compiled."""

    def __init__(self, text: str) -> None:
        """Compile it.

        Raises:
            ConfigError: it is not a JSON Schema, asks for too much, or has no columns.
        """
        try:
            given = parse_json(text.encode())
            #: The schema without references and annotations.
            self.schema = _Expansion(given).whole()
            self._check = check_of(self.schema)
            self.column = column_of(self.schema)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the JSON Schema is not usable: {error}") from error
        if self.column.kind is not ColumnKind.STRUCT:
            raise ConfigError(
                'the JSON Schema is not usable: its top level is not {"type": "object", '
                '"properties": …}, so it has no columns'
            )

    def decode(self, payload: bytes, written: JsonFormat) -> Any:
        """Return the object that a record holds, which is valid by the schema it was written with.

        Raises:
            ValueError: it is not valid.
        """
        value = parse_json(payload)
        problem = problem_of(written._check, value)
        if problem is not None:
            raise ValueError(problem)
        return value

    def row(self, value: Any) -> Any:
        """Return a decoded value as its columns hold it; ValueError: it does not fit them."""
        return shaped(self.column, value)

    def encode(self, value: Any) -> bytes:
        """Return the record of a value; ValueError: it is not valid."""
        payload = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        self.decode(payload, self)
        return payload


class _Expansion:
    """Puts what a schema refers to in the place of the references."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._budget = StepBudget(MAX_TYPES, "schemas in one JSON Schema, with what it refers to")
        #: The references that are being followed.
        self._open: list[str] = []

    def whole(self) -> Any:
        if isinstance(self._whole, dict):
            draft = self._whole.get("$schema", _DRAFTS[0])
            if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
                raise ValueError(f"its $schema is not one of {', '.join(_DRAFTS)}")
        return self._expanded(self._whole, 0)

    def _expanded(self, schema: Any, depth: int) -> Any:
        self._budget.take()
        check_depth(depth)
        if not isinstance(schema, dict):
            return schema
        kept = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        if depth and "$id" in schema:
            raise ValueError("a schema within has an $id of its own, which is not supported")
        if "$ref" in kept:
            if len(kept) > 1:
                raise ValueError(f"beside $ref there is {sorted(set(kept) - {'$ref'})[0]!r}")
            return self._referred(kept["$ref"], depth)
        for name, value in kept.items():
            if name in _OF_NAMES and isinstance(value, dict):
                kept[name] = {key: self._expanded(each, depth + 1) for key, each in value.items()}
            elif name in _OF_LISTS and isinstance(value, list):
                kept[name] = [self._expanded(each, depth + 1) for each in value]
            elif name in _OF_ONE:
                kept[name] = self._expanded(value, depth + 1)
        return kept

    def _referred(self, reference: Any, depth: int) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ValueError(
                f"it refers to {str(reference)[:80]!r}; only #/… within it is followed"
            )
        if reference in self._open:
            raise ValueError(f"{reference} refers to itself, so it has no columns")
        found = self._whole
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise ValueError(f"it refers to {reference}, which is not there")
            found = found[name]
        self._open.append(reference)
        expanded = self._expanded(found, depth + 1)
        self._open.pop()
        return expanded


def column_of(schema: Any) -> Column:
    """Return the column of the values that a schema without references allows."""
    types = schema.get("type") if isinstance(schema, Mapping) else None
    names = [name for name in (types if isinstance(types, list) else [types]) if name != "null"]
    if len(names) != 1 or names[0] is None:
        return Column(ColumnKind.JSON)
    (name,) = names
    if name == "integer" and _is_beyond_64_bits(schema):
        return Column(ColumnKind.DECIMAL, digits=(38, 0))
    if name in _PLAIN:
        return Column(_PLAIN[name])
    if name == "array":
        items = schema.get("items")
        is_even = isinstance(items, dict) and "prefixItems" not in schema
        return Column(ColumnKind.LIST, column_of(items)) if is_even else Column(ColumnKind.JSON)
    if schema.get("properties"):
        fields = tuple((key, column_of(each)) for key, each in schema["properties"].items())
        return Column(ColumnKind.STRUCT, fields=fields)
    others = schema.get("additionalProperties")
    if isinstance(others, dict) and "patternProperties" not in schema:
        return Column(ColumnKind.MAP, column_of(others))
    return Column(ColumnKind.JSON)


def _is_beyond_64_bits(schema: Mapping[str, Any]) -> bool:
    """Tell whether the bounds of an integer say that it may be larger than a long."""
    bounds = [schema.get(name) for name in (
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")]  # fmt: skip
    numbers = [each for each in bounds if isinstance(each, int | float) and each is not True]
    return any(not -_INT64 <= each <= _INT64 for each in numbers)
