"""Asking a running bookie over HTTP, for the commands that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumbook.admin.facts.bookie_http import ask

if TYPE_CHECKING:
    from quorumbook.cli.call import Call
    from quorumbook.ids import BookieId


def address_of(call: Call, bookie: BookieId) -> str:
    """Return where a bookie serves HTTP; a URL is that already, and needs no metadata.

    Raises:
        NoSuchBookieError: nothing is known of it.
        ConnectFailedError: it is not registered now, or serves none.
    """
    return bookie if "://" in bookie else call.run(_find(call, bookie))


async def _find(call: Call, bookie: BookieId) -> str:
    from quorumbook.admin.facts.bookies import http_of
    from quorumbook.metadata.uri import open_store

    store = await open_store(call.metadata_uri)
    try:
        return await http_of(store, bookie)
    finally:
        await store.close()


def change(call: Call, address: str, path: str, *, body: bytes | None = None) -> Any:
    """Have a bookie change something; return the JSON that it answers.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
        ConfigError: The token that it may want cannot be read.
    """
    return ask("PUT", address, path, headers=token(call), body=body)


def look_through(call: Call, address: str, path: str) -> Any:
    """Have a bookie read its whole index; return the JSON that it answers.

    Raises:
        ConnectFailedError: It does not answer, or refuses.
        ConfigError: The token that it may want cannot be read.
    """
    return ask("GET", address, path, headers=token(call))


def token(call: Call) -> dict[str, str]:
    """Return the header with the token that bookies may want; none without a file of it.

    Raises:
        ConfigError: The file cannot be read.
    """
    from quorumbook.bookie.http.access import read_tokens

    file = call.settings.text("http.token_file")
    return {"Authorization": f"Bearer {read_tokens(file)[0]}"} if file else {}
