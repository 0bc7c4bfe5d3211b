"""Small steps on a metadata store that several managers take."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf import text_format

from quorumbook.errors import (
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.store import MetadataStore, Watch, split
from quorumbook.protocol.messages import message_class

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


class OnceWatch:
    """One watch left in several places: calls back once and leaves nothing behind."""

    __slots__ = ("_store", "_watch")

    def __init__(self, store: MetadataStore, watch: Watch) -> None:
        self._store = store
        self._watch: Watch | None = watch

    def __call__(self) -> None:
        """Run the watch, unless it has run."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._store.unwatch(self)
            watch()


def text_record(name: str, **fields: object) -> bytes:
    """Return a message of the peer's in protobuf's text form, as the peer writes it."""
    return text_format.MessageToString(message_class(name)(**fields), as_utf8=False).encode("ascii")


def parse_text_record(name: str, data: bytes, path: str) -> Any:
    """Read a message in protobuf's text form out of a node.

    Raises:
        MetadataFormatError: it is damaged.
    """
    message = message_class(name)()
    try:
        text_format.Parse(data.decode("utf-8"), message)
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise MetadataFormatError(f"metadata node {path} cannot be understood: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError(f"metadata node {path} lacks a required field")
    return message
