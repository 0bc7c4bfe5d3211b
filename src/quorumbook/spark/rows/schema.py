"""The columns of ledgers and streams, and which of them a reader makes.

Every column is nullable: Spark demands that a batch's schema equals the declared one exactly.  A
schema given by the user chooses columns, in any order; what is not in it is not made, and without
``value`` no payload is copied.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorumbook.errors import ConfigError

_LONG, _INT, _TEXT, _BYTES, _TIME = (
    LongType(), IntegerType(), StringType(), BinaryType(), TimestampType(),
)  # fmt: skip
_HEADERS = ArrayType(StructType([StructField("key", _TEXT), StructField("value", _BYTES)]))

#: Columns of ``ledger:`` by name; those after ``value`` only when a schema names them.
LEDGER_COLUMNS: Mapping[str, DataType] = {
    "ledger_id": _LONG,
    "entry_id": _LONG,
    "size": _INT,
    "value": _BYTES,
    "lac": _LONG,
    "cum_length": _LONG,
    "digest": _BYTES,
    "fragment": _INT,
    "bookies": ArrayType(_TEXT),
    "ledger_ctime": _TIME,
    "custom_metadata": MapType(_TEXT, _BYTES),
    "_error": _TEXT,
    "_replica": _TEXT,
}

#: Columns of ``stream:``.
STREAM_COLUMNS: Mapping[str, DataType] = {
    "stream": _TEXT,
    "partition": _INT,
    "seq": _LONG,
    "segment": _LONG,
    "ledger_id": _LONG,
    "entry_id": _LONG,
    "slot": _INT,
    "txid": _LONG,
    "timestamp": _TIME,
    "key": _BYTES,
    "value": _BYTES,
    "headers": _HEADERS,
    "_error": _TEXT,
}

#: Columns of ``pulsar:``.
PULSAR_COLUMNS: Mapping[str, DataType] = {
    "topic": _TEXT,
    "partition": _INT,
    "ledger_id": _LONG,
    "entry_id": _LONG,
    "batch_index": _INT,
    "publish_time": _TIME,
    "event_time": _TIME,
    "producer_name": _TEXT,
    "sequence_id": _LONG,
    "key": _BYTES,
    "ordering_key": _BYTES,
    "properties": MapType(_TEXT, _TEXT),
    "schema_version": _LONG,
    "replicated_from": _TEXT,
    "broker_index": _LONG,
    "broker_time": _TIME,
    "value": _BYTES,
    "_error": _TEXT,
}

#: Columns of ``stream:`` with ``compat=kafka``, as Kafka's source has them.
KAFKA_COLUMNS: Mapping[str, DataType] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": _TEXT,
    "partition": _INT,
    "offset": _LONG,
    "timestamp": _TIME,
    "timestampType": _INT,
    "headers": _HEADERS,
    "_error": _TEXT,
}


def struct_of(columns: Mapping[str, DataType], names: tuple[str, ...]) -> StructType:
    """Return a schema of some columns."""
    return StructType([StructField(name, columns[name], True) for name in names])


def check_schema(schema: StructType, columns: Mapping[str, DataType], what: str) -> None:
    """Raise ConfigError unless a user's schema is made of the columns there are.

    Args:
        schema: The user's.
        columns: All there are, by name.
        what: Of what; for the message.
    """
    for field in schema.fields:
        kind = columns.get(field.name)
        if kind is None:
            near = difflib.get_close_matches(field.name, columns, 3, 0.5)
            hint = f"the nearest are {', '.join(near)}" if near else f"it has {', '.join(columns)}"
            raise ConfigError(f"{what} has no column {field.name!r}; {hint}")
        if field.dataType != kind:
            raise ConfigError(
                f"column {field.name} of {what} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after reading"
            )
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise ConfigError(f"a column stands twice in the schema: {', '.join(names)}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the one Arrow schema that Spark takes for a schema."""
    return _arrow_schema(schema.json())


@lru_cache(maxsize=64)
def _arrow_schema(json_text: str) -> pa.Schema:
    schema = StructType.fromJson(json.loads(json_text))
    return to_arrow_schema(schema, timezone="UTC")
