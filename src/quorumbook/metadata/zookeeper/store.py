"""A metadata store in ZooKeeper; implements ``store.MetadataStore``.

Every operation is one request; several may be under way and are carried out in their order.
A read whose answer is lost with its connection is asked again.  What became of a write whose
answer is lost is found out where it can be (``lost_writes``): then it is asked again or has
succeeded; otherwise it fails with ``MetadataFateUnknownError``, and may have happened.  Nothing
waits longer than twice the session's timeout.

ZooKeeper compares versions, which begin anew with a node that is deleted and created again.  Where
an operation says which node it means, that is looked up before it is sent, and its answer says
whether it was that one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from quorumbook.env import Env
from quorumbook.env.tls import TlsContexts, TlsOptions
from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
    QuorumbookError,
    RemoteProtocolError,
    SessionExpiredError,
)
from quorumbook.metadata.store import (
    DEFAULT_LEDGERS_ROOT,
    DEFAULT_SESSION_TIMEOUT_S,
    Create,
    Delete,
    Node,
    Operation,
    Set,
    Watch,
    check_path,
)
from quorumbook.metadata.tree import DriverStore, run_callbacks
from quorumbook.metadata.zookeeper import jute, lost_writes
from quorumbook.metadata.zookeeper.connection import Answer, AnswerLost, ZooKeeperConnection
from quorumbook.metadata.zookeeper.joined_writes import (
    JOINED_DATA_MAX_BYTES,
    JoinedWrite,
    JoinedWrites,
)
from quorumbook.metadata.zookeeper.jute import AnswerHeader, Code, Op
from quorumbook.metadata.zookeeper.lost_writes import Fate, Sight
from quorumbook.metadata.zookeeper.requests import check_writes, error_of, write_request
from quorumbook.metadata.zookeeper.session import Credential, ZooKeeperSession
from quorumbook.metadata.zookeeper.watches import ServerWatchKind

#: A multi must fit into one request; this many creations of ledgers do.
MULTI_LIMIT = 1000
#: Somebody else may make and delete the node as often; nobody is that unlucky.
_REPLACE_ATTEMPTS = 32
#: The server has not done what was asked, and this connection is of no use any more.
_USELESS = frozenset(
    (Code.CONNECTION_LOSS, Code.OPERATION_TIMEOUT, Code.SESSION_EXPIRED, Code.SESSION_MOVED)
)


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """Where a tree is and as whom we come."""

    servers: list[tuple[str, int]]
    ledgers_root: str = DEFAULT_LEDGERS_ROOT
    #: All paths are below this one; it must exist.
    chroot: str = ""
    credential: Credential | None = None
    acl: tuple[jute.Acl, ...] = field(default=jute.OPEN_ACL)
    tls: TlsOptions | None = None


class ZooKeeperStore(DriverStore):
    """One session on a tree in ZooKeeper."""

    def __init__(
        self, options: ZooKeeperOptions, env: Env, *, uri: str, session_timeout_s: float
    ) -> None:
        super().__init__(uri, env, options.ledgers_root, MULTI_LIMIT)
        self._chroot = options.chroot
        self._acl = jute.acls(options.acl)
        self._loop = asyncio.get_running_loop()
        self._patience_s = session_timeout_s
        #: Ephemeral nodes whose creation was found out about after its answer was lost.
        self._found: set[tuple[str, int]] = set()
        self._joined = JoinedWrites(self._write_step)
        self._session = ZooKeeperSession(
            env,
            options.servers,
            session_timeout_s,
            options.credential,
            TlsContexts(options.tls, env.clock, server_side=False) if options.tls else None,
            self._tell_expired,
        )

    @classmethod
    async def open(
        cls,
        options: ZooKeeperOptions,
        env: Env,
        *,
        uri: str,
        session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
    ) -> ZooKeeperStore:
        """Connect and begin a session.

        Raises:
            MetadataUnavailableError: no server answers.
            MetadataUnauthorizedError: the servers refuse the credentials.
            ConfigError: a file for TLS cannot be used.
        """
        store = cls(options, env, uri=uri, session_timeout_s=session_timeout_s)
        try:
            await store._session.connection(store._deadline())
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session_timeout_s(self) -> float:
        """How long the servers let the session outlive the last sign of us."""
        return self._session.timeout_s

    @property
    def session_id(self) -> int:
        """The present session, also when it is over."""
        return self._session.session_id

    async def renew_session(self) -> int:
        """Begin another session if the present one is over."""
        self._check_open()
        await self._session.renew(self._deadline())
        return self.session_id

    async def create_node(self, path: str, data: bytes) -> Node | None:
        """Create a persistent node and return it, as the answer has it."""
        made = await self._write_beside_others(Create(path, bytes(data)), Op.CREATE2)
        return replace(made, data=bytes(data)) if isinstance(made, Node) else None

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Return a node."""
        header, body = await self._read(Op.GET, path, watch)
        if header.error:
            raise error_of(header.error, path)
        answer = jute.JuteReader(body)
        return answer.node(answer.buffer())

    async def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node or None."""
        while True:
            # The request made for this brings no data, and its watch is needed only if there
            # is no node.
            try:
                return await self.get(path, watch)
            except NoSuchNodeError:
                if watch is None:
                    return None
            header, _ = await self._read(Op.EXISTS, path, watch)
            if header.error == Code.NO_NODE:
                return None
            if header.error:
                raise error_of(header.error, path)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted."""
        header, body = await self._read(Op.CHILDREN, path, watch)
        if header.error:
            raise error_of(header.error, path)
        return sorted(jute.JuteReader(body).strings())

    async def _write_one(self, operation: Operation) -> str | int | None:
        if isinstance(operation, Set) and operation.creation_id is not None:
            node = await self._write_beside_others(operation, Op.SET)
            if not isinstance(node, Node):
                return node[0]
            _check_same(operation.path, node, operation.creation_id)
            return node.version
        result = await self._write([operation])
        if isinstance(result, list):
            return result[0]
        answer = jute.JuteReader(result)
        if isinstance(operation, Create):
            return answer.string()[len(self._chroot) :]
        return answer.node().version if isinstance(operation, Set) else None

    async def replace(self, path: str, data: bytes, ephemeral: bool) -> None:
        """Delete the node, if there is one, and create it anew."""
        creation = Create(path, bytes(data), ephemeral)
        for _ in range(_REPLACE_ATTEMPTS):
            # Nothing is compared: it is as good to do it again as to know that it was done.
            with contextlib.suppress(NoSuchNodeError, MetadataFateUnknownError):
                await self.multi([Delete(path), creation])
                return
            with contextlib.suppress(NodeExistsError, MetadataFateUnknownError):
                await self._write_one(creation)
                return
        raise MetadataUnavailableError(f"metadata node {path} comes and goes: not replaced")

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none."""
        self._check_size(operations)
        result = await self._write(list(operations), Op.MULTI)
        if isinstance(result, list):
            return result
        results, failed_at, failure = jute.JuteReader(result).multi()
        if failure:
            raise error_of(failure, operations[failed_at].path)
        found: list[str | int | None] = []
        for operation, each in zip(operations, results, strict=True):
            if isinstance(each, Node):
                assert isinstance(operation, Set)
                _check_same(operation.path, each, operation.creation_id)
                found.append(each.version)
            else:
                found.append(None if each is None else each[len(self._chroot) :])
        return found

    def unwatch(self, watch: Watch) -> None:
        """Forget a callback wherever it waits."""
        self._session.watches.remove(watch)

    async def close(self) -> None:
        """End the session."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_expired.clear()
        self._session.watches.clear()
        await self._session.close()

    # Requests

    async def _read(self, operation: Op, path: str, watch: Watch | None) -> Answer:
        self._check_open()
        check_path(path)
        full_path = jute.located(self._chroot, path)
        record = jute.path_and_watch(full_path, watch is not None)
        remember = None
        if watch is not None:
            remember = _remembering(self._session, operation, full_path, watch)
        deadline = self._deadline()
        while True:
            connection = await self._session.connection(deadline)
            try:
                answer = await connection.request(operation, record, remember)
            except AnswerLost:
                continue
            if answer.header.error not in _USELESS:
                return answer
            _give_up(connection, answer.header)

    async def _write_beside_others(
        self, operation: Create | Set, kind: Op
    ) -> Node | list[str | int | None]:
        """Carry out an operation of a node below which nobody writes this way.

        Where the server is being waited for, it goes in one step with others of this turn.

        Returns:
            The node, without the data it was created with; or a result that was found out.
        """
        session_id, lost = self.session_id, None
        is_small = len(operation.data) <= JOINED_DATA_MAX_BYTES
        if is_small and self._session.is_busy and not self._is_closed:
            check_writes([operation])
            await self._check_named([operation])
            told = await self._joined.add(operation, session_id)
            if isinstance(told, Node):
                return told
            lost = told
        body = await self._write([operation], kind, session_id=session_id, lost=lost)
        if isinstance(body, list):
            return body
        answer = jute.JuteReader(body)
        if isinstance(operation, Create):
            answer.string()
        return answer.node()

    async def _write_step(self, writes: Sequence[JoinedWrite]) -> None:
        """Carry out several operations as one step, and tell each what became of it."""
        operations, lost = [each.operation for each in writes], None
        try:
            body = await self._answer_to_step(operations, {each.session_id for each in writes})
            if body is not None:
                results, failed_at, failure = jute.JuteReader(body).multi()
                nodes = [each for each in results if isinstance(each, Node)]
                if failure:
                    writes[failed_at].refuse(error_of(failure, operations[failed_at].path))
                elif len(nodes) != len(writes):
                    raise RemoteProtocolError("ZooKeeper answers what was not asked in a step")
                else:
                    for write, node in zip(writes, nodes, strict=True):
                        write.tell(node)
        except AnswerLost as error:
            lost = error
        except QuorumbookError as error:
            for write in writes:
                write.refuse(error)
        finally:
            for write in writes:
                write.go_on_alone(lost)

    async def _answer_to_step(
        self, operations: Sequence[Create | Set], session_ids: set[int]
    ) -> bytes | None:
        """Ask for a step; None: it was not carried out, and nothing is known of one of them."""
        session = self._session
        connection = await session.connection(self._deadline())
        if session.is_over or session_ids != {session.session_id}:
            return None
        record = jute.multi_record(operations, self._chroot, self._acl, has_stats=True)
        header, body = await connection.request(Op.MULTI, record)
        if header.error in _USELESS:
            _give_up(connection, header)
        return None if header.error else body

    async def _write(
        self,
        operations: list[Operation],
        kind: Op | None = None,
        *,
        session_id: int | None = None,
        lost: AnswerLost | None = None,
    ) -> bytes | list[str | int | None]:
        """Return the body of the answer, or results that were found out without one.

        Args:
            operations: What to carry out.
            kind: How it is asked for, if not as the one operation's own request.
            session_id: The session that it belongs to, if not to the present one.
            lost: How the answer was lost, if it has been asked for before.
        """
        self._check_open()
        number, record = write_request(
            operations, self._chroot, self._acl, is_multi=kind is Op.MULTI
        )
        number = number if kind is None else kind
        session = self._session
        session_id = session.session_id if session_id is None else session_id
        deadline = self._deadline()
        while True:
            if lost is not None:
                results = await self._settle(operations, session_id, lost, deadline)
                if results is not None:
                    return results
                lost = None
            if session.is_over or session.session_id != session_id:
                raise SessionExpiredError(f"metadata session 0x{session_id:x} is over")
            await self._check_named(operations)
            connection = await session.connection(deadline)
            if session.is_over or session.session_id != session_id:
                continue
            try:
                header, body = await connection.request(number, record)
            except AnswerLost as error:
                lost = error
                continue
            if not header.error:
                return body
            if header.error not in _USELESS:
                raise error_of(header.error, operations[0].path if operations else "/")
            _give_up(connection, header)

    async def _check_named(self, operations: Sequence[Operation]) -> None:
        """Look whether the nodes are those that the operations mean."""
        named = {
            each.path: each.creation_id
            for each in operations
            if not isinstance(each, Create) and each.creation_id is not None
        }
        if len(named) > 1:
            nodes = await asyncio.gather(*map(self.get, named))
        else:  # what every ledger's end does, without a task for it
            nodes = [await self.get(path) for path in named]
        for (path, creation_id), node in zip(named.items(), nodes, strict=True):
            _check_same(path, node, creation_id)

    async def _settle(
        self, operations: list[Operation], session_id: int, lost: AnswerLost, deadline: float
    ) -> list[str | int | None] | None:
        """Find out what became of a write: its results, or None if it was not carried out.

        Raises:
            MetadataFateUnknownError: that cannot be known.
        """
        try:
            await self._session.connection(deadline)
            window = (lost.answered_zxid, self._session.barrier_zxid)
            fate = await lost_writes.settle(
                operations, _Eyes(self._sight, self._names, window, session_id, self._found)
            )
        except MetadataUnavailableError as error:
            raise MetadataUnavailableError(f"{error}; what was asked may have happened") from error
        if fate is Fate.UNKNOWN:
            raise MetadataFateUnknownError(
                f"{lost}: what was asked of {operations[0].path if operations else '/'} may have "
                "happened"
            )
        return None if fate is Fate.NOT_DONE else fate

    async def _sight(self, path: str) -> Sight | None:
        """Return a node and when it was changed, or None."""
        answer = await self._read(Op.GET, path, None)
        if answer.header.error == Code.NO_NODE:
            return None
        if answer.header.error:
            raise error_of(answer.header.error, path)
        record = jute.JuteReader(answer.body)
        data = record.buffer()
        modified_zxid, children_zxid = record.changes()
        return Sight(record.node(data), modified_zxid, children_zxid)

    async def _names(self, path: str) -> list[str]:
        """Return the names of the children, none if there is no node."""
        try:
            return await self.children(path)
        except NoSuchNodeError:
            return []

    def _deadline(self) -> float:
        return self._loop.time() + self._patience_s

    def _tell_expired(self) -> None:
        self._found.clear()
        run_callbacks(self._on_expired.present())


@dataclass(frozen=True, slots=True)
class _Eyes:
    """How ``lost_writes`` looks at the tree."""

    look: Callable[[str], Awaitable[Sight | None]]
    children: Callable[[str], Awaitable[list[str]]]
    window: tuple[int, int]
    session_id: int
    claimed: set[tuple[str, int]]


def _remembering(
    session: ZooKeeperSession, operation: Op, path: str, watch: Watch
) -> Callable[[AnswerHeader], None]:
    """Return what keeps a watch when the server has it, too."""

    def remember(header: AnswerHeader) -> None:
        if operation == Op.CHILDREN:
            kind = ServerWatchKind.CHILDREN
        elif operation == Op.EXISTS and header.error == Code.NO_NODE:
            session.watches.add(ServerWatchKind.EXISTS, path, watch)
            return
        else:
            kind = ServerWatchKind.DATA
        if not header.error:
            session.watches.add(kind, path, watch)

    return remember


def _check_same(path: str, node: Node, creation_id: int | None) -> None:
    if creation_id not in (None, node.creation_id):
        raise MetadataVersionConflict(f"metadata node {path} was deleted and made again")


def _give_up(connection: ZooKeeperConnection, header: AnswerHeader) -> None:
    connection.end(f"the server is of no use any more (error {header.error})")
