"""Asking a running bookie over HTTP, for the commands that need one."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import click

from quorumbook.errors import ConnectFailedError

if TYPE_CHECKING:
    from quorumbook.cli.common import Call
    from quorumbook.ids import BookieId
    from quorumbook.metadata.bookies.registration import BookieServiceInfo
    from quorumbook.metadata.store import MetadataStore

_TIMEOUT_S = 60.0


def address_of(call: Call, bookie: BookieId) -> str:
    """Return where a bookie serves HTTP; a URL is that already, and needs no metadata.

    Raises:
        ConnectFailedError: it is not registered, or serves none.
    """
    return bookie if "://" in bookie else call.run(_find(call, bookie))


async def _find(call: Call, bookie: BookieId) -> str:
    from quorumbook.metadata.uri import open_store

    store = await open_store(call.metadata_uri)
    try:
        return await http_of(store, bookie)
    finally:
        await store.close()


async def http_of(store: MetadataStore, bookie: BookieId) -> str:
    """Return where a registered bookie serves HTTP.

    Raises:
        ConnectFailedError: it is not registered, or serves none.
    """
    from quorumbook.metadata.bookies.registration import BookieRegistration

    info = await BookieRegistration(store).service_info(bookie)
    if info is None:
        raise ConnectFailedError(f"bookie {bookie} is not registered", bookie_id=bookie)
    address = http_in(info, bookie)
    if address is None:
        raise ConnectFailedError(
            f"bookie {bookie} serves no HTTP; `--set http.enabled=true` has it do so",
            bookie_id=bookie,
        )
    return address


def http_in(info: BookieServiceInfo, bookie: BookieId) -> str | None:
    """Return where a bookie serves HTTP by its registration, None if nowhere."""
    for endpoint in info.endpoints:
        if endpoint.protocol == "http":
            is_anywhere = endpoint.host in ("", "0.0.0.0", "::")  # noqa: S104 - compared with
            host = info.address(bookie)[0] if is_anywhere else endpoint.host
            return f"http://{host}:{endpoint.port}"
    return None


def look(address: str, path: str, *, timeout_s: float = _TIMEOUT_S) -> Any:
    """Return the JSON that a bookie answers.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
    """
    return _ask("GET", address, path, {}, None, timeout_s)


def change(call: Call, address: str, path: str, *, body: bytes | None = None) -> Any:
    """Have a bookie change something; return the JSON that it answers.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
        ConfigError: The token that it may want cannot be read.
    """
    from quorumbook.bookie.http.access import read_tokens

    file = call.settings.text("http.token_file")
    headers = {"Authorization": f"Bearer {read_tokens(file)[0]}"} if file else {}
    return _ask("PUT", address, path, headers, body, _TIMEOUT_S)


def _ask(
    method: str,
    address: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None,
    timeout_s: float,
) -> Any:
    url = address.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"{address} is no HTTP address")
    request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace").strip()
        raise ConnectFailedError(f"{url} answers {error.code}: {text}") from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        raise ConnectFailedError(
            f"no answer from {url}: {getattr(cause, 'strerror', None) or cause}"
        ) from error
