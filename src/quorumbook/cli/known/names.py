"""Names that a shell completes: bookies and streams of the cluster, contexts of the user.

Whoever presses Tab waits for it: two seconds, and nothing is said of what went wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from quorumbook.metadata.store import MetadataStore

_WAIT_S = 2.0
_NAMES_MAX = 200


def bookie_ids(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the bookies whose ids begin so."""
    from quorumbook.metadata.bookies.cookies import CookieStore

    async def find(store: MetadataStore) -> list[str]:
        return list(await CookieStore(store).list())

    return [name for name in _asked(ctx, find) if name.startswith(incomplete)]


def stream_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the streams whose names begin so."""
    path = str(ctx.params.get("path") or "/streams")

    async def find(store: MetadataStore) -> list[str]:
        from quorumbook.streams import Namespace

        namespace = await Namespace.open(f"{store.uri}#{path}", read_only=True)
        async with namespace, contextlib.aclosing(namespace.streams(incomplete)) as streams:
            found: list[str] = []
            async for name in streams:
                found.append(name)
                if len(found) == _NAMES_MAX:
                    break
            return found

    return _asked(ctx, find)


def _asked(ctx: click.Context, find: Callable[[MetadataStore], Awaitable[list[str]]]) -> list[str]:
    from quorumbook.cli.known.context_file import settings_meant
    from quorumbook.env import patience
    from quorumbook.metadata.uri import open_store

    def given(name: str) -> Any:
        return ctx.params.get(name) or ctx.find_root().params.get(name)

    async def run() -> list[str]:
        settings, _ = settings_meant(
            config_file=given("config_file"), overrides=given("overrides") or (),
            metadata=given("metadata"), context=given("context"),
        )  # fmt: skip
        uri = settings.text("metadata.uri")
        async with patience.timeout(_WAIT_S):
            store = await open_store(uri)
            try:
                return sorted(await find(store))
            finally:
                await store.close()

    with contextlib.suppress(Exception):
        return asyncio.run(run())
    return []
