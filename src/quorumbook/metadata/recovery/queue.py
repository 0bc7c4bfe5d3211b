r"""The queue of ledgers that lack copies, in the peer's nodes.

Below ``<root>/underreplication``:

    ledgers/HHHH/HHHH/HHHH/HHHH/urL<id>   replica: "<bookie id>"\n ... ctime: <ms>\n

Texts are protobuf's text form.  The four groups are the id's 16 hexadecimal digits, <id> at least
ten decimal ones.  A mark names bookies whose copies are missing and may name none; its version
tells a worker whether the ledger was marked again while it was copied.

Who marks, who copies and when is the auditor's and the workers'; who is auditor is ``election``'s;
the locks are ``locks``'s, and what else lies there is ``switches``'s.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping, MutableSequence
from dataclasses import dataclass

from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.metadata.nodes import (
    OnceWatch,
    create_with_parents,
    parse_text_record,
    raise_damaged,
    text_record,
    with_living_session,
)
from quorumbook.metadata.paths import MAX_LEDGER_ID
from quorumbook.metadata.recovery.locks import ReplicationLocks
from quorumbook.metadata.recovery.switches import RecoverySwitches
from quorumbook.metadata.store import MetadataStore, Node, Revision, Watch, split

_GROUP = re.compile(r"[0-9a-f]{4}")
_LEAF = re.compile(r"urL([0-9]{10,19})")
_GROUPS = 4
#: Others may change a mark between our read and our write; nobody is that unlucky so often.
_ATTEMPTS = 32


@dataclass(frozen=True, slots=True)
class Mark:
    """What the queue says of one ledger."""

    ledger_id: LedgerId
    #: Bookies whose copies are missing, as they were reported; may be empty.
    replicas: tuple[BookieId, ...]
    #: When it was marked first, if whoever did so said when.
    ctime_ms: int | None = None

    def encode(self) -> bytes:
        """Return the content of the ledger's node."""
        return text_record(
            "UnderreplicatedLedgerFormat", replica=self.replicas, ctime=self.ctime_ms
        )

    @classmethod
    def decode(cls, ledger_id: LedgerId, data: bytes, path: str) -> Mark:
        """Read the content of a ledger's node.

        Raises:
            MetadataFormatError: it is damaged.
        """
        try:
            message = parse_text_record("UnderreplicatedLedgerFormat", data, path)
        except MetadataFormatError as error:
            raise MetadataFormatError(str(error), ledger_id=ledger_id) from error
        ctime_ms = message.ctime if message.HasField("ctime") else None
        return cls(ledger_id, tuple(message.replica), ctime_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A ledger that this queue holds the lock of."""

    mark: Mark
    #: The mark's when the work began; None if the ledger was not marked.
    revision: Revision | None

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger to be copied."""
        return self.mark.ledger_id


class UnderreplicationQueue(RecoverySwitches):
    """The under-replicated ledgers of one cluster, and the locks of one worker on them.

    Marks and switches are guarded by versions or existence, so they are written in a new session
    when the old one is over.  Locks go with their session: taking, finishing and releasing raise
    ``SessionExpiredError`` then, and the ledger is somebody else's to take.
    """

    def __init__(self, store: MetadataStore, worker: str = "") -> None:
        """Make a queue; ``worker`` is who its locks name, for people to read."""
        super().__init__(store)
        self._root = self._paths.underreplicated_ledgers
        self._locks = ReplicationLocks(store, worker)
        self._held: dict[LedgerId, Work] = {}
        self._forget_store = store.on_session_expired(self._held.clear)

    def close(self) -> None:
        """Forget the store; locks still held are given back as soon as it answers."""
        self._forget_store()
        self._held.clear()
        self._locks.close()

    # Marks

    async def mark(
        self, ledger_id: LedgerId, replicas: Collection[BookieId], ctime_ms: int | None = None
    ) -> None:
        """Say that copies of a ledger on these bookies are missing.

        Bookies reported before stay, and so does the time of the first report.  If that says
        nothing new, the mark's version rises only while somebody is at this ledger, who may have
        looked already; whoever begins later finds what is missing by looking.

        Raises:
            MetadataFormatError: the mark that is there is damaged, or of another layout.
            ClusterNotInitializedError: there is no cluster.
        """
        path = self._paths.underreplicated(ledger_id)
        wanted = Mark(ledger_id, tuple(dict.fromkeys(replicas)), ctime_ms)
        await self._ensure_layout()
        for _ in range(_ATTEMPTS):
            if await with_living_session(self._store, lambda: self._try_mark(path, wanted)):
                return
        raise MetadataUnavailableError(f"metadata node {path} is changed by others all the time")

    async def _try_mark(self, path: str, wanted: Mark) -> bool:
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self._store, path, wanted.encode())
            return True
        try:
            # Before the mark is read: one that is there when nobody was at it is left to workers
            # who begin later.
            lock = self._paths.underreplicated_lock(wanted.ledger_id)
            is_anybody_at_it = await self._store.exists(lock) is not None
            node = await self._store.get(path)
            old = Mark.decode(wanted.ledger_id, node.data, path)
            ctime_ms = wanted.ctime_ms if old.ctime_ms is None else old.ctime_ms
            replicas = tuple(dict.fromkeys((*old.replicas, *wanted.replicas)))
            merged = Mark(wanted.ledger_id, replicas, ctime_ms)
            if merged == old and not is_anybody_at_it:
                return True
            await self._store.set(path, merged.encode(), *node.revision)
        except (NoSuchNodeError, MetadataVersionConflict, MetadataFateUnknownError):
            return False
        return True

    async def read(self, ledger_id: LedgerId) -> Mark | None:
        """Return a ledger's mark, or None if nothing is known to be missing.

        Raises:
            MetadataFormatError: it is damaged.
        """
        found = await self._read(ledger_id)
        return None if found is None else found[0]

    async def list(
        self, damaged: MutableSequence[MetadataFormatError] | None = None
    ) -> AsyncIterator[Mark]:
        """Yield all marks, ascending by id.

        Ledgers marked or finished meanwhile may or may not be among them.

        Args:
            damaged: Takes one error for each damaged mark, which are not raised then.

        Raises:
            MetadataFormatError: marks are damaged, said behind all others; or it is no such queue.
            ClusterNotInitializedError: there is no cluster.
        """
        if not await self._check_layout():
            return
        errors = [] if damaged is None else damaged
        async for ledger_id in self._walk(self._root, 0):
            try:
                found = await self._read(ledger_id)
            except MetadataFormatError as error:
                errors.append(error)
                continue
            if found is not None:
                yield found[0]
        if damaged is None:
            raise_damaged(errors)

    async def worker_of(self, ledger_id: LedgerId) -> str | None:
        """Return who is at a ledger now, as its lock says for people to read; None: nobody.

        A lock that cannot be understood is ``?``: somebody is at it.
        """
        path = self._paths.underreplicated_lock(ledger_id)
        node = await self._store.exists(path)
        if node is None:
            return None
        try:
            return str(parse_text_record("LockDataFormat", node.data, path).bookieId)
        except MetadataFormatError:
            return "?"

    # Work

    async def take(
        self,
        watch: Watch | None = None,
        skip: Mapping[LedgerId, Revision | None] = {},
        damaged: MutableSequence[MetadataFormatError] | None = None,
    ) -> Work | None:
        """Lock a ledger that nobody works on, chosen by lot; None if there is none.

        Whether replication is enabled is not asked: see ``is_enabled``.

        Args:
            watch: runs once, when there may be one; only left if there is none now.
            skip: ledgers that are not wanted while their marks are of these revisions, or at all.
            damaged: takes one error for each damaged mark, which are not raised then.

        Raises:
            SessionExpiredError: renew the session first.
            MetadataFormatError: there is none but with damaged marks; their locks were released.
        """
        once = None if watch is None else OnceWatch(self._store, watch)
        taken = None
        errors = [] if damaged is None else damaged
        try:
            if await self._check_layout(once):
                locked = await self._locked(once)
                async for ledger_id in self._walk(self._root, 0, once, by_lot=True):
                    if ledger_id in self._held:
                        continue
                    if ledger_id in skip and await self._is_at(ledger_id, skip[ledger_id], once):
                        continue
                    if ledger_id in locked and not self._locks.is_held(ledger_id):
                        continue
                    try:
                        taken = await self._lock(ledger_id)
                    except MetadataFormatError as error:
                        errors.append(error)
                    if taken is not None:
                        return taken
                if damaged is None:
                    raise_damaged(errors)
        except BaseException:
            if once is not None:
                self._store.unwatch(once)
            raise
        finally:
            if taken is not None and once is not None:
                self._store.unwatch(once)
        return None

    async def take_this(self, ledger_id: LedgerId) -> Work | None:
        """Lock a ledger, whether it is marked or not; None if somebody works on it.

        Raises:
            SessionExpiredError: renew the session first.
            MetadataFormatError: its mark is damaged; the lock was released.
        """
        return None if ledger_id in self._held else await self._lock(ledger_id, is_marked=False)

    async def done(self, work: Work) -> bool:
        """Take a ledger that has all its copies off the queue, and release it.

        False says that it was marked again since it was taken: it stays in the queue.  If this
        fails for another reason than the session's end, the lock is still held.

        Raises:
            SessionExpiredError: the lock is lost, and the mark is left to others.
        """
        self._check_held(work)
        if work.revision is None:
            await self.release(work)
            return True
        path = self._paths.underreplicated(work.ledger_id)
        is_gone = True
        try:
            await self._store.delete(path, *work.revision)
        except (MetadataVersionConflict, MetadataFateUnknownError):
            is_gone = False  # another mark is there, whoever deleted the one that was taken
        except NoSuchNodeError:
            pass  # an earlier attempt's answer was lost, or the ledger itself was deleted
        if is_gone:
            with contextlib.suppress(NodeNotEmptyError, NoSuchNodeError):
                for _ in range(_GROUPS):
                    path, _name = split(path)
                    await self._store.delete(path)
        if self.is_held(work):
            await self.release(work)
        return is_gone

    async def release(self, work: Work) -> None:
        """Let others work on a ledger; it stays in the queue.

        A worker that has to wait, for a ledger to be closed say, just releases later: until then
        nobody else takes it.

        Raises:
            SessionExpiredError: the lock is lost already.
        """
        self._check_held(work)
        await self._locks.release(work.ledger_id)
        self._held.pop(work.ledger_id, None)

    def give_up(self, work: Work) -> None:
        """Let others work on a ledger as soon as the store answers."""
        if self.is_held(work):
            del self._held[work.ledger_id]
            self._locks.give_back(work.ledger_id)

    def is_held(self, work: Work) -> bool:
        """Tell whether the lock is still ours, as far as this process knows."""
        return self._held.get(work.ledger_id) is work

    async def _lock(self, ledger_id: LedgerId, *, is_marked: bool = True) -> Work | None:
        """Take a lock, then read what to do: what is marked from here on raises the version."""
        try:
            if not await self._locks.take(ledger_id):
                return None
            try:
                found = await self._read(ledger_id)
            except MetadataFormatError:
                await self._locks.release(ledger_id)
                raise
            if not self._locks.is_held(ledger_id):
                raise SessionExpiredError(f"the lock of ledger {ledger_id} went with its session")
            if found is None and is_marked:
                await self._locks.release(ledger_id)
                return None
        except BaseException:
            # Else nobody could take it for as long as our session lives.
            self._locks.give_back(ledger_id)
            raise
        work = Work(Mark(ledger_id, ()), None)
        if found is not None:
            work = Work(found[0], found[1].revision)
        self._held[ledger_id] = work
        return work

    async def _is_at(
        self, ledger_id: LedgerId, revision: Revision | None, watch: Watch | None
    ) -> bool:
        """Tell whether a mark is of this revision, or none is asked for."""
        if revision is None:
            return True
        node = await self._store.exists(self._paths.underreplicated(ledger_id), watch)
        return node is not None and node.revision == revision

    async def _locked(self, watch: Watch | None) -> set[LedgerId]:
        try:
            names = await self._store.children(self._paths.underreplicated_locks, watch)
        except NoSuchNodeError:
            return set()
        return {int(match[1]) for match in map(_LEAF.fullmatch, names) if match}

    def _check_held(self, work: Work) -> None:
        if not self.is_held(work):
            raise SessionExpiredError(
                f"the lock of under-replicated ledger {work.ledger_id} is not held any more"
            )

    # The tree

    async def _read(self, ledger_id: LedgerId) -> tuple[Mark, Node] | None:
        path = self._paths.underreplicated(ledger_id)
        try:
            node = await self._store.get(path)
        except NoSuchNodeError:
            return None
        return Mark.decode(ledger_id, node.data, path), node

    async def _walk(
        self, path: str, depth: int, watch: Watch | None = None, *, by_lot: bool = False
    ) -> AsyncIterator[LedgerId]:
        """Yield the ids of marked ledgers, leaving a watch on all that was looked into."""
        try:
            names = await self._store.children(path, watch)
        except NoSuchNodeError:
            if watch is not None and depth == 0 and await self._store.exists(path, watch):
                watch()  # made between our two questions
            return
        if by_lot:
            self._store.env.random.shuffle(names)
        for name in names:
            child = f"{path}/{name}"
            if depth < _GROUPS:
                if _GROUP.fullmatch(name):
                    async for ledger_id in self._walk(child, depth + 1, watch, by_lot=by_lot):
                        yield ledger_id
                continue
            match = _LEAF.fullmatch(name)
            # Whatever lies in another place than its own was not put there by a queue.
            if match and int(match[1]) <= MAX_LEDGER_ID:
                ledger_id = int(match[1])
                if self._paths.underreplicated(ledger_id) == child:
                    yield ledger_id
