"""The rows of the tables of a cluster; what is damaged is left out, and logged."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

from quorumbook.client.context import Context, client_context, client_store
from quorumbook.client.tables.ledgers import (
    Row,
    copies_at,
    fragment_rows,
    fragments_of,
    ledger_rows,
    owner_of,
    replica_rows,
    undamaged,
)
from quorumbook.env import logger
from quorumbook.errors import MetadataFormatError, QuorumbookError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.cluster import read_instance_id, read_layout
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.v3 import client as v3

_log = logger("client")


class Client(Protocol):
    """What is needed of ``client.client.BookKeeper``."""

    def _running(self) -> Context: ...

    async def bookies(self) -> tuple[frozenset[BookieId], frozenset[BookieId]]:
        """Return the writable and the read-only bookies."""
        ...

    def list_ledger_ids(self) -> AsyncGenerator[LedgerId, None]:
        """Yield the ids of all ledgers."""
        ...


async def states_of(client: Client) -> dict[BookieId, str]:
    """Return how the bookies are that are registered: ``rw`` or ``ro``."""
    writable, read_only = await client.bookies()
    return {**dict.fromkeys(writable, "rw"), **dict.fromkeys(read_only, "ro")}


async def _cluster_rows(client: Client) -> AsyncGenerator[Row, None]:
    store = client_store(client)
    writable, read_only = await client.bookies()
    count = 0
    async for _id in client.list_ledger_ids():
        count += 1
    yield {
        "instance_id": await read_instance_id(store),
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


async def _bookie_rows(client: Client) -> AsyncGenerator[Row, None]:
    store = client_store(client)
    states = await states_of(client)
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
                row |= await _space(client, bookie_id)
            yield row
    finally:
        await registration.close()


async def _space(client: Client, bookie_id: str) -> Row:
    control = client_context(client).bookies.control(bookie_id)
    try:
        answer = await control.request("free space", v3.encode_bookie_info)
    except QuorumbookError:
        return {}  # registered, and not reached now
    return {"total_bytes": answer.total_disk_bytes, "free_bytes": answer.free_disk_bytes}


def _all(client: Client) -> AsyncGenerator[LedgerMetadata, None]:
    return undamaged(client_context(client), client.list_ledger_ids())


async def _ledger_rows(client: Client) -> AsyncGenerator[Row, None]:
    async with contextlib.aclosing(_all(client)) as found:
        async for metadata in found:
            for row in ledger_rows(metadata):
                yield row


async def _fragment_rows(client: Client) -> AsyncGenerator[Row, None]:
    async with contextlib.aclosing(_all(client)) as found:
        async for metadata in found:
            for row in fragment_rows(metadata):
                yield row


async def _replica_rows(client: Client) -> AsyncGenerator[Row, None]:
    states = await states_of(client)
    async with contextlib.aclosing(_all(client)) as found:
        async for metadata in found:
            for row in replica_rows(metadata, states):
                yield row


async def _under_replicated_rows(client: Client) -> AsyncGenerator[Row, None]:
    queue = UnderreplicationQueue(client_store(client))
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


async def _usage_rows(client: Client) -> AsyncGenerator[Row, None]:
    usage: defaultdict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)
    async with contextlib.aclosing(_all(client)) as found:
        async for metadata in found:
            copies: Counter[str] = Counter()
            for _, fragment, last in fragments_of(metadata):
                for position, bookie_id in enumerate(fragment.ensemble):
                    copies[bookie_id] += copies_at(metadata, fragment, last, position) or 0
            entries = max(metadata.last_entry_id + 1, 1)
            for bookie_id, count in copies.items():
                usage[bookie_id, owner_of(metadata)].update(
                    ledgers=1, copies=count, bytes=metadata.length * count // entries
                )
    for (bookie_id, owner), counts in usage.items():
        yield {"bookie_id": bookie_id, "owner": owner, **counts}


#: What makes the rows of each table.
TABLES: Mapping[str, Callable[[Client], AsyncGenerator[Row, None]]] = {
    "cluster": _cluster_rows,
    "bookies": _bookie_rows,
    "ledgers": _ledger_rows,
    "fragments": _fragment_rows,
    "replicas": _replica_rows,
    "under_replicated": _under_replicated_rows,
    "storage_usage": _usage_rows,
}
