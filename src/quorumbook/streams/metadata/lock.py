"""The lock of a stream, as DistributedLog's writers take it.

Everybody who wants it makes an ephemeral sequential member; the lowest number owns it, the others
watch the one right before theirs.  The lock only keeps writers from fighting.  What makes a
takeover safe is the fence on the segment's ledger and the versions of the stream's nodes; that is
why a standby may push the owner out by force.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from quorumbook.env import logger, patience
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    MetadataError,
    MetadataUnavailableError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.nodes import give_up_later
from quorumbook.metadata.store import Create, Delete, MetadataStore
from quorumbook.streams.errors import StreamNotFoundError, WriterBusyError
from quorumbook.streams.format.names import (
    lock_member_number,
    lock_member_owner,
    lock_member_prefix,
)

_log = logger("streams.lock")


class _Place(NamedTuple):
    """A place in the queue, the session that it goes with, and how many had ended before it."""

    member: str
    session_id: int
    ended: int


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
        #: Gives up a place that is there still, or may be.
        self._leaving: asyncio.Task[None] | None = None
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
        self._listen()
        try:
            await self._get(wait_s, may_wait=wait_s is None or wait_s > 0, by_force=by_force)
        except BaseException:
            self._let_go()
            raise

    async def _get(self, wait_s: float | None, *, may_wait: bool, by_force: bool) -> None:
        while True:
            self._check_left()
            if not may_wait and not by_force:
                await self._check_free()
            if await self._try(wait_s if may_wait else None, may_wait, by_force):
                return
            _log.warning("the place at %s went with its session: queueing up again", self._path)

    async def release(self) -> None:
        """Give the lock back."""
        member = self._let_go()
        if member is not None:
            await self._delete(member)

    async def owner(self) -> str:
        """Return the client id of whoever has the lock; empty if nobody has."""
        members = await self._members()
        return await self._owner_of(members[0]) if members else ""

    # Inside --------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._remove_callback is None:
            self._remove_callback = self._store.on_session_expired(self._on_session_expired)

    def _let_go(self) -> str | None:
        """Know of no place any more; return which it was."""
        member, self._member = self._member, None
        if self._remove_callback is not None:
            self._remove_callback()
            self._remove_callback = None
        return member

    def _check_left(self) -> None:
        """Raise if an earlier place is not given up yet: nobody is to be beaten by its own."""
        if self._leaving is not None and not self._leaving.done():
            raise MetadataUnavailableError(
                f"an earlier place at {self._path} could not be given up yet"
            )

    async def _check_free(self) -> None:
        """Raise WriterBusyError if somebody has it: who does not wait does not queue up either."""
        before = await self._members()
        if before:
            raise await self._busy(before[0])

    async def _try(
        self, wait_s: float | None, may_wait: bool, by_force: bool, place: _Place | None = None
    ) -> bool:
        """Queue up and wait; False if the session ended meanwhile, and the place with it."""
        member, session_id, ended = place or await self._join()
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

    async def _join(self) -> _Place:
        """Queue up."""
        ended = self._sessions_ended
        while True:
            session_id = await self._store.renew_session()
            try:
                found = await self._made(session_id, ended)
            except SessionExpiredError:
                continue
            except BaseException:
                self._leave_unseen(session_id)
                raise
            if found is not None:
                return found

    async def _made(self, session_id: int, ended: int) -> _Place | None:
        """Make a place; None: nobody heard of it, and it is not there."""
        place = self._creation(session_id)
        try:
            path = await self._store.create(place.path, place.data, ephemeral=True, sequential=True)
        except MetadataUnavailableError:
            return await self._find(session_id, ended)
        return _Place(path, session_id, ended)

    def _creation(self, session_id: int) -> Create:
        prefix = f"{self._path}/{lock_member_prefix(self._client_id, session_id)}"
        return Create(prefix, self._client_id.encode(), ephemeral=True, sequential=True)

    async def _find(self, session_id: int, ended: int) -> _Place | None:
        """Return a place that may have been made although nobody heard of it."""
        data = self._client_id.encode()
        for name in await self._members():
            path = f"{self._path}/{name}"
            node = await self._store.exists(path)
            if node is not None and node.owner == session_id and node.data == data:
                return _Place(path, session_id, ended)
        return None

    def _leave_unseen(self, session_id: int) -> None:
        """Give up, beside the caller, a place that may have been made; there is no other one."""

        async def leave() -> None:
            found = await self._find(session_id, 0)
            if found is not None:
                await self._store.delete(found.member)

        self._leaving = give_up_later(self._store, leave)

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
        except (MetadataUnavailableError, asyncio.CancelledError) as error:
            self._leaving = give_up_later(self._store, partial(self._store.delete, member))
            if isinstance(error, asyncio.CancelledError):
                raise
        except MetadataError:
            # It is gone, or goes with its session.
            return

    def _on_session_expired(self) -> None:
        self._sessions_ended += 1
        if self._member is not None:
            self._member = None
            if self.on_lost is not None:
                self.on_lost()


async def acquire_together(locks: Sequence[StreamLock]) -> bool:
    """Take locks in one store that nobody has, in one step; False: somebody has one, none is held.

    Raises:
        StreamNotFoundError: there is no such stream.
    """
    places: list[_Place | None] = [None] * len(locks)

    async def take(index: int) -> None:
        lock, place = locks[index], places[index]
        if place is None or not await lock._try(None, False, False, place):  # noqa: SLF001
            await lock.acquire()

    try:
        for lock in locks:
            lock._listen()  # noqa: SLF001 - of this module, as those below
        # Nobody is looked for before: where somebody is, the places are given up at once.
        places = await _join_together(locks)
        # Each comes to its end: one that is cancelled in the middle may leave its place behind.
        found = await asyncio.gather(*map(take, range(len(locks))), return_exceptions=True)
        for error in found:
            if error is not None and not isinstance(error, WriterBusyError):
                raise error
        if not any(found):
            return True
    except BaseException:
        # One that did not come to it has its place all the same.
        made = zip(locks, places, strict=True)
        try:
            await _leave({lock: place.member for lock, place in made if place is not None})
        finally:
            await release_together(locks)
        raise
    await release_together(locks)
    return False


async def _join_together(locks: Sequence[StreamLock]) -> list[_Place | None]:
    """Queue up everywhere at once; None: that one does so by itself."""
    if len(locks) < 2 or len(locks) > locks[0]._store.multi_limit:  # noqa: SLF001
        return [None] * len(locks)
    store = locks[0]._store  # noqa: SLF001
    ended = {lock: lock._sessions_ended for lock in locks}  # noqa: SLF001
    session_id = await store.renew_session()
    try:
        try:
            made = await store.multi([lock._creation(session_id) for lock in locks])  # noqa: SLF001
        except MetadataUnavailableError:
            return await gather_bounded(
                lambda lock: lock._find(session_id, ended[lock]),  # noqa: SLF001
                locks,
            )
        except (SessionExpiredError, NoSuchNodeError):
            return [None] * len(locks)
    except BaseException:
        for lock in locks:
            lock._leave_unseen(session_id)  # noqa: SLF001
        raise
    return [
        _Place(str(path), session_id, ended[lock]) for lock, path in zip(locks, made, strict=True)
    ]


async def release_together(locks: Sequence[StreamLock]) -> None:
    """Give locks back, in one step."""
    members = {lock: lock._let_go() for lock in locks}  # noqa: SLF001 - of this module
    await _leave({lock: member for lock, member in members.items() if member is not None})


async def _leave(members: Mapping[StreamLock, str]) -> None:
    if not members:
        return
    store = next(iter(members))._store  # noqa: SLF001 - of this module
    try:
        if 1 < len(members) <= store.multi_limit:
            with contextlib.suppress(MetadataError):
                await store.multi(list(map(Delete, members.values())))
                return
        await asyncio.gather(*(lock._delete(member) for lock, member in members.items()))  # noqa: SLF001
    except asyncio.CancelledError:
        for member in members.values():
            give_up_later(store, partial(store.delete, member))
        raise
