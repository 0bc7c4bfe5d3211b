"""The paths of Apache BookKeeper's HTTP API, with its verbs and keys.

What is about a cluster is answered here.  What is about one bookie is asked of that bookie: the
one that ``bookie=ID`` names, or the only one there is.  Where the peer answers with text or an
empty 404, so does this; passwords, which it shows, are left out.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import urlencode

from quorumbook.admin.access.roles import Role
from quorumbook.admin.facts.bookie_http import ask as ask_bookie
from quorumbook.admin.facts.bookies import DOWN, READ_ONLY, WRITABLE, http_of
from quorumbook.admin.http import bookies as bookie_endpoints
from quorumbook.admin.http.endpoint import Ask, Endpoint, Text
from quorumbook.admin.http.fields import ID_MAX, Field, bad_parameter
from quorumbook.admin.http.problems import ApiError
from quorumbook.client.context import client_store
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

_PAGE = 100
_ENTRIES_PAGE = 1000
_ENTRIES_BYTES = 16 * 1024 * 1024
_ID = Field("integer", "The ledger's id.", minimum=0, maximum=ID_MAX)
_GB = 1 << 30


def _number(ask: Ask, name: str, default: int | None = None) -> int:
    text = ask.query.get(name)
    if text is None or text == "":
        if default is None:
            raise bad_parameter(f"{name} is missing")
        return default
    return int(_ID.read(name, text, is_text=True))


def _is_on(ask: Ask, name: str) -> bool:
    return str(ask.query.get(name, "")).lower() == "true"


# Ledgers -----------------------------------------------------------------------------------


async def _delete_ledger(ask: Ask) -> object:
    await (await ask.service.client()).delete_ledger(_number(ask, "ledger_id"))
    ask.service.forget_facts()
    return Text(b"Deleted ledger\n")


async def _list_ledgers(ask: Ask) -> object:
    client = await ask.service.client()
    with_metadata = _is_on(ask, "print_metadata")
    if not with_metadata:
        return {str(ledger_id): None async for ledger_id in client.list_ledger_ids()}
    page = _number(ask, "page", 1)
    found: dict[str, object] = {}
    number = 0
    async for metadata in client.list_ledgers():
        if (page - 1) * _PAGE <= number < page * _PAGE:
            found[str(metadata.ledger_id)] = _metadata_row(metadata)
        number += 1
        if number >= page * _PAGE:
            break
    return found


async def _ledger_metadata(ask: Ask) -> object:
    metadata = await (await ask.service.client()).ledger_metadata(_number(ask, "ledger_id"))
    return {str(metadata.ledger_id): _metadata_row(metadata)}


def _metadata_row(metadata: LedgerMetadata) -> dict[str, object]:
    return {
        "ledgerId": metadata.ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": metadata.ctime_ms if metadata.ctime_ms is not None else -1,
        "storeCtime": False,
        "hasPassword": bool(metadata.password),
        "digestType": metadata.digest_type.name if metadata.digest_type else None,
        "customMetadata": {
            name: base64.b64encode(value).decode()
            for name, value in metadata.custom_metadata.items()
        },
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(fragment.first_entry_id): [{"id": bookie} for bookie in fragment.ensemble]
            for fragment in metadata.fragments
        },
        "ctoken": metadata.creator_token or 0,
    }


async def _read_ledger(ask: Ask) -> object:
    client = await ask.service.client()
    first, page = _number(ask, "start_entry_id", 0), _number(ask, "page", 0)
    found: dict[str, object] = {}
    size = 0
    async with await client.open_ledger(_number(ask, "ledger_id"), recover=False) as reader:
        last = min(_number(ask, "end_entry_id", ID_MAX), reader.last_add_confirmed)
        if page:
            first += (page - 1) * _ENTRIES_PAGE
            last = min(last, first + _ENTRIES_PAGE - 1)
        if first <= last:
            async for entry in reader.read(first, last):
                size += len(entry.payload)
                if size > _ENTRIES_BYTES:
                    raise ApiError(
                        413, "answer-too-large",
                        f"entries {first} to {last} are more than an answer takes; ask by page=1, "
                        "or for fewer",
                    )  # fmt: skip
                found[str(entry.entry_id)] = entry.payload.decode(errors="backslashreplace")
    return {"Entries for page: ": str(page), **found} if page else found


# Bookies -----------------------------------------------------------------------------------


async def _list_bookies(ask: Ask) -> object:
    kind = str(ask.query.get("type", "rw"))
    state = {"rw": WRITABLE, "ro": READ_ONLY}.get(kind)
    if state is None:
        raise bad_parameter("type is rw or ro")
    facts = await ask.service.facts()
    with_hosts = _is_on(ask, "print_hostnames")
    return {
        bookie.bookie_id: bookie.address.rpartition(":")[0] if with_hosts else None
        for bookie in facts.bookies
        if bookie.state == state
    }


async def _bookie_info(ask: Ask) -> object:
    facts = await ask.service.facts()
    found: dict[str, object] = {}
    sums = [0, 0]
    for bookie in facts.bookies:
        disks = {
            str(row.get("path")): row for row in bookie.directories if row.get("use") == "ledgers"
        }
        free = sum(int(row.get("free_bytes", 0)) for row in disks.values())
        total = sum(int(row.get("total_bytes", 0)) for row in disks.values())
        if bookie.state != DOWN:
            found[bookie.bookie_id] = _space(free, total)
            sums = [sums[0] + free, sums[1] + total]
    found["ClusterInfo: "] = _space(*sums)
    return found


def _space(free: int, total: int) -> str:
    return f": {{Free: {free}({free / _GB:.3f} GB), Total: {total}({total / _GB:.3f} GB)}},"


async def _cluster_info(ask: Ask) -> object:
    facts = await ask.service.facts()
    counts = {state: len(facts.ids(state)) for state in (WRITABLE, READ_ONLY, DOWN)}
    return {
        "auditorElected": facts.auditor is not None,
        "auditorId": facts.auditor or "",
        "clusterUnderReplicated": facts.underreplicated > 0,
        "ledgerReplicationEnabled": facts.is_recovery_enabled,
        "totalBookiesCount": sum(counts.values()),
        "writableBookiesCount": counts[WRITABLE],
        "readonlyBookiesCount": counts[READ_ONLY],
        "unavailableBookiesCount": counts[DOWN],
    }


async def _of_one_bookie(ask: Ask) -> object:
    """Ask the bookie that is meant, by the path that was asked for here."""
    given = dict(ask.query)
    bookie_id = given.pop("bookie", None)
    if bookie_id is None:
        up = [each for each in (await ask.service.facts()).bookies if each.state != DOWN]
        if len(up) != 1:
            raise ApiError(
                400, "bookie-missing",
                f"this server stands for a cluster of {len(up)} bookies; say which: bookie=ID",
            )  # fmt: skip
        bookie_id = up[0].bookie_id
    address = await http_of(client_store(await ask.service.client()), str(bookie_id))
    method = str(ask.path["method"])
    headers = {} if method == "GET" else ask.service.bookie_headers()
    body = json.dumps(dict(ask.body)).encode() if ask.body else None
    target = str(ask.path["path"]) + (f"?{urlencode(given)}" if given else "")
    return await asyncio.to_thread(
        ask_bookie, method, address, target, headers=headers, body=body, timeout_s=30.0
    )


# Auto-recovery -----------------------------------------------------------------------------


async def _queue(ask: Ask) -> UnderreplicationQueue:
    return UnderreplicationQueue(client_store(await ask.service.client()))


async def _recovery_status(ask: Ask) -> object:
    queue = await _queue(ask)
    try:
        wanted = ask.query.get("enabled")
        if ask.path["method"] == "PUT":
            if wanted not in ("true", "false"):
                raise bad_parameter("enabled is true or false")
            await (queue.enable() if wanted == "true" else queue.disable())
            ask.service.forget_facts()
        return {"enabled": await queue.is_enabled()}
    finally:
        queue.close()


async def _recover_bookies(ask: Ask) -> object:
    sources = ask.body.get("bookie_src")
    if (
        not isinstance(sources, list)
        or not sources
        or not all(isinstance(each, str) for each in sources)
    ):
        raise bad_parameter("bookie_src is a list of bookie ids")
    wants_cookie_gone = str(ask.body.get("delete_cookie", "")).lower() == "true"
    return await _start_job(ask, "recover", sources[0], {"delete_cookie": wants_cookie_gone})


async def _decommission(ask: Ask) -> object:
    source = ask.body.get("bookie_src")
    if not isinstance(source, str) or not source:
        raise bad_parameter("bookie_src is a bookie id")
    return await _start_job(ask, "decommission", source, {})


async def _start_job(ask: Ask, kind: str, bookie_id: str, body: dict[str, Any]) -> object:
    """Begin a job as ``/api/v2`` does; the answer has its id, which the peer's has not."""
    wanted = f"/api/v2/bookies/{{bookie}}/{kind}"
    endpoint = next(each for each in bookie_endpoints.ENDPOINTS if each.path == wanted)
    return await endpoint.handle(Ask(ask.service, ask.who, {"bookie": bookie_id}, {}, body))


async def _list_underreplicated(ask: Ask) -> object:
    missing, without = ask.query.get("missingreplica"), ask.query.get("excludingmissingreplica")
    queue = await _queue(ask)
    found: dict[str, object] = {}
    try:
        async for mark in queue.list([]):
            if missing and missing not in mark.replicas:
                continue
            if without and without in mark.replicas:
                continue
            found[str(mark.ledger_id)] = list(mark.replicas)
            if len(found) == _ENTRIES_PAGE:
                break
    finally:
        queue.close()
    if not found:
        raise ApiError(404, "none-under-replicated", "No under replicated ledgers found")
    return found if _is_on(ask, "printmissingreplica") else [int(each) for each in found]


async def _who_is_auditor(ask: Ask) -> object:
    auditor = (await ask.service.facts()).auditor
    if auditor is None:
        raise ApiError(404, "no-auditor", "No auditor elected")
    return Text(f"Auditor: {auditor}\n".encode())


async def _trigger_audit(ask: Ask) -> object:
    queue = await _queue(ask)
    try:
        await queue.set_lost_bookie_delay_s(await queue.lost_bookie_delay_s() or 0)
    finally:
        queue.close()
    return Text(b"Success trigger audit.\n")


async def _lost_bookie_delay(ask: Ask) -> object:
    queue = await _queue(ask)
    try:
        if ask.path["method"] == "GET":
            return Text(f"lostBookieRecoveryDelay value: {await queue.lost_bookie_delay_s() or 0}\n"
                        .encode())  # fmt: skip
        seconds = Field("integer", "", is_required=True, minimum=0, maximum=2**31 - 1).read(
            "delay_seconds", ask.body.get("delay_seconds"), is_text=True
        )
        await queue.set_lost_bookie_delay_s(seconds)
        return Text(b"Success set lost bookie recovery delay.\n")
    finally:
        queue.close()


async def _settings(ask: Ask) -> object:
    return dict(ask.service.options.settings)


def _one(method: str, path: str, role: Role, summary: str, handle: Any) -> Endpoint:
    return Endpoint(method, f"/api/v1/{path}", role, summary, handle, is_lenient=True)


_OF_A_BOOKIE = (
    ("GET", "info", Role.VIEWER), ("GET", "last_log_mark", Role.VIEWER),
    ("GET", "list_disk_file", Role.VIEWER), ("PUT", "expand_storage", Role.OPERATOR),
    ("GET", "gc", Role.VIEWER), ("PUT", "gc", Role.OPERATOR), ("GET", "gc_details", Role.VIEWER),
    ("GET", "gc/suspend_compaction", Role.VIEWER), ("PUT", "gc/suspend_compaction", Role.OPERATOR),
    ("PUT", "gc/resume_compaction", Role.OPERATOR),
    ("GET", "entry_location_compact", Role.VIEWER),
    ("PUT", "entry_location_compact", Role.OPERATOR), ("GET", "state", Role.VIEWER),
    ("GET", "state/readonly", Role.VIEWER), ("PUT", "state/readonly", Role.OPERATOR),
    ("GET", "sanity", Role.OPERATOR), ("GET", "is_ready", Role.VIEWER),
)  # fmt: skip

ENDPOINTS = (
    _one("GET", "config/server_config", Role.VIEWER, "Options that are set here.", _settings),
    _one("DELETE", "ledger/delete", Role.ADMIN, "Delete a ledger.", _delete_ledger),
    _one("GET", "ledger/list", Role.VIEWER, "Ids of all ledgers, or a page of metadata.",
         _list_ledgers),
    _one("GET", "ledger/metadata", Role.VIEWER, "A ledger's metadata.", _ledger_metadata),
    _one("GET", "ledger/read", Role.VIEWER, "Entries as text.", _read_ledger),
    _one("GET", "bookie/list_bookies", Role.VIEWER, "Ids of bookies.", _list_bookies),
    _one("GET", "bookie/list_bookie_info", Role.VIEWER, "Free and total space.", _bookie_info),
    _one("GET", "bookie/cluster_info", Role.VIEWER, "Counts of bookies.", _cluster_info),
    *(
        _one(method, f"bookie/{path}", role, "Asked of one bookie, by bookie=ID.", _of_one_bookie)
        for method, path, role in _OF_A_BOOKIE
    ),
    _one("GET", "autorecovery/status", Role.VIEWER, "Whether it is on.", _recovery_status),
    _one("PUT", "autorecovery/status", Role.OPERATOR, "Switch it.", _recovery_status),
    _one("PUT", "autorecovery/bookie", Role.OPERATOR, "Recover a bookie.", _recover_bookies),
    _one("GET", "autorecovery/list_under_replicated_ledger", Role.VIEWER,
         "Under-replicated ledgers.", _list_underreplicated),
    _one("GET", "autorecovery/who_is_auditor", Role.VIEWER, "The auditor.", _who_is_auditor),
    _one("PUT", "autorecovery/trigger_audit", Role.OPERATOR, "Audit now.", _trigger_audit),
    _one("GET", "autorecovery/lost_bookie_recovery_delay", Role.VIEWER, "The delay.",
         _lost_bookie_delay),
    _one("PUT", "autorecovery/lost_bookie_recovery_delay", Role.OPERATOR, "Set the delay.",
         _lost_bookie_delay),
    _one("PUT", "autorecovery/decommission", Role.ADMIN, "Decommission a bookie.", _decommission),
)  # fmt: skip
