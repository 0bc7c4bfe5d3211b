"""Asking a running bookie over HTTP: where it serves, and what it answers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quorumbook.errors import ConnectFailedError, LocalProtocolError

if TYPE_CHECKING:
    from quorumbook.ids import BookieId
    from quorumbook.metadata.bookies.service_info import BookieServiceInfo

#: Whether a bookie is read-only, and why; the peer's path.
READ_ONLY_PATH = "/api/v1/bookie/state/readonly"
TIMEOUT_S = 60.0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


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


def is_held_read_only(address: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Ask a bookie whether somebody wanted it read-only, who is not to be overruled; blocks.

    Its registration does not tell: that follows later, and is no different where a disk is full.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
    """
    state = look(address, READ_ONLY_PATH, timeout_s=timeout_s)
    # The peer keeps no time.
    return state.get("since_ms") is not None or state.get("readOnly") is True
