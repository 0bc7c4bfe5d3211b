"""Scrub over HTTP; ours alone, answers are JSON.

GET /api/v1/bookie/scrub    how far it is, when it read everything last, what is not healed yet
PUT /api/v1/bookie/scrub    begin a cycle soon; if one is under way, another follows it
"""

from __future__ import annotations

from dataclasses import asdict

from quorumbook.bookie.http.server import Body
from quorumbook.bookie.membership.healing import Healing

PATH = "/api/v1/bookie/scrub"
PAGES = (f"GET {PATH}", f"PUT {PATH}")


async def answer(healing: Healing, method: str, _target: str, _body: Body) -> tuple[int, object]:
    """Return status and body."""
    if method == "PUT":
        healing.scrubber.trigger()
    progress = asdict(await healing.scrubber.progress())
    return 200, progress | {
        "damaged_ledgers": healing.statistics.damaged_ledgers,
        "ledgers_in_limbo": healing.statistics.ledgers_in_limbo,
    }
