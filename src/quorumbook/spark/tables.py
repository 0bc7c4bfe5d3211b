"""Streams, ledgers and metadata as tables of Spark's session catalog.

Spark 4.3 forgets the options of a table whose source is in Python.  What it keeps, and hands to the
source with every schema, are comments of columns.  So what a table is of stands in the comment of
its first column, as JSON:

    {"quorumbook": 1, "metadataServiceUri": "zk://…", "path": "stream:eu/orders"}

The first column of a stream that can be written is a VARCHAR, because Spark then fits every frame
to the columns of the table, comments included; a frame that has the names and types already would
be taken as it is, without them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StringType, StructField, StructType, VarcharType

from quorumbook.errors import ConfigError
from quorumbook.spark.meta.tables import META_COLUMNS
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.schema import LEDGER_COLUMNS, STREAM_COLUMNS
from quorumbook.spark.source.kinds import kind_of
from quorumbook.streams.errors import SchemaNotFoundError
from quorumbook.streams.partitions.partition_node import partition_count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "quorumbook"
_VERSION = 1
_WRITABLE = ("stream", "partition", "seq", "timestamp", "key", "value", "headers")
_NAME = "VARCHAR(1000)"
#: Options that a table may have, none of which is a secret.
_KEPT = ("namespace", "configFile", "passwordFile", "passwordEnv", "digestType")
_OF_LEDGERS = ("ledger_id", "entry_id", "size", "value")


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is to be."""

    name: str
    #: What its source is told.
    options: Mapping[str, str]
    #: Name and type of each column.
    columns: tuple[tuple[str, str], ...]

    @property
    def comment(self) -> str:
        """The comment of its first column."""
        return json.dumps({_MARK: _VERSION, **self.options}, sort_keys=True)


def options_of(schema: StructType) -> dict[str, str]:
    """Return what the table says that a schema is of; nothing if it is of none of ours.

    Raises:
        ConfigError: a later release made the table.
    """
    comment = schema.fields[0].metadata.get("comment", "") if schema.fields else ""
    found = _parsed(comment)
    if found is None:
        return {}
    if found.pop(_MARK) != _VERSION:
        raise ConfigError("a later release registered the table: `quorumbook spark register` again")
    return {name: str(value) for name, value in found.items()}


def _parsed(comment: str) -> dict[str, Any] | None:
    if not comment.startswith("{"):
        return None
    try:
        found = json.loads(comment)
    except ValueError:
        return None
    return found if _MARK in found else None


def plain_schema(schema: StructType) -> StructType:
    """Return a table's schema as sources have it, without comments and lengths of texts."""
    fields = [
        StructField(
            each.name, StringType() if isinstance(each.dataType, VarcharType) else each.dataType
        )
        for each in schema.fields
    ]
    return StructType(fields)


@dataclass(slots=True)
class Registered:
    """What came of making the tables of a database what they are to be."""

    database: str
    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def register(
    spark: SparkSession,
    metadata_uri: str,
    *names: str,
    database: str = "quorumbook",
    **options: str,
) -> Registered:
    """Make streams, ledgers and metadata tables of Spark's catalog, as they are now.

    Called again it adds, changes and drops tables, so that they are those of a first call; tables
    of others stay.

    Args:
        spark: A session whose catalog outlives it, or that does not end soon.
        metadata_uri: The cluster's, or a namespace's address.
        names: The streams; none: all that there are.
        database: Where the tables are; it is made if it is missing.
        options: Of the connection, as the source has them.

    Raises:
        ConfigError: two tables would have one name, or one of ours that of another's; or an option
            is not one that a table keeps.
        StreamNotFoundError: there is no such stream.
    """
    if others := sorted(options.keys() - set(_KEPT)):
        raise ConfigError(
            f"a table keeps {', '.join(_KEPT)}, where everybody may read them, and not {others[0]}"
        )
    given = {"metadataServiceUri": metadata_uri, **options}
    wanted = {table.name: table for table in _wanted(given, names)}
    found = Registered(database)
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    there = {name: _known(spark, database, name) for name in _tables(spark, database)}
    for name, known in there.items():
        if name in wanted and known is None:
            raise ConfigError(f"the table {database}.{name} is not of Quorumbook; drop it first")
        if known is not None and name not in wanted:
            spark.sql(f"DROP TABLE {_quoted(database, name)}")
            found.dropped.append(name)
    for name, table in wanted.items():
        if there.get(name) == _as_known(table):
            found.kept.append(name)
            continue
        if name in there:
            spark.sql(f"DROP TABLE {_quoted(database, name)}")
        spark.sql(_statement(database, table))
        (found.changed if name in there else found.made).append(name)
    return found


def _wanted(given: Mapping[str, str], names: Sequence[str]) -> list[Table]:
    """Return the tables of metadata and of ledgers, and one or two of each stream."""
    found = [
        Table(f"meta_{name}", {**given, "path": f"meta:{name}"}, _columns(META_COLUMNS[name]))
        for name in META_COLUMNS
    ]
    of_entries = {name: LEDGER_COLUMNS[name] for name in _OF_LEDGERS}
    found.append(Table("meta_payloads", {**given, "path": "ledger:*"}, _columns(of_entries)))
    of_records = _columns({name: STREAM_COLUMNS[name] for name in _WRITABLE})
    for stream in names or _all_streams(given):
        options = {**given, "path": f"stream:{stream}"}
        name = re.sub(r"\W", "_", stream, flags=re.ASCII).lower()
        found.append(Table(name, options, (("stream", _NAME), *of_records[1:])))
        decoded = {**options, "decode": "schema"}
        with contextlib.suppress(SchemaNotFoundError):
            read = ReadOptions.of(decoded)
            kind = kind_of(read)
            of_fields = {each: kind.columns[each] for each in kind.default_columns(read)}
            found.append(Table(f"{name}_fields", decoded, _columns(of_fields)))
    by_name: dict[str, str] = {}
    for table in found:
        path = table.options["path"]
        other = by_name.setdefault(table.name, path)
        if other != path:
            raise ConfigError(f"{other} and {path} would both be the table {table.name}")
    return found


def _all_streams(given: Mapping[str, str]) -> list[str]:
    """Return the names of all streams of the namespace; a partitioned one by its own."""
    cluster = connected(ReadOptions.of({**given, "path": "meta:streams"}).connection)
    return cluster.run(lambda: _names(cluster))


async def _names(cluster: ClusterClient) -> list[str]:
    namespace = await cluster.opened_namespace()
    found: dict[str, None] = {}
    async for name in namespace.streams():
        whole = re.sub(r"/p[0-9]+$", "", name)
        if whole not in found:
            is_part = whole != name and await partition_count(namespace, whole) is not None
            found[whole if is_part else name] = None
    return list(found)


def _columns(kinds: Mapping[str, DataType]) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind.simpleString()) for name, kind in kinds.items())


def _tables(spark: SparkSession, database: str) -> list[str]:
    found = spark.sql(f"SHOW TABLES IN {_quoted(database)}").collect()
    return [row["tableName"] for row in found if not row["isTemporary"]]


def _known(spark: SparkSession, database: str, name: str) -> list[Any] | None:
    """Return what a table is, to be compared; None if it is not one of ours."""
    rows = spark.sql(f"DESCRIBE TABLE {_quoted(database, name)}").collect()
    if not rows or _parsed(rows[0]["comment"] or "") is None:
        return None
    return [rows[0]["comment"], *([row["col_name"], _described(row["data_type"])] for row in rows)]


def _as_known(table: Table) -> list[Any]:
    return [table.comment, *([name, _described(kind)] for name, kind in table.columns)]


def _described(kind: str) -> str:
    """Return a type as a description has it, which may say string of a VARCHAR."""
    return "string" if kind.lower().startswith("varchar") else kind


def _statement(database: str, table: Table) -> str:
    (first, kind), *others = table.columns
    columns = [f"{_quoted(first)} {kind} COMMENT {_text(table.comment)}"]
    columns += [f"{_quoted(name)} {kind}" for name, kind in others]
    place = _quoted(database, table.name)
    return f"CREATE TABLE {place} ({', '.join(columns)}) USING quorumbook"


def _quoted(*names: str) -> str:
    doubled = (name.replace("`", "``") for name in names)
    return ".".join(f"`{name}`" for name in doubled)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
