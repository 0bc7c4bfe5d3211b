"""Small steps on a metadata store that several managers take."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from google.protobuf import text_format

from quorumbook.env import logger
from quorumbook.errors import (
    MetadataError,
    MetadataFateUnknownError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
    QuorumbookError,
    SessionExpiredError,
)
from quorumbook.metadata.store import MetadataStore, Operation, Revision, Watch, split
from quorumbook.protocol.messages import message_class

T = TypeVar("T")
_log = logger("metadata")
_RETRY_S = 0.2
_PATIENCE_S = 60.0
#: Parents may be deleted by others as often as we make them; nobody is that unlucky.
_ATTEMPTS = 32
#: After so long it is tried again to give up what the store did not hear of.
_GIVE_UP_AGAIN_S = 1.0


async def create_with_parents(
    store: MetadataStore,
    path: str,
    data: bytes = b"",
    *,
    ephemeral: bool = False,
    sequential: bool = False,
) -> str:
    """Create a node, making its parents (persistent, empty) where they are missing.

    One that neither belongs to the session nor is numbered is created in a new session if the old
    one ends meanwhile; it may be there then already, which is an error as ever.
    """

    def create() -> Awaitable[str]:
        made = functools.partial(
            store.create, path, data, ephemeral=ephemeral, sequential=sequential
        )
        return made() if ephemeral or sequential else with_living_session(store, made)

    return await with_parents(store, path, create)


async def make_below(store: MetadataStore, path: str) -> None:
    """Make an empty node unless it is there, without its parents: what was deleted stays so.

    Raises:
        NoSuchNodeError: its parent is not there (any more).
    """
    with contextlib.suppress(NodeExistsError):
        await with_living_session(store, functools.partial(store.create, path))


async def set_or_create(store: MetadataStore, path: str, data: bytes) -> None:
    """Have a node hold this, whether it is there or not, in a new session if the old one ends."""

    async def put() -> None:
        try:
            await store.set(path, data)
        except NoSuchNodeError:
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(store, path, data)
                return
            await store.set(path, data)

    await with_living_session(store, put)


async def with_parents(store: MetadataStore, path: str, create: Callable[[], Awaitable[T]]) -> T:
    """Create a node in a way of the caller's, making its parents where they are missing."""
    for _ in range(_ATTEMPTS):
        try:
            return await create()
        except NoSuchNodeError:
            parent, _name = split(path)
            # Whoever made it: the next turn finds out whether it is there.
            with contextlib.suppress(NodeExistsError, MetadataFateUnknownError):
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


async def change_once(
    store: MetadataStore,
    operations: Sequence[Operation],
    was_done: Callable[[], Awaitable[bool]],
    what: str,
) -> None:
    """Carry operations out in one step, once, however often the answer is lost.

    After a lost answer ``was_done`` looks: for something that nobody else can have written (the id
    of a ledger that only we know, a token), or where it does not matter who did.  Where neither is
    so it says False, and what was done counts as somebody else's.
    """
    clock = store.env.clock
    deadline_ns = clock.now_ns() + int(_PATIENCE_S * 1e9)
    is_unknown = False
    while True:
        try:
            if is_unknown and await was_done():
                return
            await with_living_session(store, lambda: store.multi(operations))
        except MetadataUnavailableError as error:
            if clock.now_ns() > deadline_ns:
                raise
            is_unknown = True
            _log.warning("%s waits: %s", what, error)
            await asyncio.sleep(_RETRY_S)
        except MetadataError:
            if is_unknown and await was_done():
                return
            raise
        else:
            return


def give_up_later(
    store: MetadataStore, give_up: Callable[[], Awaitable[object]]
) -> asyncio.Task[None]:
    """Give up what belongs to the session beside the caller, as soon as the store answers.

    A session may last as long as its process, and whoever waits for a node of it for so long.
    """

    async def keep_trying() -> None:
        # Who finds that it is gone, or that the store is closed and ends the session, is done.
        with contextlib.suppress(QuorumbookError):
            while True:
                try:
                    await give_up()
                    return
                except MetadataUnavailableError:
                    await asyncio.sleep(_GIVE_UP_AGAIN_S)

    task = asyncio.create_task(keep_trying())
    store.env.late_tasks.add(task)
    task.add_done_callback(store.env.late_tasks.discard)
    return task


async def set_alike(store: MetadataStore, path: str, data: bytes, revision: Revision) -> int:
    """Compare and set where it does not matter who of several wrote these bytes.

    After a lost answer, finding them counts as having written them.

    Returns:
        The version that they have.
    """
    try:
        return await store.set(path, data, *revision)
    except MetadataFateUnknownError as error:
        node = await store.exists(path)
        if node is None or node.data != data:
            raise MetadataVersionConflict(f"metadata node {path} was changed meanwhile") from error
        return node.version


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


def raise_damaged(errors: Sequence[MetadataFormatError]) -> None:
    """Raise one error for all nodes that could not be read, if there are any."""
    if errors:
        others = f"; {len(errors) - 1} other nodes cannot be understood either"
        raise MetadataFormatError(
            f"{errors[0]}{others if errors[1:] else ''}", ledger_id=errors[0].ledger_id
        )


async def delete_tree(store: MetadataStore, path: str, *, keeps_top: bool = False) -> None:
    """Delete a node, if it is there, and what lies below it, or only that."""
    with contextlib.suppress(NoSuchNodeError):
        names = await store.children(path)
        await asyncio.gather(*(delete_tree(store, f"{path}/{name}") for name in names))
        if not keeps_top:
            await store.delete(path)
