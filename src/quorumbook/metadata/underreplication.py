r"""The queue of ledgers that lack copies, in the peer's nodes.

Below ``<root>/underreplication``:

    LAYOUT                                type: "BASIC"\nversion: 1\n
    ledgers/HHHH/HHHH/HHHH/HHHH/urL<id>   replica: "<bookie id>"\n ... ctime: <ms>\n
    locks/urL<id>                         bookieId: "<who works on it>"\n      ephemeral
    disable                               empty; present: nobody audits or copies
    lostBookieRecoveryDelay               seconds, in decimal
    checkallledgersctime  placementpolicycheckctime  replicascheckctime
                                          protobuf, binary: 1 int64, ms

Texts are protobuf's text form.  The four groups are the id's 16 hexadecimal digits, <id> at least
ten decimal ones.  A mark names bookies whose copies are missing and may name none; its version
tells a worker whether the ledger was marked again while it was copied.  The lock keeps workers out
of each other's way, no more: what makes their work safe is the compare-and-set on the ledger's
metadata.

Who marks, who copies and when is the auditor's and the workers'; who is auditor is ``election``'s.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import DecodeError

from quorumbook.errors import (
    LocalProtocolError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.nodes import (
    OnceWatch,
    create_with_parents,
    parse_text_record,
    text_record,
    with_living_session,
)
from quorumbook.metadata.paths import MAX_LEDGER_ID, TreePaths
from quorumbook.metadata.store import MetadataStore, Node, Watch, split
from quorumbook.protocol.messages import message_class

_TYPE, _VERSION = "BASIC", 1
_GROUP = re.compile(r"[0-9a-f]{4}")
_LEAF = re.compile(r"urL([0-9]{10,19})")
_GROUPS = 4
#: Others may change a mark between our read and our write; nobody is that unlucky so often.
_ATTEMPTS = 32


class Check(Enum):
    """A check of the auditor's whose last time is remembered; the value is its node's name."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


_CHECK_FIELDS = {
    Check.ALL_LEDGERS: ("CheckAllLedgersFormat", "checkAllLedgersCTime"),
    Check.PLACEMENT: ("PlacementPolicyCheckFormat", "placementPolicyCheckCTime"),
    Check.REPLICAS: ("ReplicasCheckFormat", "replicasCheckCTime"),
}


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
        message = parse_text_record("UnderreplicatedLedgerFormat", data, path)
        ctime_ms = message.ctime if message.HasField("ctime") else None
        return cls(ledger_id, tuple(message.replica), ctime_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A ledger that this queue holds the lock of."""

    mark: Mark
    #: The mark's version when the work began.
    version: int

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger to be copied."""
        return self.mark.ledger_id


class UnderreplicationQueue:
    """The under-replicated ledgers of one cluster, and the locks of one worker on them.

    Marks and switches are guarded by versions or existence, so they are written in a new session
    when the old one is over.  Locks go with their session: taking, finishing and releasing raise
    ``SessionExpiredError`` then, and the ledger is somebody else's to take.
    """

    def __init__(self, store: MetadataStore, worker: str = "") -> None:
        """Make a queue; ``worker`` is who its locks name, for people to read."""
        self._store = store
        self._worker = worker
        self._paths = TreePaths(store.ledgers_root)
        self._held: dict[LedgerId, Work] = {}
        #: Locks of ours of which nobody knows whether they are there: an answer was lost.
        self._unsure: set[LedgerId] = set()
        self._has_layout = False
        self._remove_callback = store.on_session_expired(self._on_session_expired)

    def close(self) -> None:
        """Forget the store; locks still held go with its session."""
        self._remove_callback()

    # Marks

    async def mark(
        self, ledger_id: LedgerId, replicas: Collection[BookieId], ctime_ms: int | None = None
    ) -> None:
        """Say that copies of a ledger on these bookies are missing.

        Bookies reported before stay, and so does the time of the first report.  The mark's version
        rises also if it says nothing new: a worker that is at this ledger may have looked already.

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
        try:
            await create_with_parents(self._store, path, wanted.encode())
            return True
        except NodeExistsError:
            pass
        try:
            node = await self._store.get(path)
            old = Mark.decode(wanted.ledger_id, node.data, path)
            ctime_ms = wanted.ctime_ms if old.ctime_ms is None else old.ctime_ms
            replicas = tuple(dict.fromkeys((*old.replicas, *wanted.replicas)))
            merged = Mark(wanted.ledger_id, replicas, ctime_ms)
            await self._store.set(path, merged.encode(), node.version)
        except (NoSuchNodeError, MetadataVersionConflict):
            return False
        return True

    async def read(self, ledger_id: LedgerId) -> Mark | None:
        """Return a ledger's mark, or None if nothing is known to be missing.

        Raises:
            MetadataFormatError: it is damaged.
        """
        found = await self._read(ledger_id)
        return None if found is None else found[0]

    async def list(self) -> AsyncIterator[Mark]:
        """Yield all marks, ascending by id.

        Ledgers marked or finished meanwhile may or may not be among them.

        Raises:
            MetadataFormatError: a mark is damaged, or the queue is of another layout.
            ClusterNotInitializedError: there is no cluster.
        """
        if not await self._check_layout():
            return
        async for ledger_id in self._walk(self._paths.underreplicated_ledgers, 0):
            found = await self._read(ledger_id)
            if found is not None:
                yield found[0]

    # Work

    async def take(self, watch: Watch | None = None) -> Work | None:
        """Lock a ledger that nobody works on, chosen by lot; None if there is none.

        Whether replication is enabled is not asked: see ``is_enabled``.

        Args:
            watch: runs once, when there may be one; only left if there is none now.

        Raises:
            SessionExpiredError: renew the session first.
            MetadataFormatError: a mark is damaged; its lock was released.
        """
        once = None if watch is None else OnceWatch(self._store, watch)
        taken = None
        try:
            if await self._check_layout(once):
                locked = await self._locked(once)
                root = self._paths.underreplicated_ledgers
                async for ledger_id in self._walk(root, 0, once, by_lot=True):
                    if ledger_id in self._held or ledger_id in locked - self._unsure:
                        continue
                    taken = await self._lock(ledger_id)
                    if taken is not None:
                        return taken
        except BaseException:
            if once is not None:
                self._store.unwatch(once)
            raise
        finally:
            if taken is not None and once is not None:
                self._store.unwatch(once)
        return None

    async def done(self, work: Work) -> bool:
        """Take a ledger that has all its copies off the queue, and release it.

        False says that it was marked again since it was taken: it stays in the queue.  If this
        fails for another reason than the session's end, the lock is still held.

        Raises:
            SessionExpiredError: the lock is lost, and the mark is left to others.
        """
        self._check_held(work)
        path = self._paths.underreplicated(work.ledger_id)
        is_gone = True
        try:
            await self._store.delete(path, work.version)
        except MetadataVersionConflict:
            is_gone = False
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
        await self._unlock(work.ledger_id)
        self._held.pop(work.ledger_id, None)

    def is_held(self, work: Work) -> bool:
        """Tell whether the lock is still ours, as far as this process knows."""
        return self._held.get(work.ledger_id) is work

    async def _lock(self, ledger_id: LedgerId) -> Work | None:
        """Take a lock, then read what to do: what is marked from here on raises the version."""
        lock = self._paths.underreplicated_lock(ledger_id)
        session_id = self._store.session_id
        data = text_record("LockDataFormat", bookieId=self._worker or None)
        try:
            await create_with_parents(self._store, lock, data, ephemeral=True)
        except NodeExistsError:
            node = await self._store.exists(lock)
            is_ours = node is not None and node.owner == session_id and ledger_id in self._unsure
            if not is_ours:
                return None
        except SessionExpiredError:
            raise
        except BaseException:
            self._unsure.add(ledger_id)
            raise
        self._unsure.add(ledger_id)
        try:
            found = await self._read(ledger_id)
        except MetadataFormatError:
            await self._unlock(ledger_id)
            raise
        if session_id != self._store.session_id or ledger_id not in self._unsure:
            raise SessionExpiredError(f"the lock of ledger {ledger_id} went with its session")
        if found is None:
            await self._unlock(ledger_id)
            return None
        self._unsure.discard(ledger_id)
        self._held[ledger_id] = work = Work(found[0], found[1].version)
        return work

    async def _unlock(self, ledger_id: LedgerId) -> None:
        if ledger_id not in self._held and ledger_id not in self._unsure:
            return  # the session ended, and whoever holds it now is somebody else
        self._unsure.add(ledger_id)
        with contextlib.suppress(NoSuchNodeError, SessionExpiredError):
            await self._store.delete(self._paths.underreplicated_lock(ledger_id))
        self._unsure.discard(ledger_id)

    async def _locked(self, watch: Watch | None) -> set[LedgerId]:
        path = self._paths.underreplicated_locks
        try:
            names = await self._store.children(path, watch)
        except NoSuchNodeError:
            return set()
        return {int(match[1]) for match in map(_LEAF.fullmatch, names) if match}

    def _check_held(self, work: Work) -> None:
        if not self.is_held(work):
            raise SessionExpiredError(
                f"the lock of under-replicated ledger {work.ledger_id} is not held any more"
            )

    def _on_session_expired(self) -> None:
        self._held.clear()
        self._unsure.clear()

    # Switches

    async def is_enabled(self, watch: Watch | None = None) -> bool:
        """Tell whether ledgers are to be audited and copied; the watch runs when that changes."""
        return await self._store.exists(self._node("disable"), watch) is None

    async def disable(self) -> bool:
        """Have nobody audit or copy ledgers from now on; tell whether that is a change."""
        await self._ensure_layout()
        try:
            await with_living_session(
                self._store, lambda: create_with_parents(self._store, self._node("disable"))
            )
        except NodeExistsError:
            return False
        return True

    async def enable(self) -> bool:
        """Have ledgers audited and copied again; tell whether that is a change."""
        await read_instance_id(self._store)
        try:
            await with_living_session(
                self._store, lambda: self._store.delete(self._node("disable"))
            )
        except NoSuchNodeError:
            return False
        return True

    async def lost_bookie_delay_s(self, watch: Watch | None = None) -> int | None:
        """Return how long a bookie may be away before it counts as lost; None: nothing is set.

        The watch runs when it changes.

        Raises:
            MetadataFormatError: it is no number.
        """
        path = self._node("lostBookieRecoveryDelay")
        node = await self._store.exists(path, watch)
        if node is None:
            return None
        text = node.data.decode("latin-1")
        if not re.fullmatch(r"-?[0-9]{1,10}", text):
            raise MetadataFormatError(f"metadata node {path} holds {node.data[:40]!r}, no seconds")
        return int(text)

    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Set it for the whole cluster, whether or not it was set before."""
        if not 0 <= delay_s < 2**31:
            raise LocalProtocolError(f"{delay_s} s is no delay between 0 and 2^31 - 1")
        await self._put("lostBookieRecoveryDelay", str(delay_s).encode())

    async def checked_at_ms(self, check: Check) -> int | None:
        """Return when a check ended last; None if it never did.

        Raises:
            MetadataFormatError: the node is damaged.
        """
        path = self._node(check.value)
        node = await self._store.exists(path)
        if node is None:
            return None
        name, field = _CHECK_FIELDS[check]
        try:
            message = message_class(name).FromString(node.data)
        except DecodeError as error:
            raise MetadataFormatError(f"metadata node {path} cannot be understood") from error
        return int(getattr(message, field)) if message.HasField(field) else None

    async def set_checked_at_ms(self, check: Check, ms: int) -> None:
        """Remember when a check ended."""
        name, field = _CHECK_FIELDS[check]
        await self._put(check.value, message_class(name)(**{field: ms}).SerializeToString())

    # The tree

    def _node(self, name: str) -> str:
        return f"{self._paths.underreplication}/{name}"

    async def _put(self, name: str, data: bytes) -> None:
        path = self._node(name)
        await self._ensure_layout()

        async def put() -> None:
            try:
                await self._store.set(path, data)
            except NoSuchNodeError:
                with contextlib.suppress(NodeExistsError):
                    await create_with_parents(self._store, path, data)
                    return
                await self._store.set(path, data)

        await with_living_session(self._store, put)

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

    async def _check_layout(self, watch: Watch | None = None) -> bool:
        """Tell whether there is a queue; one of another kind is refused."""
        if self._has_layout:
            return True
        path = self._node("LAYOUT")
        node = await self._store.exists(path, watch)
        if node is None:
            await read_instance_id(self._store)
            return False
        found = parse_text_record("LedgerRereplicationLayoutFormat", node.data, path)
        if (found.type, found.version) != (_TYPE, _VERSION):
            raise MetadataFormatError(
                f"metadata node {path} names {found.type!r} of version {found.version}; only "
                f"{_TYPE} of version {_VERSION} is known here"
            )
        self._has_layout = True
        return True

    async def _ensure_layout(self) -> None:
        if await self._check_layout():
            return
        data = text_record("LedgerRereplicationLayoutFormat", type=_TYPE, version=_VERSION)

        async def create() -> str:
            return await create_with_parents(self._store, self._node("LAYOUT"), data)

        with contextlib.suppress(NodeExistsError):
            await with_living_session(self._store, create)
        await self._check_layout()
