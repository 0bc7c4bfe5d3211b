"""Lazy frames of Polars, which read what a query leaves: for programs without asyncio."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from quorumbook.client.reading.tabular import needs_extra

if TYPE_CHECKING:
    import pyarrow as pa

#: What makes the batches of some columns, within bounds of one of them.
Batches: TypeAlias = "Callable[[Sequence[str], ValueBounds], Iterator[pa.RecordBatch]]"

#: How a comparison reads with its sides exchanged.
_MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq", "Eq": "Eq"}


class ValueBounds(NamedTuple):
    """Between which numbers a column's values are in all rows that are wanted; both included."""

    low: int | None = None
    high: int | None = None

    def and_(self, other: ValueBounds) -> ValueBounds:
        """Return where both hold."""
        lows = [each for each in (self.low, other.low) if each is not None]
        highs = [each for each in (self.high, other.high) if each is not None]
        return ValueBounds(max(lows, default=None), min(highs, default=None))


def lazy_frame(schema: pa.Schema, filler: str, batches: Batches, bounded: str = "") -> Any:
    """Return a lazy frame of Polars, which reads when it is collected.

    Args:
        schema: Of all columns.
        filler: The column that is made where a query wants none.
        batches: What makes the rows.
        bounded: The column by which ``batches`` leaves rows out; empty: there is none.
    """
    with needs_extra("'quorumbook[arrow]' polars"):
        import polars as pl  # noqa: PLC0415
        from polars.io.plugins import register_io_source  # noqa: PLC0415

    def source(
        columns: list[str] | None, predicate: Any, count: int | None, _size: int | None
    ) -> Iterator[Any]:
        wanted = schema.names if columns is None else columns or [filler]
        bounds = (
            ValueBounds() if predicate is None or not bounded else bounds_of(predicate, bounded)
        )
        for batch in batches(wanted, bounds):
            frame: Any = pl.from_arrow(batch)
            if count is not None:
                frame = frame.head(count)
                count -= len(frame)
            yield frame if predicate is None else frame.filter(predicate)
            if count == 0:
                return

    nothing: Any = pl.from_arrow(schema.empty_table())
    return register_io_source(source, schema=nothing.schema)


def bounds_of(predicate: Any, column: str) -> ValueBounds:
    """Return what a filter of Polars says of a column of whole numbers.

    Filters run on the rows in any case, so what is not understood here bounds nothing.
    """
    try:
        return _bounds(json.loads(predicate.meta.serialize(format="json")), column)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ValueBounds()


def _bounds(node: dict[str, Any], column: str) -> ValueBounds:
    if "BinaryExpr" not in node:
        return ValueBounds()
    left, operation, right = (node["BinaryExpr"][name] for name in ("left", "op", "right"))
    if operation in ("And", "LogicalAnd"):
        return _bounds(left, column).and_(_bounds(right, column))
    if "Literal" in left:
        left, right, operation = right, left, _MIRRORED.get(operation, "")
    if left != {"Column": column} or "Literal" not in right:
        return ValueBounds()
    (kind,) = right["Literal"].values()
    (value,) = kind.values()
    if not isinstance(value, int) or isinstance(value, bool):
        return ValueBounds()
    return {
        "Eq": ValueBounds(value, value),
        "Gt": ValueBounds(low=value + 1),
        "GtEq": ValueBounds(low=value),
        "Lt": ValueBounds(high=value - 1),
        "LtEq": ValueBounds(high=value),
    }.get(operation, ValueBounds())
