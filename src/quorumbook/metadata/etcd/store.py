"""A metadata store in etcd, for clusters that have one anyway: ``etcd://h1:2379,h2:2379/ledgers``.

``rows`` has the keys and values, ``calls`` the operations and transactions,
``watch`` the news, ``client`` the wire; here is the store and its session: a lease,
kept alive at a third of its length, and a key bound to it.  Every write demands, inside its
transaction, that the key is there, so a process that was paused beyond its lease finds its session
over whatever it believes.  etcd deletes the key and all ephemeral nodes in one step; the watch on
the key tells of it at once, an etcd that is merely away ends nothing.

The keys are this project's own: the tree with everything that the managers keep in it, elections
and under-replication included.  The peer's etcd driver keeps something else at its keys, without
these; a root that it has made a cluster at is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from quorumbook.env import Env, logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    MetadataError,
    MetadataFormatError,
    MetadataUnauthorizedError,
    MetadataUnavailableError,
)
from quorumbook.metadata.etcd.address import EtcdAddress
from quorumbook.metadata.etcd.calls import EtcdCall, EtcdCalls, EtcdSession, EtcdStep
from quorumbook.metadata.etcd.client import (
    GRANT,
    REVOKE,
    TXN,
    EtcdClient,
    NoSuchLeaseError,
    messages,
)
from quorumbook.metadata.etcd.credentials import credentials
from quorumbook.metadata.etcd.rows import MULTI_LIMIT, EtcdTree, EtcdView, Need, session_key
from quorumbook.metadata.etcd.watch import EtcdWatcher
from quorumbook.metadata.store import (
    DEFAULT_SESSION_TIMEOUT_S,
    Create,
    Delete,
    Node,
    Operation,
    Watch,
    split,
)
from quorumbook.metadata.tree import DriverStore, Stamp, WatchKind, WatchTable, run_callbacks

T = TypeVar("T")
_log = logger("metadata")
#: How long an operation waits for an etcd that does not answer.
_PATIENCE_S = 10.0
#: The same when a store is opened: addresses may be wrong, and somebody may be looking on.
_OPEN_PATIENCE_S = 3.0
_CLOSE_PATIENCE_S = 1.0
_RETRY_S = 0.5


class EtcdStore(DriverStore):
    """One session on a tree in etcd; implements ``store.MetadataStore``."""

    def __init__(
        self,
        address: EtcdAddress,
        env: Env,
        *,
        uri: str,
        session_timeout_s: float,
    ) -> None:
        super().__init__(uri, env, address.ledgers_root, MULTI_LIMIT)
        self.session_timeout_s = session_timeout_s
        self._ttl_s = math.ceil(session_timeout_s)
        self._watches = WatchTable()
        self._changed: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._client = self._connected(address, env)
        self._session = EtcdSession(on_over=self._tell_expired)
        self._calls = EtcdCalls(self._client, env, self._session, patience_s=_PATIENCE_S)
        self._watcher = EtcdWatcher(self._client, self._look_at, self._session_is_over)
        self._heartbeat = asyncio.ensure_future(self._beat())

    @classmethod
    async def open(
        cls,
        address: EtcdAddress,
        env: Env,
        *,
        uri: str,
        session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
    ) -> EtcdStore:
        """Connect and begin a session.

        Raises:
            MetadataUnavailableError: no endpoint answers.
            MetadataUnauthorizedError: etcd refuses our user or password, or wants one.
            MetadataFormatError: the peer's etcd driver has a cluster at this root.
            ConfigError: a file for TLS cannot be used.
        """
        store = cls(address, env, uri=uri, session_timeout_s=session_timeout_s)
        await store.begin()
        return store

    async def begin(self) -> None:
        """Begin the first session; raises as ``open``, and lets go of everything then."""
        try:
            await self._refuse_peer()
            await self.renew_session()
        except BaseException:
            await self._let_go()
            raise

    def _connected(self, address: EtcdAddress, env: Env) -> EtcdClient:
        return EtcdClient(address.endpoints, credentials(address.tls, env), address.login)

    @property
    def session_id(self) -> int:
        """The present session's lease, also when it is over."""
        return self._session.id

    async def renew_session(self) -> int:
        """Begin another session if the present one is over."""
        self._check_open()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._calls.submit(EtcdStep(self._renew, future))
        return await future

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Return a node."""
        need = Need(path, is_counted=True)
        row = await self._read(need, WatchKind.NODE, watch, lambda tree: tree.get(path))
        return row.node

    async def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node or None."""
        need = Need(path, is_counted=True)
        row = await self._read(need, WatchKind.NODE, watch, lambda tree: tree.find(path))
        return None if row is None else row.node

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted."""
        need = Need(path, has_names=True)
        return await self._read(need, WatchKind.CHILDREN, watch, lambda tree: tree.children(path))

    async def replace(self, path: str, data: bytes, ephemeral: bool) -> None:
        """Delete the node, if there is one, and create it anew."""
        content = bytes(data)

        def replace(tree: EtcdTree, _view: EtcdView) -> None:
            tree.replace(path, content, ephemeral, self._session.id, self._now_ms())

        needs = [*_needs(Create(path)), Need(path, is_counted=True)]
        await self._submit(needs, replace, is_write=True, size_bytes=len(content))

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none."""
        self._check_size(operations)
        return await self._write(list(operations))

    def unwatch(self, watch: Watch) -> None:
        """Forget a callback wherever it waits."""
        paths = self._watches.remove(watch)
        self._tidy(paths)

    async def close(self) -> None:
        """End the session."""
        if self._is_closed:
            return
        self._on_expired.clear()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.submit(EtcdStep(self._revoke, future))
        self._is_closed = True
        self._calls.patience_s = _CLOSE_PATIENCE_S
        self._heartbeat.cancel()
        await future
        await self._let_go()

    # Operations

    async def _write_one(self, operation: Operation) -> str | int | None:
        return (await self._write([operation]))[0]

    async def _write(self, operations: list[Operation]) -> list[str | int | None]:
        def apply(tree: EtcdTree, _view: EtcdView) -> list[str | int | None]:
            now_ms = self._now_ms()
            return [tree.apply(each, self._session.id, now_ms) for each in operations]

        return await self._submit(
            [need for each in operations for need in _needs(each)],
            apply,
            is_write=True,
            size_bytes=sum(len(getattr(each, "data", b"")) for each in operations),
        )

    async def _read(
        self, need: Need, kind: WatchKind, watch: Watch | None, look: Callable[[EtcdTree], T]
    ) -> T:
        def read(tree: EtcdTree, view: EtcdView) -> tuple[T, Stamp | None]:
            return look(tree), view.stamp(need.path)

        def leave(result: tuple[T, Stamp | None], revision: int) -> None:
            if watch is not None:
                self._watches.add(kind, need.path, watch, result[1])
                with_children = kind is WatchKind.CHILDREN
                self._watcher.want(need.path, revision, with_children=with_children)

        return (await self._submit([need], read, on_done=leave))[0]

    async def _submit(
        self,
        needs: Sequence[Need],
        work: Callable[[EtcdTree, EtcdView], T],
        *,
        is_write: bool = False,
        size_bytes: int = 0,
        on_done: Callable[[T, int], None] | None = None,
    ) -> T:
        self._check_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.submit(EtcdCall(needs, work, future, is_write, size_bytes, on_done))
        return await future

    def _now_ms(self) -> int:
        return self.env.clock.wall_ms()

    # The session

    async def _renew(self) -> int:
        if await self._is_living():
            return self._session.id
        request = messages["LeaseGrantRequest"](TTL=self._ttl_s)
        granted, _ = await self._client.call(GRANT, request, timeout_s=_PATIENCE_S)
        put = messages["PutRequest"](key=session_key(granted.ID), lease=granted.ID)
        txn = messages["TxnRequest"](success=[messages["RequestOp"](request_put=put)])
        answer, _ = await self._client.call(TXN, txn, timeout_s=_PATIENCE_S)
        # etcd grants no less than what its members need to elect a leader.
        self.session_timeout_s = max(self.session_timeout_s, float(granted.TTL))
        self._session.id, self._session.commits = granted.ID, 0
        self._session.revision = answer.header.revision
        self._session.is_living = True
        self._watcher.follow_session(granted.ID, answer.header.revision)
        return self._session.id

    async def _is_living(self) -> bool:
        """Ask etcd: the news of the end may be on its way."""
        if self._session.is_living:
            look = messages["RangeRequest"](key=session_key(self._session.id), keys_only=1)
            txn = messages["TxnRequest"](success=[messages["RequestOp"](request_range=look)])
            answer, _ = await self._client.call(TXN, txn, timeout_s=_PATIENCE_S)
            if not answer.responses[0].response_range.kvs:
                self._session.is_over()
        return self._session.is_living

    async def _revoke(self) -> None:
        if not self._session.is_living:
            return
        request = messages["LeaseRevokeRequest"](ID=self._session.id)
        with contextlib.suppress(NoSuchLeaseError):
            try:
                await self._client.call(REVOKE, request, timeout_s=_CLOSE_PATIENCE_S)
            except MetadataUnavailableError as error:
                _log.warning("metadata session is left to its lease: %s", error)

    async def _beat(self) -> None:
        third_s = self._ttl_s / 3
        while True:
            await asyncio.sleep(third_s)
            if not self._session.is_living:
                continue
            session_id = self._session.id
            try:
                is_living = await self._client.keep_alive(session_id, timeout_s=third_s)
            except MetadataError as error:
                # Not an expiry (R31): etcd may be able to say so, this process cannot.
                _log.warning("metadata heartbeat: %s", error)
            else:
                if not is_living:
                    self._session_is_over(session_id)

    def _session_is_over(self, session_id: int) -> None:
        if session_id == self._session.id:
            self._session.is_over()

    def _tell_expired(self) -> None:
        run_callbacks(self._on_expired.present())

    # Watches

    def _look_at(self, paths: Iterable[str]) -> None:
        """Compare what is watched at these paths with what is there now."""
        self._changed.update(paths)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        is_first = True
        while (self._changed or is_first) and not self._is_closed:
            is_first = False
            paths = sorted(self._changed)[:MULTI_LIMIT]
            self._changed.difference_update(paths)
            needs = [Need(path, is_counted=True) for path in paths]
            try:
                await self._submit(
                    needs,
                    lambda _, view: {need.path: view.stamp(need.path) for need in needs},  # noqa: B023
                    on_done=self._compare,
                )
            except MetadataError as error:
                _log.warning("metadata watches: %s", error)
                self._changed.update(paths)
                await asyncio.sleep(_RETRY_S)

    def _compare(self, stamps: dict[str, Stamp | None], _revision: int) -> None:
        changed = self._watches.take_changed(stamps.get, stamps)
        self._tidy(stamps)
        # Later, as the answers of this batch: a watch comes after what it tells of is readable.
        asyncio.get_running_loop().call_soon(self._call, changed)

    def _call(self, watches: Sequence[Watch]) -> None:
        if not self._is_closed:
            run_callbacks(watches)

    def _tidy(self, paths: Iterable[str]) -> None:
        """Have etcd watch no more than somebody waits for."""
        for path in paths:
            kinds = self._watches.kinds(path)
            if WatchKind.CHILDREN not in kinds:
                self._watcher.forget(path, only_children=bool(kinds))

    # Begin and end

    async def _refuse_peer(self) -> None:
        ranges = [
            messages["RangeRequest"](key=f"{self.ledgers_root}/{name}".encode(), count_only=1)
            for name in ("layout", "instanceid")
        ]
        txn = messages["TxnRequest"](
            success=[messages["RequestOp"](request_range=each) for each in ranges]
        )
        try:
            answer, _ = await self._client.call(TXN, txn, timeout_s=_OPEN_PATIENCE_S)
        except MetadataUnauthorizedError:
            # A user who may read our keys only; one who may not read them either, hears of that.
            return
        if any(each.response_range.count for each in answer.responses):
            raise MetadataFormatError(
                f"{self.uri}: Apache BookKeeper's etcd driver has a cluster at "
                f"{self.ledgers_root}, whose keys are others than ours; use another path in the "
                "URI, or another etcd"
            )

    async def _let_go(self) -> None:
        self._is_closed = True
        self._watches.clear()
        tasks = [self._heartbeat, *([self._looking] if self._looking is not None else [])]
        await cancel_and_wait(tasks)
        await self._watcher.stop()
        await self._calls.stop()
        await self._client.close()


def _needs(operation: Operation) -> list[Need]:
    """Return what an operation looks at."""
    path = operation.path
    if isinstance(operation, Create):
        parent = Need(split(path)[0])
        return [parent] if operation.sequential else [parent, Need(path)]
    return [Need(path, is_counted=isinstance(operation, Delete))]
