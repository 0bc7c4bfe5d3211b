"""The slowest operations of a bookie over HTTP; ours alone, answers are JSON.

GET /api/v1/bookie/slow     adds, reads and syncs of the last 10 to 20 minutes, the slowest first
"""

from __future__ import annotations

from quorumbook.bookie.http.server import Body
from quorumbook.bookie.slow_operations import SlowOperations
from quorumbook.env import Env

PATH = "/api/v1/bookie/slow"
PAGES = (f"GET {PATH}",)


async def answer(
    env: Env, slow: SlowOperations, _method: str, _target: str, _body: Body
) -> tuple[int, object]:
    """Return status and body."""
    return 200, {"operations": slow.rows(env.clock.now_ns(), env.clock.wall_ms())}
