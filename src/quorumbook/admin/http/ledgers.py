"""Ledgers: search, one ledger's picture, its entries, closing and deleting it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from quorumbook.admin.access.roles import Role
from quorumbook.admin.facts.ledgers import (
    STATES,
    LedgerFilter,
    ledger_page,
    ledger_picture,
    ledger_row,
)
from quorumbook.admin.facts.replicas import replicas
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import ID_MAX, Field, bad_parameter
from quorumbook.admin.http.records import shown_bytes
from quorumbook.client.context import client_store
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

_NAMES = {"id": Field("integer", "The ledger's id.", minimum=0, maximum=ID_MAX)}
_PASSWORD = Field("string", "The ledger's password, as text; in the header "
                  "Quorumbook-Ledger-Password.", max_length=1000)  # fmt: skip
_DAMAGED_MAX = 100
_ENTRY_BYTES_MAX = 4 * 1024 * 1024


async def ledgers(ask: Ask) -> dict[str, object]:
    """Return a page of ledgers, and which could not be read on the way."""
    page = await ledger_page(
        client_store(await ask.service.client()), _filter(ask.query), ask.query["limit"]
    )
    return {
        "ledgers": [ledger_row(metadata) for metadata in page.ledgers],
        "next_after": page.next_after,
        "damaged": page.damaged[:_DAMAGED_MAX],
        "damaged_count": len(page.damaged),
    }


def _filter(query: Mapping[str, object]) -> LedgerFilter:
    custom: dict[str, bytes | None] = {}
    if given := query["custom"]:
        name, equals, value = str(given).partition("=")
        custom[name] = value.encode() if equals else None
    ages = {}
    now_ms = int(time.time() * 1000)
    for name, field in (
        ("older_than_s", "created_before_ms"),
        ("newer_than_s", "created_after_ms"),
    ):
        if query[name] is not None:
            ages[field] = now_ms - int(float(str(query[name])) * 1000)
    plain = {name: query[name] for name in ("state", "bookie", "min_bytes", "max_bytes", "after")}
    return LedgerFilter(**plain, **ages, custom=custom, text=str(query["text"] or ""))  # type: ignore[arg-type]


async def ledger(ask: Ask) -> dict[str, object]:
    """Return what is known of a ledger."""
    client = await ask.service.client()
    ledger_id = ask.path["id"]
    metadata = await client.ledger_metadata(ledger_id)
    writable, read_only = await client.bookies()
    queue = UnderreplicationQueue(client_store(client))
    try:
        mark = await queue.read(ledger_id)
        worker = await queue.worker_of(ledger_id) if mark else None
    finally:
        queue.close()
    lacking = mark.replicas if mark else ()
    return {
        **ledger_picture(metadata, writable | read_only, tuple(lacking)),
        "underreplicated_on": list(lacking),
        "worker": worker,
    }


async def entries(ask: Ask) -> dict[str, object]:
    """Return some entries of a ledger; the ledger is not changed by that."""
    first, last = ask.query["first"], ask.query["last"]
    if last is not None and last < first:
        raise bad_parameter(f"last {last} is before first {first}")
    client = await ask.service.client()
    password = str(ask.query.get("password") or "").encode()
    reader = await client.open_ledger(ask.path["id"], password=password, recover=False)
    rows: list[dict[str, object]] = []
    size = 0
    async with reader:
        confirmed = reader.last_add_confirmed
        end = min(confirmed, first + ask.query["limit"] - 1)
        if last is not None:
            end = min(end, last)
        if first <= end:
            async with contextlib.aclosing(reader.read(first, end)) as found:
                async for entry in found:
                    if rows and size + len(entry.payload) > _ENTRY_BYTES_MAX:
                        break
                    size += len(entry.payload)
                    rows.append(
                        {
                            "entry_id": entry.entry_id,
                            "bytes": len(entry.payload),
                            **shown_bytes(entry.payload),
                        }
                    )
    after = rows[-1]["entry_id"] if rows else None
    is_more = isinstance(after, int) and after < (
        confirmed if last is None else min(last, confirmed)
    )
    return {
        "ledger_id": ask.path["id"],
        "last_add_confirmed": confirmed,
        "entries": rows,
        "next_first": after + 1 if is_more and isinstance(after, int) else None,
    }


async def entry_replicas(ask: Ask) -> dict[str, object]:
    """Return what each bookie of an entry's write set gives of it; none of its content."""
    found = await replicas(await ask.service.client(), ask.path["id"], ask.path["entry"])
    return {"ledger_id": ask.path["id"], "entry_id": ask.path["entry"], "replicas": found}


async def _recover(ask: Ask) -> object:
    client = await ask.service.client()
    password = str(ask.query.get("password") or "").encode()
    async with await client.open_ledger(ask.path["id"], password=password) as reader:
        ask.service.forget_facts()
        return {
            "ledger_id": ask.path["id"],
            "state": "closed",
            "entries": reader.last_add_confirmed + 1,
            "bytes": reader.metadata.length,
        }


async def _delete(ask: Ask) -> object:
    client = await ask.service.client()
    await client.delete_ledger(ask.path["id"])
    ask.service.forget_facts()
    return {"ledger_id": ask.path["id"], "state": "deleted"}


LIST_QUERY = {
    "after": Field("integer", "Only greater ids: `next_after` of the page before.", minimum=0,
                   maximum=ID_MAX),
    "limit": Field("integer", "So many at most.", default=100, minimum=1, maximum=1000),
    "state": Field("string", "Only in this state.", choices=STATES),
    "bookie": Field("string", "Only with replicas on this bookie.", max_length=300),
    "min_bytes": Field("integer", "Only of this length and more.", minimum=0, maximum=ID_MAX),
    "max_bytes": Field("integer", "Only of this length and less.", minimum=0, maximum=ID_MAX),
    "older_than_s": Field("number", "Only made longer ago.", minimum=0, maximum=10**10),
    "newer_than_s": Field("number", "Only made since.", minimum=0, maximum=10**10),
    "custom": Field("string", "Only with this custom metadata: NAME or NAME=VALUE.",
                    max_length=1000),
    "text": Field("string", "Somewhere in the id or the custom metadata.", max_length=200),
}  # fmt: skip
ENTRY = Field("integer", "The entry.", minimum=0, maximum=ID_MAX)
ENTRIES_QUERY = {
    "first": Field("integer", "The first entry.", default=0, minimum=0, maximum=ID_MAX),
    "last": Field("integer", "The last entry.", minimum=0, maximum=ID_MAX),
    "limit": Field("integer", "So many at most.", default=100, minimum=1, maximum=1000),
    "password": _PASSWORD,
}

ENDPOINTS = (
    Endpoint("GET", "/api/v2/ledgers", Role.VIEWER, "Ledgers, page by page.", ledgers,
             query=LIST_QUERY, command="quorumbook ledger ls"),
    Endpoint("GET", "/api/v2/ledgers/{id}", Role.VIEWER,
             "One ledger: its fragments, and how many replicas of each can be reached.", ledger,
             names=_NAMES, command="quorumbook ledger show {id}"),
    Endpoint("GET", "/api/v2/ledgers/{id}/entries", Role.VIEWER,
             "Entries, up to the last add confirmed.", entries, query=ENTRIES_QUERY,
             names=_NAMES, command="quorumbook ledger read {id}"),
    Endpoint("GET", "/api/v2/ledgers/{id}/entries/{entry}/replicas", Role.VIEWER,
             "What each bookie that should have an entry gives of it: good, damaged, missing, or "
             "unknown.", entry_replicas, names={**_NAMES, "entry": ENTRY}),
    Endpoint("POST", "/api/v2/ledgers/{id}/recover", Role.OPERATOR,
             "Fence the writer out and close the ledger.", _recover,
             query={"password": _PASSWORD}, names=_NAMES,
             command="quorumbook ledger recover {id}"),
    Endpoint("DELETE", "/api/v2/ledgers/{id}", Role.ADMIN, "Delete a ledger for good.", _delete,
             names=_NAMES, command="quorumbook ledger delete {id} --yes"),
)  # fmt: skip
