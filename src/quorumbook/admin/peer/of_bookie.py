"""Apache BookKeeper's paths about one bookie: asked of it, and answered with the peer's keys.

The bookie is the one that ``bookie=ID`` names, or the only one there is.  One of ours answers with
keys of its own where it has more to say; a Java bookie's answers go through as they are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints.bookies import known_bookie
from quorumbook.admin.facts.bookie_http import ask as ask_bookie
from quorumbook.admin.facts.bookies import DOWN, READ_ONLY, BookieFacts, http_of
from quorumbook.admin.http.endpoint import Ask, Endpoint, Text
from quorumbook.admin.http.fields import bad_parameter
from quorumbook.admin.http.problems import ApiError
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import QuorumbookError

_ROOT = "/api/v1/bookie"
_TIMEOUT_S = 30.0
#: Entries that the sanity test writes and reads.
_TRIED = 3
#: Makes the peer's answer of ours.
Shape: TypeAlias = Callable[[Any], object]


async def meant(ask: Ask) -> BookieFacts:
    """Return the bookie that a request is about.

    Raises:
        ApiError: It does not say which, or there is no such bookie.
    """
    bookie_id = ask.query.get("bookie")
    if bookie_id is not None:
        return await known_bookie(ask, str(bookie_id))
    up = [each for each in (await ask.service.facts()).bookies if each.state != DOWN]
    if len(up) != 1:
        raise ApiError(
            400, "bookie-missing",
            f"this server stands for a cluster of {len(up)} bookies; say which: bookie=ID",
        )  # fmt: skip
    return up[0]


async def _pass_on(ask: Ask, bookie: BookieFacts, path: str, *, target: str = "") -> Any:
    """Have a bookie answer; ``target`` takes the place of path and query."""
    address = await http_of(client_store(await ask.service.client()), bookie.bookie_id)
    method = str(ask.path["method"])
    given = {name: value for name, value in ask.query.items() if name != "bookie"}
    headers = {} if method == "GET" and not target else ask.service.bookie_headers()
    body = json.dumps(dict(ask.body)).encode() if ask.body else None
    return await asyncio.to_thread(
        ask_bookie, method, address,
        target or _ROOT + path + (f"?{urlencode(given)}" if given else ""),
        headers=headers, body=body, timeout_s=_TIMEOUT_S,
    )  # fmt: skip


async def options(ask: Ask) -> dict[str, str]:
    """Return the options of a bookie of ours that differ from their default, as texts.

    A Java bookie is not asked: it would give passwords away.
    """
    found = await _pass_on(ask, await meant(ask), "", target=f"{_ROOT}/options")
    return {str(row["option"]): str(row["value"]) for row in found["options"]}


def _asked(path: str, shape: Shape) -> Callable[[Ask], Awaitable[object]]:
    async def answer(ask: Ask) -> object:
        found = await _pass_on(ask, await meant(ask), path)
        return shape(found) if _is_ours(found) else found

    return answer


def _is_ours(found: object) -> bool:
    keys = ("is_running", "read_only", "triggered", "is_suspended")
    return isinstance(found, Mapping) and any(key in found for key in keys)


def _word(value: object) -> str:
    return "true" if value else "false"


def _gc_details(found: Mapping[str, Any]) -> object:
    """Return the peer's counters; it has an array, of one for each storage."""
    return [
        {
            "forceCompacting": found["is_running"],
            "majorCompacting": False,
            "minorCompacting": False,
            "lastMajorCompactionTime": 0,
            "lastMinorCompactionTime": 0,
            "lastEntryLocationCompactionTime": 0,
            "majorCompactionCounter": found["major_compactions"],
            "minorCompactionCounter": found["minor_compactions"],
            "entryLocationCompactionCounter": 0,
        }
    ]


async def _suspended(ask: Ask) -> object:
    bookie = await meant(ask)
    found = await _pass_on(ask, bookie, "/gc_details")
    if not _is_ours(found):
        return await _pass_on(ask, bookie, "/gc/suspend_compaction")
    word = _word(found["is_suspended"])
    return {"isMinorGcSuspended": word, "isMajorGcSuspended": word}


def _told(path: str, text: str) -> Callable[[Ask], Awaitable[object]]:
    """Have something done, and say so with the peer's words; it makes JSON texts of them."""

    async def answer(ask: Ask) -> object:
        bookie = await meant(ask)
        found = await _pass_on(ask, bookie, path)
        return text.format(bookie.bookie_id) if _is_ours(found) else found

    return answer


async def _set_read_only(ask: Ask) -> object:
    if not isinstance(ask.body.get("readOnly"), bool):
        raise bad_parameter("readOnly must be true or false")
    found = await _pass_on(ask, await meant(ask), "/state/readonly")
    ask.service.forget_facts()
    return {"readOnly": found["read_only"]} if _is_ours(found) else found


async def _index_compaction(ask: Ask) -> object:
    """Say of each index whether it is being compacted: SQLite's never is."""
    rows = await _pass_on(ask, await meant(ask), "", target=f"{_ROOT}/directories")
    found = [str(row["path"]) for row in rows if row["use"] == "ledgers"]
    return {f"{path}/current/index.sqlite": False for path in found[:1]}


async def _compact_index(ask: Ask) -> object:
    bookie = await meant(ask)
    raise ApiError(
        409, "nothing-to-compact",
        f"{bookie.bookie_id} keeps its index in SQLite, which reuses its space by itself",
    )  # fmt: skip


async def _expand_storage(ask: Ask) -> object:
    bookie = await meant(ask)
    raise ApiError(
        409, "restart-needed",
        f"{bookie.bookie_id} takes new directories at its start: add them to "
        "storage.ledger_directories, set bookie.allow_storage_expansion, and start it again",
    )  # fmt: skip


async def _sanity(ask: Ask) -> object:
    """Write a ledger to one bookie alone, read it, and delete it."""
    bookie = await meant(ask)
    if bookie.state == READ_ONLY:
        return {"passed": False, "readOnly": True}
    options = (await ask.service.client()).options
    placement = dataclasses.replace(
        options.placement, policy="local-bookie", local_bookie=bookie.bookie_id
    )
    client = BookKeeper(
        ask.service.options.metadata_uri, options=dataclasses.replace(options, placement=placement)
    )
    try:
        async with client:
            return {"passed": await _tried(client, bookie.bookie_id), "readOnly": False}
    except QuorumbookError:
        return {"passed": False, "readOnly": False}


async def _tried(client: BookKeeper, bookie_id: str) -> bool:
    async with client.create_ledger(
        ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
    ) as writer:
        for number in range(_TRIED):
            await writer.append(b"sanity %d" % number)
    try:
        async with await client.open_ledger(writer.id) as reader:
            found = [each.payload async for each in reader.read(0, _TRIED - 1)]
            is_there = reader.metadata.fragments[0].ensemble == (bookie_id,)
    finally:
        await client.delete_ledger(writer.id)
    return is_there and found == [b"sanity %d" % number for number in range(_TRIED)]


async def _is_ready(ask: Ask) -> object:
    """Say whether a bookie serves; its own answer is no JSON."""
    bookie = await meant(ask)
    if bookie.state == DOWN:
        raise ApiError(503, "bookie-down", f"{bookie.bookie_id} is down")
    return Text(b"OK")


def _same(found: object) -> object:
    return found


def _one(
    method: str, path: str, summary: str, handle: Callable[[Ask], Awaitable[object]]
) -> Endpoint:
    role = Role.VIEWER if method == "GET" and path != "/sanity" else Role.OPERATOR
    return Endpoint(method, _ROOT + path, role, summary, handle, is_lenient=True)


_TRIGGERED = _told("/gc", "Triggered GC on BookieServer: {}")
ENDPOINTS = (
    _one("GET", "/info", "Free and total space of one bookie.", _asked("/info", _same)),
    _one("GET", "/last_log_mark", "Up to where its journal is in the entry logs.",
         _asked("/last_log_mark", _same)),
    _one("GET", "/list_disk_file", "Names of its files.", _asked("/list_disk_file", _same)),
    _one("PUT", "/expand_storage", "Refused: new directories take a restart.", _expand_storage),
    _one("GET", "/gc", "Whether it collects garbage.",
         _asked("/gc", lambda found: {"is_in_force_gc": _word(found["is_running"])})),
    _one("PUT", "/gc", "Collect garbage now.", _TRIGGERED),
    _one("GET", "/gc_details", "Counters of its collection.", _asked("/gc_details", _gc_details)),
    _one("GET", "/gc/suspend_compaction", "Whether compaction is suspended.", _suspended),
    _one("PUT", "/gc/suspend_compaction", "Suspend compaction.",
         _told("/gc/suspend_compaction", "Suspend majorGC on BookieServer: {0}, "
               "Suspend minorGC on BookieServer: {0}")),
    _one("PUT", "/gc/resume_compaction", "Resume it.",
         _told("/gc/resume_compaction", "Resume majorGC on BookieServer: {0}, "
               "Resume minorGC on BookieServer: {0}")),
    _one("GET", "/entry_location_compact", "Whether its index is compacted.", _index_compaction),
    _one("PUT", "/entry_location_compact", "Refused: there is nothing to compact.",
         _compact_index),
    _one("GET", "/state", "Whether it runs and takes adds.", _asked("/state", _same)),
    _one("GET", "/state/readonly", "Whether it refuses plain adds.",
         _asked("/state/readonly", lambda found: {"readOnly": found["read_only"]})),
    _one("PUT", "/state/readonly", "Have it refuse plain adds, or take them again.",
         _set_read_only),
    _one("GET", "/sanity", "Write to it and read.", _sanity),
    _one("GET", "/is_ready", "Whether it serves.", _is_ready),
)  # fmt: skip
