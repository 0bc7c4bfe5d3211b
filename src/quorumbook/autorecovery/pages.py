"""Auto-recovery over HTTP, under the peer's paths; answers are JSON.

    GET /api/v1/autorecovery/status                        whether ledgers are audited and copied
    PUT /api/v1/autorecovery/status?enabled=true
    GET /api/v1/autorecovery/who_is_auditor
    GET /api/v1/autorecovery/list_under_replicated_ledger  the queue; its first ledgers
    PUT /api/v1/autorecovery/trigger_audit                 look for lost bookies now
    GET /api/v1/autorecovery/lost_bookie_recovery_delay
    PUT /api/v1/autorecovery/lost_bookie_recovery_delay?seconds=60
        {"delay_seconds": 60}                              or with the peer's body

The peer answers some of them as text, and says 404 where the queue is empty.  All speak of the
cluster, not of this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from quorumbook.errors import (
    LocalProtocolError,
    MetadataError,
    MetadataFormatError,
    NoAuditorError,
)
from quorumbook.metadata.election import current_leader
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore

ROOT = "/api/v1/autorecovery"
PAGES = (
    f"GET {ROOT}/status", f"PUT {ROOT}/status",
    f"GET {ROOT}/who_is_auditor",
    f"GET {ROOT}/list_under_replicated_ledger",
    f"PUT {ROOT}/trigger_audit",
    f"GET {ROOT}/lost_bookie_recovery_delay", f"PUT {ROOT}/lost_bookie_recovery_delay",
)  # fmt: skip
#: A queue of a hundred thousand ledgers is not for a page; the command lists it whole.
_LISTED = 1000


def _is_number(text: str) -> bool:
    # Python reads no number of more than 4300 digits; nobody needs one of more than ten here.
    return len(text) <= 10 and text.isascii() and text.isdigit()


class RecoveryPages:
    """The pages of one cluster.

    Args:
        store: Its metadata.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._queue = UnderreplicationQueue(store)

    async def answer(self, method: str, target: str, body: Mapping[str, str]) -> tuple[int, object]:
        """Return status and body."""
        path, _, query = target.partition("?")
        given = {name: values[0] for name, values in parse_qs(query).items()}
        if "delay_seconds" in body:
            given.setdefault("seconds", body["delay_seconds"])
        try:
            return await self._answer(method, path.rstrip("/").removeprefix(ROOT), given)
        except LocalProtocolError as error:
            return 400, {"error": str(error)}
        except (MetadataError, NoAuditorError) as error:
            return 503, {"error": str(error)}

    async def _answer(self, method: str, name: str, given: dict[str, str]) -> tuple[int, object]:
        queue = self._queue
        match method, name:
            case "PUT", "/status" if given.get("enabled") in ("true", "false"):
                await (queue.enable() if given["enabled"] == "true" else queue.disable())
                return 200, {"enabled": await queue.is_enabled()}
            case "GET", "/status":
                return 200, {"enabled": await queue.is_enabled()}
            case "GET", "/who_is_auditor":
                path = TreePaths(self._store.ledgers_root).auditor_election
                return 200, {"auditor": await current_leader(self._store, path)}
            case "GET", "/list_under_replicated_ledger":
                return 200, await self._marks()
            case "PUT", "/trigger_audit":
                if not await queue.is_enabled():
                    return 503, {"error": "auditing is switched off"}
                await queue.ask_for_audit()
                return 200, {"triggered": True}
            case "PUT", "/lost_bookie_recovery_delay" if _is_number(given.get("seconds", "")):
                await queue.set_lost_bookie_delay_s(int(given["seconds"]))
                return 200, {"delay_seconds": await queue.lost_bookie_delay_s()}
            case "GET", "/lost_bookie_recovery_delay":
                return 200, {"delay_seconds": await queue.lost_bookie_delay_s()}
            case "PUT", "/status" | "/lost_bookie_recovery_delay":
                return 400, {"error": "PUT wants ?enabled=true or false, or ?seconds=N"}
        return 404, {"error": f"there is no {method} {ROOT}{name}"}

    async def _marks(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        damaged: list[MetadataFormatError] = []
        async for mark in self._queue.list(damaged):
            found.append(
                {
                    "ledger_id": mark.ledger_id,
                    "missing_on": mark.replicas,
                    "marked_at_ms": mark.ctime_ms,
                }
            )
            if len(found) == _LISTED:
                break
        found += [
            {"ledger_id": error.ledger_id, "missing_on": [], "error": str(error)}
            for error in damaged
        ]
        return found

    def close(self) -> None:
        """Forget the store."""
        self._queue.close()
