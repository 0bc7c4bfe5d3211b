"""Asking running bookies over HTTP: where they serve, what they answer, what was slow there."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from quorumbook.admin.facts.words import taken
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import ConnectFailedError, LocalProtocolError

if TYPE_CHECKING:
    from quorumbook.ids import BookieId
    from quorumbook.metadata.bookies.service_info import BookieServiceInfo

#: Whether a bookie is read-only, and why; the peer's path.
READ_ONLY_PATH = "/api/v1/bookie/state/readonly"
TIMEOUT_S = 60.0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_SLOW_TIMEOUT_S = 10.0
SLOW_PATH = "/api/v1/bookie/slow"
#: What each stage is, for people.
STAGES = {
    "admission": "waiting to be admitted",
    "journal_wait": "waiting for the journal",
    "journal_write": "journal write",
    "journal_sync": "journal sync",
    "loop": "waiting for the event loop",
    "memory": "into the write cache",
    "worker_wait": "waiting for the read worker",
    "index": "index",
    "disk": "reading entry logs",
    "answer": "answer",
}


def http_in(info: BookieServiceInfo, bookie_id: BookieId) -> str | None:
    """Return where a bookie serves HTTP by its registration, None if nowhere."""
    for endpoint in info.endpoints:
        if endpoint.protocol == "http":
            is_anywhere = endpoint.host in ("", "0.0.0.0", "::")  # noqa: S104 - compared with
            host = info.address(bookie_id)[0] if is_anywhere else endpoint.host
            return f"http://{host}:{endpoint.port}"
    return None


def ask(
    method: str,
    address: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Return the JSON that a bookie answers; blocks, so call it in a thread.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
        LocalProtocolError: The address is not one of HTTP.
    """
    url = address.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise LocalProtocolError(f"{address} is not an HTTP address")
    request = urllib.request.Request(url, body, dict(headers or {}), method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        text = error.read(_ANSWER_BYTES_MAX).decode(errors="replace").strip()
        raise ConnectFailedError(f"{url} answers {error.code}: {text}") from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        raise ConnectFailedError(
            f"no answer from {url}: {getattr(cause, 'strerror', None) or cause}"
        ) from error


def look(address: str, path: str, *, timeout_s: float = TIMEOUT_S) -> Any:
    """Return the JSON that a bookie answers to GET; blocks.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
    """
    return ask("GET", address, path, timeout_s=timeout_s)


def read_only_path(*, is_read_only: bool, reason: str, is_own: bool = False) -> str:
    """Return what to ask of a bookie so that it takes no plain adds, or takes them again.

    Args:
        is_read_only: Which of the two.
        reason: Why.
        is_own: What is kept for another reason stays as it is.
    """
    choice, why = "true" if is_read_only else "false", quote(reason)
    own = f"&if_reason={why}" if is_own else ""
    return f"{READ_ONLY_PATH}?read_only={choice}&reason={why}{own}"


def is_held_read_only(address: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Ask a bookie whether somebody wanted it read-only, who is not to be overruled; blocks.

    Its registration does not tell: that follows later, and is no different where a disk is full.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
    """
    return is_held(look(address, READ_ONLY_PATH, timeout_s=timeout_s))


def is_held(state: Mapping[str, Any]) -> bool:
    """Tell from a bookie's answer whether somebody wants it read-only."""
    # The peer keeps no time.
    return state.get("since_ms") is not None or state.get("readOnly") is True


class Slow(NamedTuple):
    """What bookies answered."""

    #: The slowest first, each with the bookie's id.
    operations: list[dict[str, Any]]
    #: Why a bookie did not answer.
    unanswered: dict[BookieId, str]


async def slow_operations(addresses: Mapping[BookieId, str], headers: Mapping[str, str]) -> Slow:
    """Ask bookies for their slowest operations.

    Args:
        addresses: Where each serves HTTP.
        headers: A token for bookies that do not listen on loopback alone.
    """
    found: list[dict[str, Any]] = []
    unanswered: dict[BookieId, str] = {}

    async def one(item: tuple[BookieId, str]) -> None:
        bookie_id, address = item
        try:
            answer = await asyncio.to_thread(
                ask, "GET", address, SLOW_PATH, headers=headers, timeout_s=_SLOW_TIMEOUT_S
            )
        except ConnectFailedError as error:
            unanswered[bookie_id] = str(error)
            return
        found.extend({"bookie_id": bookie_id, **row} for row in answer["operations"])

    await gather_bounded(one, list(addresses.items()))
    found.sort(key=lambda row: row["took_ms"], reverse=True)
    return Slow(found, unanswered)


def where_it_went(stages_ms: Mapping[str, float], count: int = 2) -> str:
    """Return the stages that took longest, in words."""
    longest = sorted(stages_ms.items(), key=lambda item: item[1], reverse=True)[:count]
    return ", ".join(f"{STAGES.get(name, name)} {taken(took)}" for name, took in longest)


def of_kind(
    operations: Sequence[dict[str, Any]], kind: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the slowest of a kind."""
    return [row for row in operations if kind is None or row["kind"] == kind][:limit]
