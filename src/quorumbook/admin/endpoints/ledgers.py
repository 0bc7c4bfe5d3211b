"""Ledgers: search, one ledger's picture, its entries, closing and deleting it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints.records import payload_of, shown_bytes
from quorumbook.admin.facts.decoding import stream_of
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
from quorumbook.admin.http.problems import ApiError
from quorumbook.client.context import client_store
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env import patience
from quorumbook.errors import QuorumbookError
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.streams.errors import StreamError

_NAMES = {"id": Field("integer", "The ledger's id.", minimum=0, maximum=ID_MAX, example=7)}
_PASSWORD = Field("string", "The ledger's password, as text; in the header "
                  "Quorumbook-Ledger-Password.", max_length=1000)  # fmt: skip
_DAMAGED_MAX = 100
#: So long a page searches before it shows what it has found, and how far it has come.
_SEARCH_S = 0.7
_ENTRY_BYTES_MAX = 4 * 1024 * 1024


async def ledgers(ask: Ask) -> dict[str, object]:
    """Return a page of ledgers, and which could not be read on the way."""
    page = await ledger_page(
        client_store(await ask.service.client()),
        _filter(ask.query),
        ask.query["limit"],
        _SEARCH_S if ask.is_page else None,
    )
    return {
        "ledgers": [ledger_row(metadata) for metadata in page.ledgers],
        "next_after": page.next_after,
        **({"is_cut": page.is_cut} if ask.is_page else {}),
        "damaged": [str(error) for error in page.damaged[:_DAMAGED_MAX]],
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
        **await _owner(ask, metadata),
        "underreplicated_on": list(lacking),
        "worker": worker,
    }


async def _owner(ask: Ask, metadata: LedgerMetadata) -> dict[str, object]:
    """Return of which stream a ledger is, and who writes it; other writers tell nobody."""
    owner = stream_of(metadata.custom_metadata)
    if owner is None:
        return {"stream": None, "writer": None}
    writer = None
    if not metadata.is_closed:
        with contextlib.suppress(QuorumbookError):
            namespace = await ask.service.streams.namespace(owner[0])
            damaged: list[StreamError] = []
            writer = (await namespace.stream(owner[1]).info(damaged.append)).writer or None
    return {"stream": {"namespace": owner[0], "name": owner[1]}, "writer": writer}


async def entries(ask: Ask) -> dict[str, object]:
    """Return some entries of a ledger; the ledger is not changed by that."""
    first, last = ask.query["first"], ask.query["last"]
    if last is not None and last < first:
        raise bad_parameter(f"last {last} is before first {first}")
    client = await ask.service.client()
    password = _password(ask)
    reader = await client.open_ledger(ask.path["id"], password=password, recover=False)
    rows: list[dict[str, object]] = []
    size = 0
    async with reader:
        if ask.query.get("wait_s"):
            await _wait_for(reader, first, ask.query["wait_s"])
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


async def _wait_for(reader: LedgerReader, first: int, wait_s: float) -> None:
    """Wait until an entry is confirmed, or the ledger is closed."""
    with contextlib.suppress(TimeoutError):
        async with patience.timeout(wait_s), contextlib.aclosing(reader.tail(first)) as entries:
            async for _ in entries:
                return


async def _create(ask: Ask) -> object:
    client = await ask.service.client()
    ensemble, write, ack = ask.service.options.quorums
    ensemble = ask.body["ensemble_size"] or ensemble
    write = ask.body["write_quorum_size"] or min(write, ensemble)
    custom = ask.body["custom"] or {}
    if not all(isinstance(value, str) for value in custom.values()):
        raise bad_parameter("custom must be an object of texts")
    payloads = _payloads(ask)
    options: Any = {
        "ensemble_size": ensemble,
        "write_quorum_size": write,
        "ack_quorum_size": ask.body["ack_quorum_size"] or min(ack, write),
        "password": _password(ask),
        "custom_metadata": {name: value.encode() for name, value in custom.items()},
        "ledger_id": ask.body["ledger_id"],
    }
    if payloads:
        return await _written(ask, await client.create_ledger(**options), payloads)
    ledger_id = await client.create_unwritten_ledger(**options)
    ask.service.forget_facts()
    return {"ledger_id": ledger_id, "state": "open", "entries": 0, "bytes": 0}


async def _write(ask: Ask) -> object:
    payloads = _payloads(ask)
    if not payloads:
        raise bad_parameter("entries is empty")
    client = await ask.service.client()
    writer = await client.claim_unwritten_ledger(ask.path["id"], password=_password(ask))
    return await _written(ask, writer, payloads)


def _payloads(ask: Ask) -> list[bytes]:
    given = enumerate(ask.body["entries"] or ())
    return [payload_of(f"entries[{number}]", entry) for number, entry in given]


async def _written(ask: Ask, writer: LedgerWriter, payloads: list[bytes]) -> dict[str, object]:
    async with writer:
        await writer.append_batch(payloads)
    ask.service.forget_facts()
    return {
        "ledger_id": writer.id,
        "state": "closed",
        "entries": writer.last_add_confirmed + 1,
        "bytes": writer.length,
    }


def _password(ask: Ask) -> bytes:
    return str(ask.query.get("password") or "").encode()


async def entry_replicas(ask: Ask) -> dict[str, object]:
    """Return what each bookie of an entry's write set gives of it; none of its content."""
    found = await replicas(await ask.service.client(), ask.path["id"], ask.path["entry"])
    return {"ledger_id": ask.path["id"], "entry_id": ask.path["entry"], "replicas": found}


async def _recover(ask: Ask) -> object:
    client = await ask.service.client()
    accept_loss = ask.body["accept_loss"]
    if accept_loss and not ask.who.may(Role.ADMIN):
        raise ApiError(403, "role", "to give entries up takes the role admin")
    opening = client.open_ledger(
        ask.path["id"], password=_password(ask), accept_loss=accept_loss
    )  # fmt: skip
    async with await opening as reader:
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
    "limit": Field("integer", "At most this many.", default=100, minimum=1, maximum=1000),
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
ENTRY = Field("integer", "The entry.", minimum=0, maximum=ID_MAX, example=0)
ENTRIES_QUERY = {
    "first": Field("integer", "The first entry.", default=0, minimum=0, maximum=ID_MAX),
    "last": Field("integer", "The last entry.", minimum=0, maximum=ID_MAX),
    "limit": Field("integer", "At most this many.", default=100, minimum=1, maximum=1000),
    "wait_s": Field("number", "Wait so long for the first, while the ledger is written.",
                    default=0, minimum=0, maximum=60),
    "password": _PASSWORD,
}  # fmt: skip
_ENTRIES = Field("array", "Objects with one of text, json and base64.", max_length=10_000,
                 example=[{"text": "hello"}, {"json": {"flight": 1}}])  # fmt: skip
_QUORUM: Any = {"minimum": 1, "maximum": 1000}
NEW_LEDGER = {
    "entries": _ENTRIES,
    "ensemble_size": Field("integer", "Bookies it is spread over; else as configured.", **_QUORUM),
    "write_quorum_size": Field("integer", "Bookies each entry is sent to.", **_QUORUM),
    "ack_quorum_size": Field("integer", "Bookies that must have synced an entry.", **_QUORUM),
    "custom": Field("object", "Custom metadata: names and texts.", example={"team": "blue"}),
    "ledger_id": Field("integer", "Its id; a new one if not given.", minimum=0, maximum=ID_MAX),
}

ENDPOINTS = (
    Endpoint("GET", "/api/v2/ledgers", Role.VIEWER, "Ledgers, page by page.", ledgers,
             query=LIST_QUERY, command="quorumbook ledger ls"),
    Endpoint("POST", "/api/v2/ledgers", Role.OPERATOR,
             "Create a ledger. With entries it is written and closed, without it waits for its "
             "writer.", _create, query={"password": _PASSWORD}, body=NEW_LEDGER, status=201,
             command="quorumbook ledger write"),
    Endpoint("POST", "/api/v2/ledgers/{id}/entries", Role.OPERATOR,
             "Write a ledger that waits for its writer, and close it.", _write,
             query={"password": _PASSWORD}, body={"entries": dataclasses.replace(
                 _ENTRIES, is_required=True)}, names=_NAMES,
             command="quorumbook ledger write {id}"),
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
             query={"password": _PASSWORD},
             body={"accept_loss": Field("boolean", "Close it also where nobody has its last "
                                        "entries any more; takes the role admin.", default=False)},
             names=_NAMES, command="quorumbook ledger recover {id}"),
    Endpoint("DELETE", "/api/v2/ledgers/{id}", Role.ADMIN, "Delete a ledger for good.", _delete,
             names=_NAMES, command="quorumbook ledger delete {id} --yes"),
)  # fmt: skip
