"""What bookies do in the background, whether one may be stopped, and how busy all are.

What is asked of a bookie goes to its own HTTP server; a refusal of its is passed on.
"""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from quorumbook.admin.access.roles import Role
from quorumbook.admin.activity.looks import Eye, activity
from quorumbook.admin.endpoints.bookies import change_bookie, known_bookie
from quorumbook.admin.facts.bookie_http import ask as ask_bookie
from quorumbook.admin.facts.bookies import http_of
from quorumbook.admin.facts.stopping import endangered
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.jobs import Job
from quorumbook.admin.http.problems import ApiError
from quorumbook.autorecovery.copying.balance_plan import plan_balance
from quorumbook.autorecovery.copying.moving import Moved, MoveOptions, Mover, Share
from quorumbook.client.context import client_store
from quorumbook.errors import ConnectFailedError, MetadataFormatError

_TIMEOUT_S = 30.0
_GC = "/api/v1/bookie/gc"
_SCRUB = "/api/v1/bookie/scrub"
_BACKGROUND_IO = "/api/v1/background_io"
_MOVES_SHOWN = 1000


async def _look(ask: Ask, path: str) -> Any:
    await known_bookie(ask, ask.path["bookie"])
    address = await http_of(client_store(await ask.service.client()), ask.path["bookie"])
    headers = ask.service.bookie_headers()
    return await asyncio.to_thread(
        ask_bookie, "GET", address, path, headers=headers, timeout_s=_TIMEOUT_S
    )


async def _change(ask: Ask, path: str) -> Any:
    await known_bookie(ask, ask.path["bookie"])
    try:
        return await change_bookie(ask, ask.path["bookie"], path, {})
    except ConnectFailedError as error:
        refusal = error.__cause__
        if isinstance(refusal, urllib.error.HTTPError) and refusal.code < 500:
            raise ApiError(409, "refused-by-bookie", str(error)) from None
        raise


def _kinds(given: Mapping[str, Any]) -> str:
    return "&".join(f"{kind}=true" for kind in ("minor", "major") if given[kind])


async def _collection(ask: Ask) -> object:
    return await _look(ask, f"{_GC}_details")


async def _collect(ask: Ask) -> object:
    answer = await _change(ask, f"{_GC}?{_kinds(ask.body)}")
    return {"bookie_id": ask.path["bookie"], "answer": answer}


async def _collection_plan(ask: Ask) -> object:
    return await _look(ask, f"{_GC}_plan?{_kinds(ask.query)}")


async def _switch_compaction(ask: Ask) -> object:
    word = "suspend" if ask.body["suspended"] else "resume"
    return await _change(ask, f"{_GC}/{word}_compaction")


async def _entry_logs(ask: Ask) -> object:
    return {"entry_logs": await _look(ask, f"{_GC}_logs")}


async def _hold(ask: Ask) -> object:
    return await _look(ask, f"{_GC}_hold")


async def _approve(ask: Ask) -> object:
    return await _change(ask, f"{_GC}_hold?approve={quote(ask.body['approve'], safe='')}")


async def _scrub(ask: Ask) -> object:
    return await _look(ask, _SCRUB)


async def _scrub_now(ask: Ask) -> object:
    return await _change(ask, _SCRUB)


async def _background_io(ask: Ask) -> object:
    return await _look(ask, _BACKGROUND_IO)


async def _set_background_io(ask: Ask) -> object:
    return await _change(ask, f"{_BACKGROUND_IO}?rate_bytes={ask.body['rate_bytes']}")


async def _can_stop(ask: Ask) -> object:
    bookie_id = ask.path["bookie"]
    await known_bookie(ask, bookie_id)
    damaged: list[MetadataFormatError] = []
    client = await ask.service.client()
    async with ask.service.walk():
        found = await endangered(client, bookie_id, ask.query["copies"], damaged)
    return {
        "bookie_id": bookie_id,
        "can_stop": not found,
        "endangered": found[: ask.query["limit"]],
        "endangered_count": len(found),
        "damaged": [str(error) for error in damaged[:100]],
    }


async def _balance_plan(ask: Ask) -> object:
    async with ask.service.walk():
        moves = await plan_balance(await ask.service.client(), ask.query["within"])
    rows = [
        {"ledger_id": move.ledger_id, "source": move.source, "target": move.target,
         "size_bytes": move.size_bytes}
        for move in moves[:_MOVES_SHOWN]
    ]  # fmt: skip
    total = sum(move.size_bytes for move in moves)
    return {"moves": rows, "move_count": len(moves), "size_bytes": total}


async def _balance(ask: Ask) -> object:
    async def work(job: Job) -> dict[str, object]:
        client = await ask.service.client()
        moves = await plan_balance(client, ask.body["within"])
        job.total = len(moves)
        total = Moved()

        def count(_share: object) -> None:
            job.done += 1

        for source in dict.fromkeys(move.source for move in moves):
            own = [move for move in moves if move.source == source]
            options = MoveOptions(name=ask.service.name, skip_open=True)
            targets = {move.ledger_id: move.target for move in own}
            mover = Mover(client, [source], options, targets=targets, on_done=count)
            shares = [Share(m.ledger_id, "closed", m.size_bytes, (source,)) for m in own]
            total.add(await mover.run(shares))
        ask.service.forget_facts()
        blocked = dict(list(total.blocked.items())[:100])
        return {
            "ledgers": total.ledgers,
            "copied_entries": total.copied_entries,
            "copied_bytes": total.copied_bytes,
            "blocked": {str(ledger_id): why for ledger_id, why in blocked.items()},
        }

    return ask.service.jobs.start("balance", "all bookies", ask.who.name, work).row()


async def _activity(ask: Ask) -> object:
    client = await ask.service.client()
    eye = Eye(client, client_store(client))
    try:
        async with ask.service.walk():
            before = await eye.look()
            await asyncio.sleep(ask.query["every_s"])
            return activity(before, await eye.look(), ask.query["count"]).row()
    finally:
        await eye.close()


# A bookie reads its whole index for the role operator only.
_NAMES = {"bookie": Field("string", "The bookie's id.", max_length=300, example="127.0.0.1:3181")}
_MINOR = Field("boolean", "With a minor compaction.", default=False)
_MAJOR = Field("boolean", "With a major compaction.", default=False)
_WITHIN = Field("number", "Largest difference between the shares of disks in use.", default=0.05,
                minimum=0.001, maximum=1)  # fmt: skip
_BASE = "/api/v2/bookies/{bookie}"
ENDPOINTS = (
    Endpoint("GET", f"{_BASE}/gc", Role.VIEWER, "What collection has done.", _collection,
             names=_NAMES),
    Endpoint("POST", f"{_BASE}/gc", Role.OPERATOR, "Collect garbage now.", _collect,
             body={"minor": _MINOR, "major": _MAJOR}, names=_NAMES,
             command="quorumbook bookie gc {bookie}"),
    Endpoint("GET", f"{_BASE}/gc/plan", Role.OPERATOR, "What a collection would do.",
             _collection_plan, query={"minor": _MINOR, "major": _MAJOR}, names=_NAMES,
             command="quorumbook bookie gc {bookie} --dry-run"),
    Endpoint("PUT", f"{_BASE}/gc/compaction", Role.OPERATOR,
             "Suspend a bookie's compaction, or resume it.", _switch_compaction,
             body={"suspended": Field("boolean", "Whether nothing is to be compacted.",
                                      is_required=True, example=False)},
             names=_NAMES, command="quorumbook bookie gc {bookie} --suspend"),
    Endpoint("GET", f"{_BASE}/gc/logs", Role.OPERATOR,
             "What keeps each entry log of a bookie, and what happens to it next.", _entry_logs,
             names=_NAMES, command="quorumbook bookie explain-gc {bookie}"),
    Endpoint("GET", f"{_BASE}/gc/hold", Role.VIEWER,
             "Which deletions wait for approval, and why.", _hold, names=_NAMES,
             command="quorumbook bookie gc-hold {bookie}"),
    Endpoint("PUT", f"{_BASE}/gc/hold", Role.ADMIN,
             "Let exactly this set of ledgers be deleted.", _approve,
             body={"approve": Field("string", "The set as it is shown.", is_required=True,
                                    max_length=200, example="5f0a3c9d2e71")},
             names=_NAMES, command="quorumbook bookie gc-hold {bookie} --approve SET"),
    Endpoint("GET", f"{_BASE}/scrub", Role.VIEWER, "How far the search for damage is.", _scrub,
             names=_NAMES, command="quorumbook bookie scrub {bookie}"),
    Endpoint("POST", f"{_BASE}/scrub", Role.OPERATOR, "Begin to read everything now.", _scrub_now,
             names=_NAMES, command="quorumbook bookie scrub {bookie} --now"),
    Endpoint("GET", f"{_BASE}/background-io", Role.VIEWER,
             "How much background work may read and write.", _background_io, names=_NAMES,
             command="quorumbook bookie background-io {bookie}"),
    Endpoint("PUT", f"{_BASE}/background-io", Role.OPERATOR,
             "Change how much background work may read and write, until the next start.",
             _set_background_io,
             body={"rate_bytes": Field("integer", "Bytes a second; 0 sets no limit.", minimum=0,
                                       maximum=2**62, is_required=True, example=50_000_000)},
             names=_NAMES, command="quorumbook bookie background-io {bookie} --rate-bytes 50MB"),
    Endpoint("GET", f"{_BASE}/can-stop", Role.VIEWER,
             "Whether stopping a bookie endangers any entry, and which.", _can_stop,
             query={"copies": Field("integer", "How many copies of every entry must be left.",
                                    default=1, minimum=1, maximum=1000),
                    "limit": Field("integer", "Of what is endangered so much at most.",
                                   default=100, minimum=1, maximum=1000)},
             names=_NAMES, command="quorumbook bookie can-stop {bookie}"),
    Endpoint("GET", "/api/v2/balance", Role.VIEWER, "Which ledgers a balance would move.",
             _balance_plan, query={"within": _WITHIN},
             command="quorumbook bookie balance --dry-run"),
    Endpoint("POST", "/api/v2/balance", Role.OPERATOR,
             "Move closed ledgers from full disks to empty ones; a job.", _balance,
             body={"within": _WITHIN}, status=202, command="quorumbook bookie balance"),
    Endpoint("GET", "/api/v2/activity", Role.VIEWER,
             "Rates and latencies of bookies, and the busiest ledgers and streams; it takes two "
             "looks.", _activity,
             query={"every_s": Field("number", "The time between them.", default=1, minimum=0.1,
                                     maximum=30, example=0.2),
                    "count": Field("integer", "At most this many ledgers and streams.", default=10,
                                   minimum=1, maximum=1000)},
             command="quorumbook top --once -o json"),
)  # fmt: skip
