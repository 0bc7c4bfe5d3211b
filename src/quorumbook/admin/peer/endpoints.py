"""Every path of Apache BookKeeper's HTTP API; here what is about a cluster.

Where the peer answers with text, so does this.  Three things are different on purpose: passwords,
which it shows, are left out; a list with metadata has them decoded, where it gives bytes as text
unless it is asked otherwise; and every error is a problem object with a status that says whose
fault it is.
"""

from __future__ import annotations

import base64
from typing import Any

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints import bookies as bookie_endpoints
from quorumbook.admin.facts.bookies import DOWN, READ_ONLY, WRITABLE
from quorumbook.admin.http.endpoint import Ask, Endpoint, Text
from quorumbook.admin.http.fields import ID_MAX, Field, bad_parameter
from quorumbook.admin.http.problems import ApiError
from quorumbook.admin.peer import of_bookie
from quorumbook.client.context import client_store
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

_PAGE = 100
_ENTRIES_PAGE = 1000
_ENTRIES_BYTES = 16 * 1024 * 1024
_ID = Field("integer", "The ledger's id.", minimum=0, maximum=ID_MAX)


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
    ledger_id = _number(ask, "ledger_id")
    await (await ask.service.client()).delete_ledger(ledger_id)
    ask.service.forget_facts()
    return f"Deleted ledger: {ledger_id}"


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
        raise bad_parameter("type must be rw or ro")
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
            found[bookie.bookie_id] = f": {_space(free, total)},"
            sums = [sums[0] + free, sums[1] + total]
    found["ClusterInfo: "] = _space(*sums)
    return found


def _space(free: int, total: int) -> str:
    return f"{{Free: {free}({_gb(free)}GB), Total: {total}({_gb(total)}GB)}}"


def _gb(count: int) -> str:
    """Return billions of bytes, cut after three digits as the peer does."""
    return f"{count / 1e9:.3f}".rstrip("0").rstrip(".")


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


# Auto-recovery -----------------------------------------------------------------------------


async def _queue(ask: Ask) -> UnderreplicationQueue:
    return UnderreplicationQueue(client_store(await ask.service.client()))


async def _recovery_status(ask: Ask) -> object:
    queue = await _queue(ask)
    try:
        wanted = ask.query.get("enabled")
        if ask.path["method"] == "PUT":
            if wanted not in ("true", "false"):
                raise bad_parameter("enabled must be true or false")
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
        raise bad_parameter("bookie_src must be a list of bookie ids")
    wants_cookie_gone = str(ask.body.get("delete_cookie", "")).lower() == "true"
    await _start_job(ask, "recover", sources[0], {"delete_cookie": wants_cookie_gone})
    return Text(b"Success send recovery request command.")


async def _decommission(ask: Ask) -> object:
    source = ask.body.get("bookie_src")
    if not isinstance(source, str) or not source:
        raise bad_parameter("bookie_src must be a bookie id")
    await _start_job(ask, "decommission", source, {})
    return Text(f"Success send decommission Bookie command {source}".encode())


async def _start_job(ask: Ask, kind: str, bookie_id: str, body: dict[str, Any]) -> None:
    """Begin a job as ``/api/v2`` does; ``/api/v2/jobs`` shows how it goes."""
    wanted = f"/api/v2/bookies/{{bookie}}/{kind}"
    endpoint = next(each for each in bookie_endpoints.ENDPOINTS if each.path == wanted)
    await endpoint.handle(Ask(ask.service, ask.who, {"bookie": bookie_id}, {}, body))


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
    return Text(f"Auditor: {auditor}".encode())


async def _trigger_audit(ask: Ask) -> object:
    queue = await _queue(ask)
    try:
        await queue.ask_for_audit()
    finally:
        queue.close()
    return Text(b"Success trigger audit.")


async def _lost_bookie_delay(ask: Ask) -> object:
    queue = await _queue(ask)
    try:
        if ask.path["method"] == "GET":
            delay_s = await queue.lost_bookie_delay_s() or 0
            return Text(f"lostBookieRecoveryDelay value: {delay_s}".encode())
        seconds = Field("integer", "", is_required=True, minimum=0, maximum=2**31 - 1).read(
            "delay_seconds", ask.body.get("delay_seconds"), is_text=True
        )
        await queue.set_lost_bookie_delay_s(seconds)
        return Text(f"Success set lostBookieRecoveryDelay to {seconds}".encode())
    finally:
        queue.close()


async def _settings(ask: Ask) -> object:
    if "bookie" in ask.query:
        return await of_bookie.options(ask)
    return dict(ask.service.options.settings)


async def _set_settings(_ask: Ask) -> object:
    raise ApiError(
        409, "options-are-fixed",
        "options are read at the start; set them in the configuration file and start again",
    )  # fmt: skip


def _one(method: str, path: str, role: Role, summary: str, handle: Any) -> Endpoint:
    return Endpoint(method, f"/api/v1/{path}", role, summary, handle, is_lenient=True)


ENDPOINTS = (
    _one("GET", "config/server_config", Role.VIEWER, "Options that are set here.", _settings),
    _one("PUT", "config/server_config", Role.ADMIN, "Refused: options are read at the start.",
         _set_settings),
    _one("DELETE", "ledger/delete", Role.ADMIN, "Delete a ledger.", _delete_ledger),
    _one("GET", "ledger/list", Role.VIEWER, "Ids of all ledgers, or a page of metadata.",
         _list_ledgers),
    _one("GET", "ledger/metadata", Role.VIEWER, "A ledger's metadata.", _ledger_metadata),
    _one("GET", "ledger/read", Role.VIEWER, "Entries as text.", _read_ledger),
    _one("GET", "bookie/list_bookies", Role.VIEWER, "Ids of bookies.", _list_bookies),
    _one("GET", "bookie/list_bookie_info", Role.VIEWER, "Free and total space.", _bookie_info),
    _one("GET", "bookie/cluster_info", Role.VIEWER, "Counts of bookies.", _cluster_info),
    *of_bookie.ENDPOINTS,
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
