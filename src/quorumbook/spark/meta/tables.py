"""The tables of ``meta:``: their columns, and their rows out of the metadata.

Tables of ledgers are made by many tasks, each of which reads the metadata of some; the others are
small and made by one.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorumbook.client.context import client_context, client_store
from quorumbook.env import logger
from quorumbook.errors import (
    ConfigError,
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.cluster import read_layout
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.v3 import client as v3
from quorumbook.spark.meta.ledgers import (
    Row,
    copies_at,
    entry_rows,
    fragment_rows,
    ledger_rows,
    metadata_of,
    owner_of,
    replica_rows,
)
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.streams import Namespace
from quorumbook.streams.cursors.shown import lag_to_show
from quorumbook.streams.errors import (
    CorruptRecordsError,
    NamespaceNotBoundError,
    StreamError,
    UnsupportedFormatError,
)
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.transactions.application import Place
from quorumbook.streams.transactions.nodes import TransactionNodes, list_applications

_log = logger("spark")

_L, _I, _S, _B, _T, _F = (
    LongType(), IntegerType(), StringType(), BinaryType(), TimestampType(), BooleanType(),
)  # fmt: skip
_RANGES = ArrayType(StructType([StructField("first", _L), StructField("last", _L)]))

#: Columns by table; what a table has stands in docs/spark.md.
META_COLUMNS: Mapping[str, Mapping[str, DataType]] = {
    "cluster": {
        "instance_id": _S, "ledgers_root": _S, "layout": _S, "writable_bookies": _I,
        "read_only_bookies": _I, "ledgers": _L,
    },
    "bookies": {
        "bookie_id": _S, "state": _S, "endpoints": ArrayType(_S), "rack": _S, "total_bytes": _L,
        "free_bytes": _L, "has_cookie": _F,
    },
    "ledgers": {
        "ledger_id": _L, "state": _S, "ensemble_size": _I, "write_quorum": _I, "ack_quorum": _I,
        "digest": _S, "ctime": _T, "last_entry": _L, "length": _L, "fragments": _I,
        "custom_metadata": MapType(_S, _B), "owner": _S, "metadata_format": _I,
    },
    "fragments": {
        "ledger_id": _L, "fragment": _I, "first_entry": _L, "last_entry": _L,
        "ensemble": ArrayType(_S), "is_closed": _F,
    },
    "replicas": {
        "ledger_id": _L, "fragment": _I, "position": _I, "bookie_id": _S,
        "expected_entries": _L, "bookie_state": _S,
    },
    "entries": {
        "ledger_id": _L, "bookie_id": _S, "expected_entries": _L, "entries": _L,
        "ranges": _RANGES, "error": _S,
    },
    "under_replicated": {
        "ledger_id": _L, "missing": ArrayType(_S), "ctime": _T, "locked_by": _S,
    },
    "streams": {
        "stream": _S, "segments": _I, "records": _L, "first_segment": _L, "last_segment": _L,
        "is_sealed": _F, "writer": _S, "max_txid": _L,
    },
    "segments": {
        "stream": _S, "segment": _L, "ledger_id": _L, "state": _S, "truncation": _S,
        "first_txid": _L, "last_txid": _L, "records": _L, "start_seq": _L, "last_entry": _L,
        "completed_at": _T, "length": _L, "tier": _S, "location": _S,
    },
    "cursors": {
        "stream": _S, "cursor": _S, "segment": _L, "entry_id": _L, "slot": _L,
        "holds_retention": _F, "is_overrun": _F, "lag_records": _L, "lag_bytes": _L,
    },
    "txns": {
        "application": _S, "query": _S, "run": _S, "last_batch": _L, "commits": _L,
        "attempts": _I, "attempt_ledgers": ArrayType(_L), "garbage": _I,
    },
    "storage_usage": {
        "bookie_id": _S, "owner": _S, "ledgers": _L, "copies": _L, "bytes": _L,
    },
}  # fmt: skip
#: Tables whose tasks share the ledgers.
BY_LEDGER = frozenset({"ledgers", "fragments", "replicas", "entries"})


async def rows_by_ledger(
    cluster: ClusterClient, table: str, ids: Sequence[LedgerId]
) -> AsyncGenerator[Row, None]:
    """Yield the rows that a table of ledgers has of some of them."""
    states = await _states(cluster) if table == "replicas" else {}
    async for metadata in metadata_of(cluster, ids):
        if table == "entries":
            found = await entry_rows(cluster, metadata)
        elif table == "replicas":
            found = list(replica_rows(metadata, states))
        else:
            found = list((ledger_rows if table == "ledgers" else fragment_rows)(metadata))
        for row in found:
            yield row


async def _states(cluster: ClusterClient) -> dict[str, str]:
    writable, read_only = await cluster.client.bookies()
    return {**dict.fromkeys(writable, "rw"), **dict.fromkeys(read_only, "ro")}


async def _cluster_rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
    store = client_store(cluster.client)
    writable, read_only = await cluster.client.bookies()
    count = 0
    async for _id in cluster.client.list_ledger_ids():
        count += 1
    yield {
        "instance_id": cluster.instance_id,
        "ledgers_root": store.ledgers_root,
        "layout": (await read_layout(store)).kind.name.lower(),
        "writable_bookies": len(writable),
        "read_only_bookies": len(read_only),
        "ledgers": count,
    }


async def _racks(store: MetadataStore) -> dict[str, str]:
    try:
        return await RackTable(store).read()
    except MetadataFormatError as error:
        _log.error("no racks of bookies: %s", error)
        return {}


async def _info(registration: BookieRegistration, bookie_id: str) -> BookieServiceInfo | None:
    try:
        return await registration.service_info(bookie_id)
    except MetadataFormatError as error:
        _log.error("no endpoints of bookie %s: %s", bookie_id, error)
        return None


async def _bookie_rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
    store = client_store(cluster.client)
    states = await _states(cluster)
    cookies = set(await CookieStore(store).list())
    racks = await _racks(store)
    registration = BookieRegistration(store)
    try:
        for bookie_id in sorted({*states, *cookies}):
            info = await _info(registration, bookie_id) if bookie_id in states else None
            row: Row = {
                "bookie_id": bookie_id,
                "state": states.get(bookie_id, "down"),
                "endpoints": [f"{e.protocol}://{e.host}:{e.port}" for e in info.endpoints]
                if info is not None
                else [],
                "rack": racks.get(bookie_id) or racks.get(bookie_id.rpartition(":")[0]),
                "has_cookie": bookie_id in cookies,
            }
            if bookie_id in states:
                row |= await _space(cluster, bookie_id)
            yield row
    finally:
        await registration.close()


async def _space(cluster: ClusterClient, bookie_id: str) -> Row:
    control = client_context(cluster.client).bookies.control(bookie_id)
    try:
        answer = await control.request("free space", v3.encode_bookie_info)
    except QuorumbookError:
        return {}  # registered, and not reached now
    return {"total_bytes": answer.total_disk_bytes, "free_bytes": answer.free_disk_bytes}


async def _under_replicated_rows(
    cluster: ClusterClient, _: ReadOptions
) -> AsyncGenerator[Row, None]:
    queue = UnderreplicationQueue(client_store(cluster.client))
    try:
        damaged: list[MetadataFormatError] = []
        async for mark in queue.list(damaged):
            yield {
                "ledger_id": mark.ledger_id,
                "missing": list(mark.replicas),
                "ctime": None if mark.ctime_ms is None else mark.ctime_ms * 1000,
                "locked_by": await queue.worker_of(mark.ledger_id),
            }
        for error in damaged:
            _log.error("left out of the under-replicated ledgers: %s", error)
    finally:
        queue.close()


async def _namespace(cluster: ClusterClient) -> Namespace | None:
    try:
        return await cluster.opened_namespace()
    except NamespaceNotBoundError:
        return None  # a cluster without streams has empty tables of them


async def _stream_rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
    namespace = await _namespace(cluster)
    if namespace is None:
        return
    async for name in namespace.streams():
        try:
            info = await namespace.stream(name).info(_left_out)
        except (CorruptRecordsError, UnsupportedFormatError, ConfigError) as error:
            _log.error("left out of the streams: %s: %s", name, error)
            continue
        numbers = [segment.metadata.number for segment in info.segments]
        yield {
            "stream": name,
            "segments": len(numbers),
            "records": info.record_count,
            "first_segment": min(numbers, default=None),
            "last_segment": max(numbers, default=None),
            "is_sealed": info.is_sealed,
            "writer": info.writer or None,
            "max_txid": info.max_txid,
        }


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Log what is damaged, and go on without it."""
    try:
        yield
    except (MetadataFormatError, CorruptRecordsError, UnsupportedFormatError) as error:
        _log.error("not known is %s: %s", what, error)


def _left_out(error: StreamError) -> None:
    _log.error("left out of the segments: %s", error)


async def _segment_rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
    namespace = await _namespace(cluster)
    if namespace is None:
        return
    async for name in namespace.streams():
        async for row in segment_rows(cluster, namespace, name):
            yield row


async def segment_rows(
    cluster: ClusterClient, namespace: Namespace, name: str
) -> AsyncGenerator[Row, None]:
    """Yield the rows of ``meta:segments`` that are of one stream."""
    stream = namespace.stream(name)
    tier = TierNodes(stream_context(stream).nodes)
    in_files = set(await tier.numbers())
    for segment in await stream.readable_segments(_left_out):
        metadata = segment.metadata
        is_complete = not metadata.is_in_progress
        where = f"segment {metadata.number} of stream {name}"
        stored = None
        if metadata.number in in_files:
            with _named(f"the files of {where}"):
                stored = await tier.read(metadata.number)
        length = None
        try:
            with _named(f"the ledger of {where}"):
                found = await cluster.client.ledger_metadata(metadata.ledger_id)
                length = found.length if found.is_closed else None
        except NoSuchLedgerInMetadataError:
            length = None if stored is None else stored.manifest.ledger.length
        yield {
            "stream": name,
            "segment": metadata.number,
            "ledger_id": metadata.ledger_id,
            "state": "completed" if is_complete else "in progress",
            "truncation": metadata.truncation.name.lower(),
            "first_txid": metadata.first_txid,
            "last_txid": metadata.last_txid if is_complete else None,
            "records": metadata.record_count if is_complete else None,
            "start_seq": segment.start_sequence_id if segment.start_sequence_id >= 0 else None,
            "last_entry": metadata.last_entry if is_complete else None,
            "completed_at": metadata.completed_at_ms * 1000 if is_complete else None,
            "length": length,
            "tier": None if stored is None else stored.manifest.state.value,
            "location": None if stored is None else stored.manifest.location,
        }


async def _cursor_rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
    namespace = await _namespace(cluster)
    if namespace is None:
        return
    async for name in namespace.streams():
        for cursor in await namespace.stream(name).cursors():
            lag, damage = await lag_to_show(cursor)
            if damage is not None:
                _log.error("not known is all of cursor %s of stream %s: %s",
                           cursor.name, name, damage)  # fmt: skip
            yield {
                "stream": name,
                "cursor": cursor.name,
                "segment": cursor.position.segment,
                "entry_id": cursor.position.entry,
                "slot": cursor.position.slot,
                "holds_retention": cursor.holds_retention,
                "is_overrun": cursor.is_overrun,
                "lag_records": None if lag is None else lag.records,
                "lag_bytes": None if lag is None else lag.size_bytes,
            }


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
            with _named(f"application {application}"):
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


async def _usage_rows(cluster: ClusterClient, _: ReadOptions) -> AsyncGenerator[Row, None]:
    usage: defaultdict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)
    ids = [ledger_id async for ledger_id in cluster.client.list_ledger_ids()]
    async for metadata in metadata_of(cluster, ids):
        copies: Counter[str] = Counter()
        for fragment in metadata.fragments:
            is_open = fragment is metadata.last_fragment and not metadata.is_closed
            last = None if is_open else metadata.last_entry_of(fragment)
            for position, bookie_id in enumerate(fragment.ensemble):
                copies[bookie_id] += copies_at(metadata, fragment, last, position) or 0
        entries = max(metadata.last_entry_id + 1, 1)
        for bookie_id, count in copies.items():
            usage[bookie_id, owner_of(metadata)].update(
                ledgers=1, copies=count, bytes=metadata.length * count // entries
            )
    for (bookie_id, owner), counts in usage.items():
        yield {"bookie_id": bookie_id, "owner": owner, **counts}


#: The rows of tables that one task makes.
SMALL_TABLES: Mapping[str, Callable[[ClusterClient, ReadOptions], AsyncGenerator[Row, None]]] = {
    "cluster": _cluster_rows,
    "bookies": _bookie_rows,
    "under_replicated": _under_replicated_rows,
    "streams": _stream_rows,
    "segments": _segment_rows,
    "cursors": _cursor_rows,
    "txns": _transaction_rows,
    "storage_usage": _usage_rows,
}
