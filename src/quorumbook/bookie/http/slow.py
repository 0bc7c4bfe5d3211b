"""The slowest operations of a bookie over HTTP; ours alone, answers are JSON.

GET /api/v1/bookie/slow     adds, reads and syncs of the last 10 to 20 minutes, the slowest first
"""

from __future__ import annotations

from quorumbook.bookie.http.server import Body
from quorumbook.bookie.slow_operations import SlowOperations
from quorumbook.env import Env

ROOT = "/api/v1/bookie/slow"


async def answer(
    env: Env, slow: SlowOperations, method: str, target: str, _body: Body
) -> tuple[int, object]:
    """Return status and body."""
    path = target.partition("?")[0]
    if method != "GET" or path.rstrip("/") != ROOT:
        return 404, {"error": f"there is no {method} {path}"}
    return 200, {"operations": slow.rows(env.clock.now_ns(), env.clock.wall_ms())}
