"""The lock of a stream, as DistributedLog's writers take it.

Everybody who wants it makes an ephemeral sequential member; the lowest number owns it, the others
watch the one right before theirs.  The lock only keeps writers from fighting.  What makes a
takeover safe is the fence on the segment's ledger and the versions of the stream's nodes; that is
why a standby may push the owner out by force.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from quorumbook.env import logger, patience
from quorumbook.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchNodeError,
    QuorumbookError,
    SessionExpiredError,
)
from quorumbook.metadata.store import MetadataStore
from quorumbook.streams.errors import StreamNotFoundError, WriterBusyError
from quorumbook.streams.format.names import (
    lock_member_number,
    lock_member_owner,
    lock_member_prefix,
)

_log = logger("streams.lock")
#: After so long it is tried again to give a place up that the store did not hear of.
_DELETE_AGAIN_S = 1.0
#: Those tries; a loop keeps no task alive.
_DELETING: set[asyncio.Task[None]] = set()


class StreamLock:
    """One candidate for a lock; its client id must be nobody else's."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        client_id: str,
        not_found: Callable[[], StreamNotFoundError],
    ) -> None:
        """Make a candidate for the lock at a path; what is raised if the path is not there."""
        self._store = store
        self._path = path
        self._client_id = client_id
        self._not_found = not_found
        self._member: str | None = None
        self._remove_callback: Callable[[], None] | None = None
        self._sessions_ended = 0
        #: Called on the loop when the session ended, and the lock with it.
        self.on_lost: Callable[[], None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this candidate owns the lock, as far as this process knows."""
        return self._member is not None

    async def acquire(self, *, wait_s: float | None = 0, by_force: bool = False) -> None:
        """Get the lock.

        Args:
            wait_s: How long others may keep it; None: as long as they like.
            by_force: Push whoever has it out.

        Raises:
            WriterBusyError: somebody else has it.
            StreamNotFoundError: there is no such stream.
        """
        if self._remove_callback is None:
            self._remove_callback = self._store.on_session_expired(self._on_session_expired)
        may_wait = wait_s is None or wait_s > 0
        if not may_wait and not by_force:
            # Who does not wait does not queue up either.
            before = await self._members()
            if before:
                raise await self._busy(before[0])
        while not await self._try(wait_s if may_wait else None, may_wait, by_force):
            _log.warning("the place at %s went with its session: queueing up again", self._path)

    async def release(self) -> None:
        """Give the lock back."""
        member, self._member = self._member, None
        if self._remove_callback is not None:
            self._remove_callback()
            self._remove_callback = None
        if member is not None:
            await self._delete(member)

    async def owner(self) -> str:
        """Return the client id of whoever has the lock; empty if nobody has."""
        members = await self._members()
        return await self._owner_of(members[0]) if members else ""

    # Inside --------------------------------------------------------------------------------

    async def _try(self, wait_s: float | None, may_wait: bool, by_force: bool) -> bool:
        """Queue up and wait; False if the session ended meanwhile, and the place with it."""
        ended = self._sessions_ended
        member, session_id = await self._join()
        try:
            if by_force:
                await self._push_out(member)
            async with patience.timeout(wait_s):
                is_mine = await self._wait_for_turn(member, may_wait=may_wait)
            if not is_mine and await self._store.renew_session() == session_id:
                raise WriterBusyError(
                    f"the lock at {self._path} was taken away while it was waited for"
                )
        except TimeoutError:
            await self._delete(member)
            before = await self._members()
            raise await self._busy(before[0] if before else "") from None
        except BaseException:
            await self._delete(member)
            raise
        if not is_mine or ended != self._sessions_ended:
            # The news may be of a session before this place's, which would stay and be waited for.
            await self._delete(member)
            return False
        self._member = member
        return True

    async def _members(self) -> list[str]:
        try:
            names = await self._store.children(self._path)
        except NoSuchNodeError as error:
            raise self._not_found() from error
        return sorted((n for n in names if n.startswith("member_")), key=lock_member_number)

    async def _join(self) -> tuple[str, int]:
        """Queue up; return one's place and the session that it goes with."""
        data = self._client_id.encode()
        while True:
            session_id = await self._store.renew_session()
            prefix = f"{self._path}/{lock_member_prefix(self._client_id, session_id)}"
            try:
                path = await self._store.create(prefix, data, ephemeral=True, sequential=True)
            except SessionExpiredError:
                continue
            except MetadataUnavailableError:
                # It may have been made although nobody heard of it.
                for name in await self._members():
                    path = f"{self._path}/{name}"
                    node = await self._store.exists(path)
                    if node is not None and node.owner == session_id and node.data == data:
                        return path, session_id
            else:
                return path, session_id

    async def _wait_for_turn(self, member: str, *, may_wait: bool) -> bool:
        """Wait until a member is the first; False if it is not there any more."""
        name = member.rpartition("/")[2]
        news = asyncio.Event()
        try:
            while True:
                news.clear()
                members = await self._members()
                if name not in members:
                    return False
                place = members.index(name)
                if place == 0:
                    return True
                if not may_wait:
                    raise await self._busy(members[0])
                before = f"{self._path}/{members[place - 1]}"
                if await self._store.exists(before, news.set) is not None:
                    await news.wait()
        finally:
            self._store.unwatch(news.set)

    async def _push_out(self, member: str) -> None:
        name = member.rpartition("/")[2]
        for other in await self._members():
            if other == name:
                return
            _log.warning(
                "the lock at %s is taken over from %s", self._path, await self._owner_of(other)
            )
            await self._delete(f"{self._path}/{other}")

    async def _owner_of(self, name: str) -> str:
        with contextlib.suppress(NoSuchNodeError):
            return (await self._store.get(f"{self._path}/{name}")).data.decode("utf-8", "replace")
        known = lock_member_owner(name)
        return known[0] if known else name

    async def _busy(self, name: str) -> WriterBusyError:
        owner = await self._owner_of(name) if name else "somebody"
        return WriterBusyError(
            f"{owner} has the lock at {self._path}; wait for it, or take it over with "
            "takeover='force' (--takeover force)",
            owner=owner,
        )

    async def _delete(self, member: str) -> None:
        try:
            await self._store.delete(member)
        except MetadataUnavailableError:
            # A session may last as long as its process, and everybody would wait for so long.
            task = asyncio.create_task(self._delete_later(member))
            _DELETING.add(task)
            task.add_done_callback(_DELETING.discard)
        except MetadataError:
            # It is gone, or goes with its session.
            return

    async def _delete_later(self, member: str) -> None:
        while True:
            await asyncio.sleep(_DELETE_AGAIN_S)
            try:
                await self._store.delete(member)
            except MetadataUnavailableError:
                continue
            except QuorumbookError:
                # The same, or the store is closed and ends the session.
                return
            return

    def _on_session_expired(self) -> None:
        self._sessions_ended += 1
        if self._member is not None:
            self._member = None
            if self.on_lost is not None:
                self.on_lost()
