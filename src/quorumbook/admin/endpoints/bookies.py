"""Bookies: what they say of themselves, read-only and back, collection, and taking them out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from quorumbook.admin.access.roles import Role
from quorumbook.admin.facts.bookie_http import (
    READ_ONLY_PATH,
    is_held_read_only,
    of_kind,
    read_only_path,
    slow_operations,
)
from quorumbook.admin.facts.bookie_http import ask as ask_bookie
from quorumbook.admin.facts.bookies import DOWN, BookieFacts, http_of
from quorumbook.admin.facts.room import no_room
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.jobs import Job
from quorumbook.admin.http.problems import ApiError
from quorumbook.autorecovery.copying.moving import Moved, MoveOptions, Mover, shares
from quorumbook.bookie.slow_operations import KINDS
from quorumbook.client.context import client_store
from quorumbook.errors import ConnectFailedError, NoSuchNodeError, QuorumbookError
from quorumbook.metadata.bookies.cookies import CookieStore

_NAMES = {"bookie": Field("string", "The bookie's id.", max_length=300, example="127.0.0.1:3181")}
_TIMEOUT_S = 10.0
#: It takes a token off loopback.
_OPTIONS_PATH = "/api/v1/bookie/options"
#: What of a bookie's own answers its page shows: name, path.
_PARTS = (
    ("read_only", READ_ONLY_PATH),
    ("gc", "/api/v1/bookie/gc"),
    ("gc_details", "/api/v1/bookie/gc_details"),
    ("scrub", "/api/v1/bookie/scrub"),
    ("storage", "/api/v1/bookie/storage"),
    ("options", _OPTIONS_PATH),
)


async def bookies(ask: Ask) -> dict[str, object]:
    """Return all bookies."""
    facts = await ask.facts()
    return {
        "bookies": [
            {**bookie.row(), "directories": [dict(row) for row in bookie.directories]}
            for bookie in facts.bookies
        ]
    }


async def known_bookie(ask: Ask, bookie_id: str) -> BookieFacts:
    """Return a bookie.

    Raises:
        ApiError: Nothing is known of it.
    """
    for bookie in (await ask.facts()).bookies:
        if bookie.bookie_id == bookie_id:
            return bookie
    for bookie in (await ask.facts(fresh=True)).bookies:
        if bookie.bookie_id == bookie_id:
            return bookie
    raise ApiError(
        404,
        "no-such-bookie",
        f"nothing is known of a bookie {bookie_id[:200]}: it is not registered, has no cookie, and "
        "no ledger names it",
    )


async def bookie(ask: Ask) -> dict[str, object]:
    """Return all that a bookie says of itself."""
    facts = await known_bookie(ask, ask.path["bookie"])
    row: dict[str, object] = {
        **facts.row(),
        "has_cookie": facts.has_cookie,
        "directories": [dict(each) for each in facts.directories],
    }
    if facts.http:
        answers = await asyncio.gather(
            *(_part(ask, facts.http, path) for _, path in _PARTS), return_exceptions=True
        )
        for (name, _), answer in zip(_PARTS, answers, strict=True):
            if not isinstance(answer, BaseException):
                row[name] = answer
    return row


async def slow(ask: Ask) -> dict[str, object]:
    """Return the slowest operations of bookies."""
    bookie_id = ask.query["bookie"]
    if bookie_id:
        chosen = [await known_bookie(ask, bookie_id)]
    else:
        chosen = list((await ask.facts()).bookies)
    addresses = {each.bookie_id: each.http for each in chosen if each.http}
    found = await slow_operations(addresses, ask.service.bookie_headers())
    return {
        "operations": of_kind(found.operations, ask.query["kind"], ask.query["limit"]),
        "unanswered": found.unanswered,
    }


async def _part(ask: Ask, address: str, path: str) -> Any:
    headers = ask.service.bookie_headers() if path == _OPTIONS_PATH else {}
    return await asyncio.to_thread(
        ask_bookie, "GET", address, path, headers=headers, timeout_s=_TIMEOUT_S
    )


async def change_bookie(ask: Ask, bookie_id: str, path: str, body: dict[str, object]) -> Any:
    """Have a bookie change something, and return its answer."""
    address = await http_of(client_store(await ask.service.client()), bookie_id)
    ask.service.forget_facts()
    asking = asyncio.ensure_future(
        asyncio.to_thread(
            ask_bookie,
            "PUT",
            address,
            path,
            headers=ask.service.bookie_headers(),
            body=json.dumps(body).encode(),
            timeout_s=_TIMEOUT_S,
        )
    )
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # No thread can be cancelled: what takes the change back must come after it.
        await asyncio.gather(asking, return_exceptions=True)
        raise


async def _set_read_only(ask: Ask) -> object:
    wanted, reason = ask.body["read_only"], ask.body["reason"]
    await known_bookie(ask, ask.path["bookie"])
    return await set_read_only(ask, ask.path["bookie"], is_read_only=wanted, reason=reason)


async def set_read_only(
    ask: Ask, bookie_id: str, *, is_read_only: bool, reason: str, is_own: bool = False
) -> Any:
    """Have a bookie take no plain adds, or take them again."""
    path = read_only_path(is_read_only=is_read_only, reason=reason, is_own=is_own)
    return await change_bookie(ask, bookie_id, path, {"readOnly": is_read_only})


async def _drain(ask: Ask) -> object:
    bookie_id = ask.path["bookie"]
    facts = await known_bookie(ask, bookie_id)
    if facts.state == DOWN:
        raise ApiError(
            409, "bookie-down", f"{bookie_id} is down: it cannot be drained; recover it instead"
        )
    await _check_room(ask, bookie_id)
    return _start(ask, "drain", bookie_id, lambda job: _move(ask, job, bookie_id, facts))


async def _shares(ask: Ask) -> object:
    bookie_id, limit = ask.path["bookie"], ask.query["limit"]
    await known_bookie(ask, bookie_id)
    async with ask.service.walk():
        found = [share async for share in shares(await ask.service.client(), [bookie_id])]
    rows = [
        {"ledger_id": each.ledger_id, "state": each.state, "size_bytes": each.size_bytes}
        for each in found[:limit]
    ]
    size_bytes = sum(each.size_bytes for each in found)
    return {"ledgers": rows, "ledger_count": len(found), "size_bytes": size_bytes}


async def _check_room(ask: Ask, bookie_id: str) -> None:
    """Refuse before anything is changed where replicas cannot go anywhere.

    Raises:
        ApiError: They cannot.
    """
    skip_open = ask.body["skip_open"]
    if why := await no_room(await ask.service.client(), bookie_id, skip_open=skip_open):
        raise ApiError(409, "no-room", f"{why}; start another bookie first")


async def _recover(ask: Ask) -> object:
    bookie_id = ask.path["bookie"]
    facts = await known_bookie(ask, bookie_id)
    if facts.state != DOWN:
        raise ApiError(
            409, "bookie-up", f"{bookie_id} is registered, not lost; drain moves what it holds"
        )
    forget = ask.body["delete_cookie"]
    return _start(
        ask, "recover", bookie_id, lambda job: _move(ask, job, bookie_id, facts, forget=forget)
    )


async def _decommission(ask: Ask) -> object:
    bookie_id = ask.path["bookie"]
    facts = await known_bookie(ask, bookie_id)
    is_down = facts.state == DOWN
    if not is_down:
        await _check_room(ask, bookie_id)
    return _start(
        ask, "decommission", bookie_id,
        lambda job: _move(ask, job, bookie_id, facts, forget=is_down),
    )  # fmt: skip


def _start(
    ask: Ask, kind: str, target: str, work: Callable[[Job], Awaitable[dict[str, object]]]
) -> dict[str, object]:
    return ask.service.jobs.start(kind, target, ask.who.name, work).row()


async def _move(
    ask: Ask, job: Job, bookie_id: str, facts: BookieFacts, *, forget: bool = False
) -> dict[str, object]:
    """Move everything that a bookie holds; one that serves is read-only meanwhile and after."""
    service = ask.service
    client = await service.client()
    async with contextlib.AsyncExitStack() as undo:
        if facts.state != DOWN:
            address = await http_of(client_store(client), bookie_id)
            if not await asyncio.to_thread(is_held_read_only, address, timeout_s=_TIMEOUT_S):
                reason = f"{job.kind}: job {job.id} of {service.name}"
                # First: an answer may be lost, and a job be cancelled, when the bookie has done it.
                undo.push_async_callback(_writable_again, ask, bookie_id, reason)
                await set_read_only(ask, bookie_id, is_read_only=True, reason=reason, is_own=True)
        chosen = [share async for share in shares(client, [bookie_id])]
        job.total = len(chosen)

        def count(_share: object) -> None:
            job.done += 1

        options = MoveOptions(name=service.name, skip_open=ask.body["skip_open"])
        mover = Mover(client, [bookie_id], options, on_done=count)
        moved = await mover.run(chosen)
        left = [share.ledger_id async for share in shares(client, [bookie_id])]
        if moved.blocked.keys() <= moved.for_later:
            undo.pop_all()
    service.forget_facts()
    forgotten = False
    if forget and not left and facts.has_cookie:
        writable, read_only = await client.bookies()
        if bookie_id not in writable | read_only:
            with contextlib.suppress(NoSuchNodeError):
                await CookieStore(client_store(client)).delete(bookie_id)
                forgotten = True
    return _result(moved, left, forgotten)


def _result(moved: Moved, left: list[int], forgotten: bool) -> dict[str, object]:
    return {
        "ledgers": moved.ledgers,
        "copied_entries": moved.copied_entries,
        "copied_bytes": moved.copied_bytes,
        "left": len(left),
        "blocked": {str(ledger_id): why for ledger_id, why in list(moved.blocked.items())[:100]},
        "cookie_deleted": forgotten,
    }


async def _writable_again(ask: Ask, bookie_id: str, reason: str) -> None:
    with contextlib.suppress(QuorumbookError, ConnectFailedError):
        await set_read_only(ask, bookie_id, is_read_only=False, reason=reason, is_own=True)


SLOW_QUERY = {
    "bookie": Field("string", "Only of this bookie.", max_length=300),
    "kind": Field("string", "Only of this kind.", choices=KINDS),
    "limit": Field("integer", "How many, the slowest first.", default=100, minimum=1, maximum=1000),
}
_SKIP_OPEN = Field("boolean", "Leave ledgers alone that are being written.", default=False)
_BASE = "/api/v2/bookies/{bookie}"
ENDPOINTS = (
    Endpoint("GET", "/api/v2/bookies", Role.VIEWER,
             "All bookies: writable, read-only, and down.", bookies,
             command="quorumbook bookie ls"),
    Endpoint("GET", _BASE, Role.VIEWER, "One bookie, and what it says of itself.", bookie,
             names=_NAMES, command="quorumbook bookie ls --disks"),
    Endpoint("GET", "/api/v2/slow", Role.VIEWER,
             "The slowest adds, reads and syncs of the last minutes, and where their time went.",
             slow, query=SLOW_QUERY, command="quorumbook bookie slow"),
    Endpoint(
        "PUT", f"{_BASE}/read-only", Role.OPERATOR,
        "Have a bookie take no new ledgers, or take them again.", _set_read_only,
        body={
            "read_only": Field("boolean", "Whether it is to be read-only.", is_required=True,
                               example=False),
            "reason": Field("string", "Why; it is kept and shown.", default="no reason given",
                            max_length=500),
        },
        names=_NAMES, command="quorumbook bookie readonly on {bookie}",
    ),
    Endpoint("POST", f"{_BASE}/drain", Role.OPERATOR,
             "Make a bookie read-only and move everything it holds; a job.", _drain,
             body={"skip_open": _SKIP_OPEN}, names=_NAMES, status=202,
             command="quorumbook bookie drain {bookie}"),
    Endpoint("GET", f"{_BASE}/ledgers", Role.VIEWER,
             "What a bookie holds: what a drain or a recovery would move.", _shares,
             query={"limit": Field("integer", "At most this many ledgers.", default=100,
                                   minimum=1, maximum=1000)},
             names=_NAMES, command="quorumbook bookie drain {bookie} --dry-run"),
    Endpoint("POST", f"{_BASE}/recover", Role.OPERATOR,
             "Re-replicate what a bookie that is down held; a job.", _recover,
             body={"delete_cookie": Field("boolean", "Forget the bookie after that.",
                                          default=False),
                   "skip_open": _SKIP_OPEN},
             names=_NAMES, status=202, command="quorumbook bookie recover {bookie}"),
    Endpoint("POST", f"{_BASE}/decommission", Role.ADMIN,
             "Take a bookie out of the cluster for good; a job.", _decommission,
             body={"skip_open": _SKIP_OPEN}, names=_NAMES, status=202,
             command="quorumbook bookie decommission {bookie}"),
)  # fmt: skip
