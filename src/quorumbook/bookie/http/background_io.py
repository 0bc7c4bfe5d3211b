"""The budget for background I/O over HTTP; ours alone, answers are JSON.

GET /api/v1/background_io                   rate, what was taken for what, what waits
PUT /api/v1/background_io?rate_bytes=N      another rate from now on; 0 sets no limit
"""

from __future__ import annotations

from urllib.parse import parse_qs

from quorumbook.bookie.http.server import Body, whole_number
from quorumbook.env import Budget

PATH = "/api/v1/background_io"
PAGES = (f"GET {PATH}", f"PUT {PATH}")


async def answer(budget: Budget, method: str, target: str, _body: Body) -> tuple[int, object]:
    """Return status and body."""
    if method == "PUT":
        rate = parse_qs(target.partition("?")[2]).get("rate_bytes", [""])[0]
        budget.rate_bytes = whole_number(rate, "rate_bytes")
    return 200, {
        "rate_bytes": budget.rate_bytes,
        "spare_bytes": budget.spare_bytes,
        "taken_bytes": budget.taken_bytes,
        "waiting_bytes": budget.waiting_bytes,
    }
