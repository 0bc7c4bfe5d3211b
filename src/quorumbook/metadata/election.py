r"""Elections in the metadata store, as the peer elects its auditor; applications have them too.

    <path>               bookieId: "<leader>"\n       who led last
    <path>/V_<10 digits> bookieId: "<candidate>"\n    ephemeral and sequential: a vote

The vote of the lowest number leads and writes its id into the parent.  Numbers are compared as
signed ones, as the peer does.  A vote that does not lead watches the one right before it, so that
the end of a leader wakes one candidate and not all.

An election only avoids that two do the same work and fight about it; it gives no safety.  A
process that was paused believes to lead until it learns that its session is over, and meanwhile
another one does lead.  Whatever a leader does must be safe though a second one does it as well:
by compare-and-set, and by the fences on ledgers.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from types import TracebackType

from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    LocalProtocolError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import (
    create_with_parents,
    give_up_later,
    parse_text_record,
    text_record,
)
from quorumbook.metadata.store import MetadataStore

_log = logger("metadata.election")
_RECORD = "AuditorVoteFormat"
_PREFIX = "V_"
_VOTE = re.compile(r"V_(-?[0-9]{1,10})")
_RETRY_FIRST_S = 0.1
_RETRY_LAST_S = 5.0


async def current_leader(store: MetadataStore, path: str) -> str | None:
    """Return who leads now: the candidate of the lowest vote, None without a vote.

    Raises:
        MetadataFormatError: the vote is damaged.
    """
    while True:
        try:
            votes = _votes(await store.children(path))
        except NoSuchNodeError:
            return None
        if not votes:
            return None
        vote = f"{path}/{votes[0]}"
        with contextlib.suppress(NoSuchNodeError):
            return str(parse_text_record(_RECORD, (await store.get(vote)).data, vote).bookieId)


def named_election(store: MetadataStore, parent: str, name: str, candidate: str) -> Election:
    """Return a candidate of the election of a name, below a parent.

    Args:
        store: Where; stays the caller's to close.
        parent: The node below which elections lie; made when somebody stands.
        name: Which election.
        candidate: Who stands: nobody else's name; one is made up if it is empty.

    Raises:
        LocalProtocolError: an election cannot have that name.
    """
    if not re.fullmatch(r"[^/\0]+", name) or name in (".", ".."):
        raise LocalProtocolError(f"{name!r} is not a name of an election: it is one name in a path")
    if not candidate:
        candidate = f"candidate-{store.env.random.getrandbits(64):016x}"
    return Election(store, f"{parent}/{name}", candidate)


class Election:
    """One candidate of an election: ``async with`` stands at its beginning, resigns at its end.

    An election only avoids that two processes do the same work and fight about it.  Its leader
    may have been paused for longer than its session lived: it believes to lead, and another one
    does.  So never rely on ``is_leader`` for safety.  What a leader does must be safe with two of
    them; a fence sees to that (a stream's writer, a ledger's recovery), or compare-and-set.
    """

    def __init__(self, store: MetadataStore, path: str, candidate: str) -> None:
        self._store = store
        self._path = path
        #: By which name this candidate stands.
        self.candidate = candidate
        self._data = text_record(_RECORD, bookieId=candidate)
        #: The path of our vote while its session lives.
        self._vote: str | None = None
        self._look_again = asyncio.Event()
        #: Set, and replaced, when ``is_leader`` changes or this candidate stands no more.
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._resigning: asyncio.Task[None] | None = None
        self._remove_callback: Callable[[], None] | None = None
        #: Whether this candidate leads, as far as this process knows.
        self.is_leader = False
        #: Called on the loop whenever ``is_leader`` changes; when the session ends, before
        #: anything that comes after.
        self.on_changed: Callable[[bool], None] | None = None

    @property
    def has_vote(self) -> bool:
        """Tell whether this candidate's vote is in the store, as far as this process knows."""
        return self._vote is not None

    async def __aenter__(self) -> Election:
        self.stand()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.resign()

    async def wait_to_lead(self) -> None:
        """Wait until this candidate leads.

        Raises:
            LocalProtocolError: it does not stand, or the store was closed.
        """
        await self._wait_for(leads=True)

    async def wait_to_lose(self) -> None:
        """Wait until this candidate does not lead, as far as this process knows."""
        await self._wait_for(leads=False)

    async def _wait_for(self, *, leads: bool) -> None:
        while self.is_leader is not leads:
            if self._task is None or self._task.done():
                raise LocalProtocolError(f"{self.candidate} does not stand at {self._path}")
            await self._news.wait()

    def stand(self) -> None:
        """Vote for this candidate until it resigns, in one session after the other.

        A store that does not answer, or a session that ends, is no reason to give up: another vote
        is cast as soon as that is possible, and it is the last in the row then.
        """
        if self._task is None:
            self._remove_callback = self._store.on_session_expired(self._on_session_expired)
            self._task = asyncio.ensure_future(self._run())
            # A closed store ends it without anybody's call.
            self._task.add_done_callback(lambda _: self._tell())

    async def resign(self) -> None:
        """Stop leading, withdraw the vote, and stand no more."""
        task, self._task = self._task, None
        if task is None:
            return
        self._set_leader(False)
        # It goes on without whoever is cancelled.
        self._resigning = asyncio.ensure_future(self._resign(task))
        await asyncio.shield(self._resigning)

    async def _resign(self, task: asyncio.Task[None]) -> None:
        await cancel_and_wait([task])
        self._tell()
        assert self._remove_callback is not None
        self._remove_callback()
        self._store.unwatch(self._look_again.set)
        vote, self._vote = self._vote, None

        async def withdraw() -> None:
            found = vote or await self._find_vote()
            if found is not None:
                await self._store.delete(found)

        try:
            await withdraw()
        except MetadataUnavailableError:
            # It would lead as long as the session lasts, and nobody else would.
            give_up_later(self._store, withdraw)
        except (MetadataError, LocalProtocolError):
            return  # it is gone, or goes with its session

    async def leader(self) -> str | None:
        """Return who leads now, None if nobody stands."""
        return await current_leader(self._store, self._path)

    async def _run(self) -> None:
        delay_s = _RETRY_FIRST_S
        while True:
            self._look_again.clear()
            try:
                await self._look()
            except LocalProtocolError:
                self._set_leader(False)
                return  # the store was closed
            except MetadataError as error:
                _log.warning("the election at %s waits: %s", self._path, error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, _RETRY_LAST_S)
                continue
            delay_s = _RETRY_FIRST_S
            await self._look_again.wait()

    async def _look(self) -> None:
        """Find out where our vote stands, and leave the watch that goes with that."""
        if self._vote is None:
            await self._cast()
        vote = self._vote
        self._store.unwatch(self._look_again.set)
        try:
            votes = _votes(await self._store.children(self._path))
        except NoSuchNodeError:
            votes = []
        # A session that ended meanwhile has rung already.
        if vote is None or self._vote is not vote:
            return
        name = vote.rpartition("/")[2]
        if name not in votes:
            # Somebody took it away.
            self._vote = None
            self._set_leader(False)
            self._look_again.set()
        elif votes[0] == name:
            await self._lead(vote)
        else:
            self._set_leader(False)
            before = f"{self._path}/{votes[votes.index(name) - 1]}"
            if await self._store.exists(before, self._look_again.set) is None:
                self._look_again.set()

    async def _lead(self, vote: str) -> None:
        # Its own vote may be taken away, or one come in front when the numbers begin anew.
        names = _votes(await self._store.children(self._path, self._look_again.set))
        if not names or f"{self._path}/{names[0]}" != vote:
            self._look_again.set()
            return
        if not self.is_leader:
            await self._store.set(self._path, self._data)
            if self._vote is vote:
                self._set_leader(True)

    async def _cast(self) -> None:
        session_id = await self._store.renew_session()
        vote = await self._find_vote()
        if vote is None:
            vote = await create_with_parents(
                self._store, f"{self._path}/{_PREFIX}", self._data, ephemeral=True, sequential=True
            )
        if session_id == self._store.session_id:
            self._vote = vote
        else:
            self._look_again.set()

    async def _find_vote(self) -> str | None:
        """Return a vote that was cast in this session although its answer was lost."""
        with contextlib.suppress(NoSuchNodeError):
            for name in _votes(await self._store.children(self._path)):
                vote = f"{self._path}/{name}"
                node = await self._store.exists(vote)
                if node is None:
                    continue
                if node.owner == self._store.session_id and node.data == self._data:
                    return vote
        return None

    def _on_session_expired(self) -> None:
        self._vote = None
        self._set_leader(False)
        self._look_again.set()

    def _set_leader(self, is_leader: bool) -> None:
        if is_leader != self.is_leader:
            self.is_leader = is_leader
            self._tell()
            if self.on_changed is not None:
                self.on_changed(is_leader)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _votes(names: list[str]) -> list[str]:
    """Return the votes among these names, the one that leads first."""
    numbers = {name: int(match[1]) for name in names if (match := _VOTE.fullmatch(name))}
    return sorted(numbers, key=numbers.__getitem__)
