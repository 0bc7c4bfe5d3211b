"""What columns decoded records have: one set of types for all formats; pure.

A format says which columns a schema has, and decodes a record to a value of Python's.  A value is
made a row of such columns by ``shaped``, which Arrow and Spark take as it is.  Values that fit no
one type, such as a union of several, are columns of JSON text.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from quorumbook.streams.schemas.limits import MAX_TEXT_BYTES, MAX_VALUES, StepBudget

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
        ValueError: it does not fit the column, holds more than ``MAX_VALUES`` values, or texts of
            more than ``MAX_TEXT_BYTES``.
    """
    return _Shaping().of(column, value, "value")


class _Shaping:
    """Shapes the values of one record, and counts them."""

    def __init__(self) -> None:
        self._values = StepBudget(MAX_VALUES, "values in one record")
        self._texts = StepBudget(MAX_TEXT_BYTES, "bytes of texts in one record")

    def of(self, column: Column, value: Any, where: str) -> Any:
        self._values.take()
        if value is None:
            return None
        kind = column.kind
        if kind is ColumnKind.STRUCT:
            return {name: self.of(part, value.get(name), name) for name, part in column.fields}
        if kind is ColumnKind.LIST:
            assert column.item is not None
            return [self.of(column.item, each, where) for each in value]
        if kind is ColumnKind.MAP:
            assert column.item is not None
            return [
                (self.text(name), self.of(column.item, each, name)) for name, each in value.items()
            ]
        if kind is ColumnKind.JSON:
            found = plain(value, self._texts.take)
            return _text(json.dumps(found, separators=(",", ":"), ensure_ascii=False))
        if kind is ColumnKind.STRING:
            return self.text(value)
        if kind is ColumnKind.BYTES:
            self._texts.take(len(value))
            return value
        return _number(column, value, where)

    def text(self, value: str) -> str:
        self._texts.take(len(value))
        return _text(value)


def _number(column: Column, value: Any, where: str) -> Any:
    """Return a value of any other kind: a number, or as it is."""
    kind = column.kind
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


def plain(value: Any, count: Callable[[int], None] = lambda _size: None) -> Any:
    """Return a decoded value as JSON has it: bytes in base64; times, NaN and infinity as texts.

    Args:
        value: It.
        count: Told of the size of each text.
    """
    if isinstance(value, Mapping):
        for name in value:
            count(len(name))
        return {name: plain(each, count) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, count) for each in value]
    if isinstance(value, bytes):
        count(len(value))
        return base64.b64encode(value).decode()
    if isinstance(value, str):
        count(len(value))
    if hasattr(value, "isoformat"):  # a date, or a time
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Decimal) else value
