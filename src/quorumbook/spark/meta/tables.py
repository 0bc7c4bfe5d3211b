"""The tables of ``meta:``: those of the client and of streams, and what only Spark has.

Tables of ledgers are made by many tasks, each of which reads the metadata of some; the others are
small and made by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from quorumbook.autorecovery.copying.verified_reads import listed_entries
from quorumbook.client.context import client_context
from quorumbook.client.tables import cluster as of_cluster
from quorumbook.client.tables import columns as columns_of_cluster
from quorumbook.client.tables.ledgers import (
    Row,
    copies_at,
    fragment_rows,
    fragments_of,
    ledger_rows,
    replica_rows,
    undamaged,
)
from quorumbook.env import logger
from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.streams import Namespace
from quorumbook.streams.errors import (
    NamespaceNotBoundError,
)
from quorumbook.streams.tables import columns as columns_of_streams
from quorumbook.streams.tables import rows as of_streams
from quorumbook.streams.transactions.application import Place
from quorumbook.streams.transactions.nodes import TransactionNodes, list_applications

_log = logger("spark")

_L, _I, _S = LongType(), IntegerType(), StringType()


def _of_spark(schema: pa.Schema) -> Mapping[str, DataType]:
    return {field.name: from_arrow_type(field.type) for field in schema}


_SHARED = {
    name: _of_spark(schema)
    for name, schema in {**columns_of_cluster.SCHEMAS, **columns_of_streams.SCHEMAS}.items()
}
#: Columns by table; what a table has stands in docs/spark.md.
META_COLUMNS: Mapping[str, Mapping[str, DataType]] = {
    **_SHARED,
    "entries": {
        "ledger_id": _L, "bookie_id": _S, "expected_entries": _L, "entries": _L,
        "ranges": ArrayType(StructType([StructField("first", _L), StructField("last", _L)])),
        "error": _S,
    },
    "txns": {
        "application": _S, "query": _S, "run": _S, "last_batch": _L, "commits": _L,
        "attempts": _I, "attempt_ledgers": ArrayType(_L), "garbage": _I,
    },
}  # fmt: skip
#: Tables whose tasks share the ledgers.
BY_LEDGER = frozenset({"ledgers", "fragments", "replicas", "entries"})


async def rows_by_ledger(
    cluster: ClusterClient, table: str, ids: Sequence[LedgerId]
) -> AsyncGenerator[Row, None]:
    """Yield the rows that a table of ledgers has of some of them."""
    states = await of_cluster.states_of(cluster.client) if table == "replicas" else {}

    async def each() -> AsyncGenerator[LedgerId, None]:
        for ledger_id in ids:
            yield ledger_id

    async with contextlib.aclosing(undamaged(client_context(cluster.client), each())) as found:
        async for metadata in found:
            if table == "entries":
                rows = await _entry_rows(cluster, metadata)
            elif table == "replicas":
                rows = list(replica_rows(metadata, states))
            else:
                rows = list((ledger_rows if table == "ledgers" else fragment_rows)(metadata))
            for row in rows:
                yield row


async def _entry_rows(cluster: ClusterClient, metadata: LedgerMetadata) -> list[Row]:
    """Return the rows of ``meta:entries``: what each bookie itself says that it holds."""
    expected: dict[str, int | None] = {}
    for _, fragment, last in fragments_of(metadata):
        for position, bookie_id in enumerate(fragment.ensemble):
            copies = copies_at(metadata, fragment, last, position)
            before = expected.get(bookie_id, 0)
            expected[bookie_id] = None if copies is None or before is None else before + copies
    return [
        await _listed(cluster, metadata.ledger_id, bookie_id, count)
        for bookie_id, count in expected.items()
    ]


async def _listed(
    cluster: ClusterClient, ledger_id: LedgerId, bookie_id: str, expected: int | None
) -> Row:
    row: Row = {"ledger_id": ledger_id, "bookie_id": bookie_id, "expected_entries": expected}
    try:
        runs = await listed_entries(client_context(cluster.client), ledger_id, bookie_id)
    except QuorumbookError as error:
        return row | {"error": str(error)}
    if runs is None:
        return row | {"error": "it cannot list entries"}
    return row | {
        "entries": sum(last - first + 1 for first, last in runs),
        "ranges": [{"first": first, "last": last} for first, last in runs],
    }


async def _namespace(cluster: ClusterClient) -> Namespace | None:
    try:
        return await cluster.opened_namespace()
    except NamespaceNotBoundError:
        return None  # a cluster without streams has empty tables of them


def _of_cluster(table: str) -> Callable[[ClusterClient, ReadOptions], AsyncGenerator[Row, None]]:
    return lambda cluster, _: of_cluster.TABLES[table](cluster.client)


def _of_streams(table: str) -> Callable[[ClusterClient, ReadOptions], AsyncGenerator[Row, None]]:
    async def rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
        namespace = await _namespace(cluster)
        if namespace is not None:
            async for row in of_streams.TABLES[table](namespace):
                yield row

    return rows


async def _transaction_rows(
    cluster: ClusterClient, options: ReadOptions
) -> AsyncGenerator[Row, None]:
    root = options.transactions_root
    places = [Place(cluster.client, None, root)]  # those that write ledgers only
    namespace = await _namespace(cluster)
    if namespace is not None:
        places.append(Place(cluster.client, namespace, root))
    for path, place in {place.path: place for place in places}.items():
        for application in await list_applications(place.store, path):
            with of_streams.named(f"application {application}"):
                yield await _application_row(TransactionNodes(place.store, path, application))


async def _application_row(nodes: TransactionNodes) -> Row:
    head, _ = await nodes.read_head()
    found = await nodes.read_attempts(await nodes.attempts())
    return {
        "application": nodes.application,
        "query": head.query or None,
        "run": head.run or None,
        "last_batch": head.batch,
        "commits": head.epoch,
        "attempts": len(found),
        "attempt_ledgers": [n for attempt in found for n in attempt.record.ledgers],
        "garbage": len(await nodes.garbage()),
    }


#: The rows of tables that one task makes.
SMALL_TABLES: Mapping[str, Callable[[ClusterClient, ReadOptions], AsyncGenerator[Row, None]]] = {
    **{table: _of_cluster(table) for table in of_cluster.TABLES if table not in BY_LEDGER},
    **{table: _of_streams(table) for table in of_streams.TABLES},
    "txns": _transaction_rows,
}
