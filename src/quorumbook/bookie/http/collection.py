"""Garbage collection over HTTP, under the peer's paths; answers are JSON.

    GET /api/v1/bookie/gc                       whether a pass is under way
    PUT /api/v1/bookie/gc?minor=true&major=true begin a pass, with compaction if that is said
        {"forceMinor": true, "forceMajor": true}    or with the peer's body, whose fields are true
                                                unless they say otherwise or compaction is suspended
    GET /api/v1/bookie/gc_details               counters
    GET /api/v1/bookie/gc_plan?minor=true       what such a pass would do
    GET /api/v1/bookie/gc_logs                  each entry log, what keeps it, what comes next
    GET /api/v1/bookie/gc_hold                  which deletions wait for the operator, and why
    PUT /api/v1/bookie/gc_hold?approve=SET      let exactly that set go
    PUT /api/v1/bookie/gc/suspend_compaction    compact nothing until it is resumed
    PUT /api/v1/bookie/gc/resume_compaction

``gc_logs``, ``gc_plan``, ``gc_hold`` and the parameters are ours.  ``gc_logs`` and ``gc_plan`` read
the whole index: for one client at a time (503), which needs a token off loopback (``access.py``).
"""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import parse_qs

from quorumbook.bookie.http.server import Body
from quorumbook.errors import MetadataError
from quorumbook.storage.collection.collector import Collector
from quorumbook.storage.gc.decisions import fate

ROOT = "/api/v1/bookie/gc"
PAGES = (
    f"GET {ROOT}", f"PUT {ROOT}",
    f"GET {ROOT}_details", f"GET {ROOT}_plan", f"GET {ROOT}_logs",
    f"GET {ROOT}_hold", f"PUT {ROOT}_hold",
    f"PUT {ROOT}/suspend_compaction", f"PUT {ROOT}/resume_compaction",
)  # fmt: skip
#: These read the whole index.
COSTLY = (f"{ROOT}_plan", f"{ROOT}_logs")
_BUSY = {"error": "this bookie reads its index for somebody else; ask again when that is done"}


async def answer(collector: Collector, method: str, target: str, body: Body) -> tuple[int, object]:
    """Return status and body."""
    path, _, query = target.partition("?")
    wanted = parse_qs(query)
    kinds = {kind: wanted.get(kind) == ["true"] for kind in ("minor", "major")}
    match method, path.rstrip("/").removeprefix(ROOT):
        case "GET", "_plan" | "_logs" if collector.is_looked_at:
            return 503, _BUSY
        case "GET", "":
            return 200, {"is_running": collector.is_running}
        case "GET", "_details":
            state = {"is_running": collector.is_running, "is_suspended": collector.is_suspended}
            return 200, state | asdict(collector.statistics)
        case "GET", "_plan":
            try:
                async with collector.looking():
                    return 200, (await collector.plan(**kinds))._asdict()
            except MetadataError as error:
                return 503, {"error": str(error)}
        case "GET", "_logs":
            async with collector.looking():
                return 200, await _logs(collector)
        case "GET", "_hold":
            return 200, (await collector.hold()).shown()
        case "PUT", "_hold":
            if not await collector.approve(wanted.get("approve", [""])[0]):
                problem = "this is not the set that is held now; look at it again"
                return 409, {"error": problem} | (await collector.hold()).shown()
            return 200, (await collector.hold()).shown()
        case "PUT", "":
            if body:
                kinds = _kinds_of_body(collector, body)
            collector.trigger(**kinds)
            return 200, {"triggered": True}
        case "PUT", "/suspend_compaction":
            collector.suspend()
            return 200, {"is_suspended": True}
        case "PUT", "/resume_compaction":
            collector.resume()
            return 200, {"is_suspended": False}
    return 404, {"error": f"there is no {method} {path}"}


def _kinds_of_body(collector: Collector, body: Body) -> dict[str, bool]:
    """Return which compactions the peer's body asks for."""
    default = str(not collector.is_suspended)
    return {
        kind: body.get(f"force{kind.title()}", default).lower() == "true"
        for kind in ("minor", "major")
    }


async def _logs(collector: Collector) -> list[dict[str, object]]:
    return [
        {
            "entry_log": f"{usage.entry_log_id:x}",
            "size_bytes": usage.size_bytes,
            "live_bytes": usage.live_bytes,
            "ledgers": usage.ledgers,
            "fate": fate(usage, collector.options),
        }
        for usage in await collector.usages()
    ]
