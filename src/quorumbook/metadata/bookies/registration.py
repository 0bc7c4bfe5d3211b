"""Which bookies are there: ephemeral nodes below ``available`` and ``available/readonly``.

A bookie registers itself with what it says about itself (``service_info``); everybody else lists
and resolves.  A registration outlives its session: when the session ends, the bookie is
registered again in the next one under the same id and in the same state (R31).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quorumbook.env import logger, patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    ConnectFailedError,
    LocalProtocolError,
    MetadataError,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.ids import BookieId
from quorumbook.metadata.bookies.service_info import BookieEndpoint, BookieServiceInfo
from quorumbook.metadata.cluster import not_initialized, read_instance_id
from quorumbook.metadata.nodes import OnceWatch, create_with_parents
from quorumbook.metadata.paths import READ_ONLY_NAME, TreePaths
from quorumbook.metadata.store import MetadataStore, Watch

__all__ = ["BookieEndpoint", "BookieRegistration", "BookieServiceInfo", "RegisteredBookies"]

_log = logger("metadata.registration")
_RETRY_FIRST_S = 0.1
_RETRY_LAST_S = 5.0


class RegisteredBookies(NamedTuple):
    """The registered bookies; one that changes state may for a moment be in both."""

    writable: frozenset[BookieId]
    read_only: frozenset[BookieId]


@dataclass(slots=True)
class _Registered:
    bookie_id: BookieId
    info: BookieServiceInfo
    is_read_only: bool
    take_over: bool


class BookieRegistration:
    """Registers at most one bookie, and looks up all of them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths = TreePaths(store.ledgers_root)
        self._lock = asyncio.Lock()
        self._wanted: _Registered | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._ended_sessions = 0
        self._remove_callback = store.on_session_expired(self._on_session_expired)
        #: Whether the bookie's node is there, as far as this process knows.
        self.is_registered = False
        #: Called on the loop whenever ``is_registered`` changes.
        self.on_changed: Callable[[bool], None] | None = None

    async def register(
        self,
        bookie_id: BookieId,
        info: BookieServiceInfo,
        read_only: bool = False,
        *,
        take_over: bool = False,
    ) -> None:
        """Make the bookie known, and known again whenever its session ends.

        A node of the same id that another session left is waited for, as its owner may live; that
        takes up to a session timeout.  With ``take_over`` it is replaced at once, which is right
        for a bookie that holds the lock on its directories and has checked its cookie.

        Raises:
            NodeExistsError: another living process is registered under this id.
            ClusterNotInitializedError: there is no cluster.
        """
        await read_instance_id(self._store)
        wanted = _Registered(bookie_id, info, read_only, take_over)
        # Checked first: a bad id must not be tried again and again after an expiry.
        self._paths.bookie(bookie_id, read_only=read_only)
        async with self._lock:
            # Wanted from the first: the session may end before the last answer is here.
            before, self._wanted = self._wanted, wanted
            ended_sessions = self._ended_sessions
            try:
                await self._put(wanted)
            except BaseException:
                self._wanted = before
                raise
            if ended_sessions == self._ended_sessions:
                self._set_registered(True)

    async def set_read_only(self) -> None:
        """Move the bookie to the read-only ones; it is never in neither place."""
        await self._move(is_read_only=True)

    async def set_writable(self) -> None:
        """Move the bookie back to the writable ones."""
        await self._move(is_read_only=False)

    async def unregister(self) -> None:
        """Take the bookie's node away."""
        await self._stop_restoring()
        async with self._lock:
            wanted, self._wanted = self._wanted, None
            if wanted is None:
                return
            self._set_registered(False)
            for is_read_only in (False, True):
                await self._remove_own(self._paths.bookie(wanted.bookie_id, read_only=is_read_only))

    async def close(self) -> None:
        """Stop registering again; the node goes with the session or with ``unregister``."""
        self._remove_callback()
        self._wanted = None
        await self._stop_restoring()

    async def bookies(self, watch: Watch | None = None) -> RegisteredBookies:
        """Return the registered bookies; the watch runs once, when one of the two sets changes.

        Raises:
            ClusterNotInitializedError: there is no cluster.
        """
        once = None if watch is None else OnceWatch(self._store, watch)
        try:
            writable = await self._store.children(self._paths.available, once)
        except NoSuchNodeError as error:
            raise not_initialized(self._store) from error
        try:
            read_only = await self._store.children(self._paths.read_only, once)
        except NoSuchNodeError:
            # Its creation changes the children of ``available``, which are watched.
            read_only = []
        return RegisteredBookies(
            frozenset(name for name in writable if name != READ_ONLY_NAME), frozenset(read_only)
        )

    async def service_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """Return what a registered bookie says about itself, or None."""
        for is_read_only in (False, True):
            with contextlib.suppress(NoSuchNodeError):
                node = await self._store.get(self._paths.bookie(bookie_id, read_only=is_read_only))
                return BookieServiceInfo.decode(bookie_id, node.data)
        return None

    async def resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        """Return host and port of a registered bookie.

        Raises:
            ConnectFailedError: it is not registered.
        """
        info = await self.service_info(bookie_id)
        if info is None:
            raise ConnectFailedError(f"bookie {bookie_id} is not registered", bookie_id=bookie_id)
        return info.address(bookie_id)

    async def _move(self, *, is_read_only: bool) -> None:
        async with self._lock:
            wanted = self._wanted
            if wanted is None:
                raise NoSuchNodeError("this bookie is not registered")
            # If the session ends in the middle, the bookie comes back in its new state.
            wanted.is_read_only = is_read_only
            await self._put(wanted)

    async def _put(self, wanted: _Registered) -> None:
        """Create the node in one place, then delete it from the other."""
        path = self._paths.bookie(wanted.bookie_id, read_only=wanted.is_read_only)
        other = self._paths.bookie(wanted.bookie_id, read_only=not wanted.is_read_only)
        await self._create(path, wanted.info.encode(), take_over=wanted.take_over)
        with contextlib.suppress(NoSuchNodeError):
            await self._store.delete(other)

    async def _create(self, path: str, data: bytes, *, take_over: bool) -> None:
        deadline = asyncio.get_running_loop().time() + self._store.session_timeout_s * 1.5
        while True:
            try:
                await create_with_parents(self._store, path, data, ephemeral=True)
                return
            except NodeExistsError as error:
                gone = asyncio.Event()
                node = await self._store.exists(path, gone.set)
                if node is None:
                    continue
                if take_over or node.owner == self._store.session_id:
                    await self._store.replace(path, data, ephemeral=True)
                    return
                try:
                    async with patience.timeout_at(deadline):
                        await gone.wait()
                except TimeoutError:
                    raise NodeExistsError(
                        f"{path} is held by another living process (session {node.owner})"
                    ) from error
                finally:
                    self._store.unwatch(gone.set)

    async def _remove_own(self, path: str) -> None:
        node = await self._store.exists(path)
        if node is not None and node.owner == self._store.session_id:
            with contextlib.suppress(NoSuchNodeError):
                await self._store.delete(path)

    def _on_session_expired(self) -> None:
        self._ended_sessions += 1
        if self._wanted is None:
            return
        self._set_registered(False)
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.ensure_future(self._restore())

    async def _restore(self) -> None:
        """Register again, for as long as it takes."""
        delay_s = _RETRY_FIRST_S
        while self._wanted is not None:
            try:
                await self._store.renew_session()
                ended_sessions = self._ended_sessions
                async with self._lock:
                    if self._wanted is not None:
                        await self._put(self._wanted)
                        if ended_sessions != self._ended_sessions:
                            continue  # what was put went with its session
                        self._set_registered(True)
                return
            except LocalProtocolError:
                return  # the store was closed
            except MetadataError as error:
                _log.warning("bookie is not registered again yet: %s", error)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RETRY_LAST_S)

    async def _stop_restoring(self) -> None:
        task, self._restoring = self._restoring, None
        if task is not None:
            await cancel_and_wait([task])

    def _set_registered(self, is_registered: bool) -> None:
        if is_registered != self.is_registered:
            self.is_registered = is_registered
            if self.on_changed is not None:
                self.on_changed(is_registered)
