"""Small steps on a metadata store that several managers take."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quorumbook.errors import (
    MetadataUnavailableError,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.store import MetadataStore, split

T = TypeVar("T")
#: Parents may be deleted by others as often as we make them; nobody is that unlucky.
_ATTEMPTS = 32


async def create_with_parents(
    store: MetadataStore,
    path: str,
    data: bytes = b"",
    *,
    ephemeral: bool = False,
    sequential: bool = False,
) -> str:
    """Create a node, making its parents (persistent, empty) where they are missing."""
    for _ in range(_ATTEMPTS):
        try:
            return await store.create(path, data, ephemeral=ephemeral, sequential=sequential)
        except NoSuchNodeError:
            parent, _name = split(path)
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(store, parent)
    raise MetadataUnavailableError(f"metadata node {path}: its parents vanish again and again")


async def with_living_session(store: MetadataStore, write: Callable[[], Awaitable[T]]) -> T:
    """Do a write that says itself what it is based on, in a new session if the old one is over.

    For writes guarded by a version or by the existence of a node, which need no session to be
    right; whoever relies on an ephemeral node of its own must not use this.
    """
    try:
        return await write()
    except SessionExpiredError:
        await store.renew_session()
        return await write()
