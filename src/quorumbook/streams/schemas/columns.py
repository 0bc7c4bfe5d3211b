"""What columns decoded records have: one set of types for all formats; pure.

A format says which columns a schema has, and decodes a record to a value of Python's.  A value is
made a row of such columns by ``shaped``, which Arrow and Spark take as it is.  Values that fit no
one type, such as a union of several, are columns of JSON text.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from quorumbook.streams.schemas.limits import MAX_VALUES, StepBudget

_INT32, _INT64 = 1 << 31, 1 << 63


class ColumnKind(Enum):
    """The type of a column, named as Arrow names it."""

    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float"
    FLOAT64 = "double"
    STRING = "string"
    BYTES = "binary"
    DATE = "date32"
    #: Microseconds, in UTC.
    TIMESTAMP = "timestamp"
    DECIMAL = "decimal128"
    #: Anything, as JSON text.
    JSON = "json"
    LIST = "list"
    MAP = "map"
    STRUCT = "struct"


_SHAPED = {
    ColumnKind.JSON, ColumnKind.LIST, ColumnKind.MAP, ColumnKind.INT32, ColumnKind.DECIMAL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """The type of a value; every value may be null."""

    kind: ColumnKind
    #: Of a list's items and a map's values, whose keys are texts.
    item: Column | None = None
    fields: tuple[tuple[str, Column], ...] = ()
    #: Of a decimal: its digits, and how many of them are behind the point.
    digits: tuple[int, int] = (38, 0)

    def needs_shaping(self) -> bool:
        """Tell whether decoded values may not be as the column holds them, or may be many."""
        if self.kind in _SHAPED:
            return True
        return any(column.needs_shaping() for _, column in self.fields)


def shaped(column: Column, value: Any) -> Any:
    """Return a value as a column holds it; names that the column does not have are left out.

    Raises:
        ValueError: it does not fit the column, or holds more than ``MAX_VALUES`` values.
    """
    return _shape(column, value, StepBudget(MAX_VALUES, "values in one record"), "value")


def _shape(column: Column, value: Any, budget: StepBudget, where: str) -> Any:
    budget.take()
    if value is None:
        return None
    kind = column.kind
    if kind is ColumnKind.STRUCT:
        return {name: _shape(part, value.get(name), budget, name) for name, part in column.fields}
    if kind is ColumnKind.LIST:
        assert column.item is not None
        return [_shape(column.item, each, budget, where) for each in value]
    if kind is ColumnKind.MAP:
        assert column.item is not None
        return [
            (_text(name), _shape(column.item, each, budget, name)) for name, each in value.items()
        ]
    if kind is ColumnKind.JSON:
        return _text(json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False))
    if kind is ColumnKind.STRING:
        return _text(value)
    if kind in (ColumnKind.INT32, ColumnKind.INT64):
        bound = _INT32 if kind is ColumnKind.INT32 else _INT64
        if not -bound <= value < bound:
            raise ValueError(f"{where} is out of the range of {kind.value}")
        return int(value)
    if kind is ColumnKind.DECIMAL:
        return _decimal(column, value, where)
    if kind is ColumnKind.FLOAT64:
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(f"{where} is out of the range of {kind.value}") from error
    return value


def _decimal(column: Column, value: Any, where: str) -> Decimal:
    digits, behind = column.digits
    found = Decimal(value)
    _, taken, exponent = found.as_tuple()
    if not isinstance(exponent, int) or len(taken) + exponent > digits - behind:
        raise ValueError(f"{where} has more than {digits} digits")
    return found


def _text(value: str) -> str:
    if not value.isascii():
        value.encode()  # half a surrogate pair is text in JSON, and nowhere else
    return value


def plain(value: Any) -> Any:
    """Return a decoded value as JSON has it: bytes in base64; times, NaN and infinity as texts."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "isoformat"):  # a date, or a time
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Decimal) else value
