"""A simulated ZooKeeper: servers on machines of their own, which speak ZooKeeper's protocol.

The project's own driver talks to them over the simulated network, so requests and answers are
lost, cut up and late as on any connection.  A read is answered from what the server has seen so
far, which may be old; a write goes to the leader and is answered when the server has seen it
carried out.  What a server has forwarded is carried out, whatever becomes of the connection,
unless the session came back by another server before it arrived.

Servers die, stand still and lose the leader; the leader and its log never do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from quorumbook.metadata.memory import MemoryTree
from quorumbook.metadata.zookeeper.jute import PING_XID, Code, EventKind, Op
from quorumbook.sim.kernel import MILLISECOND, SECOND, Kernel
from quorumbook.sim.metadata import zookeeper_bytes as wire
from quorumbook.sim.metadata.memory import SimTree
from quorumbook.sim.metadata.zookeeper_state import Ensemble, Event, Replica, ServerFailure
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.process import Machine, Process

#: The leader's name in the network's cuts.
LEADER = "leader"
PORT = 2181
_WRITES = frozenset((Op.CREATE, Op.CREATE2, Op.SET, Op.DELETE))
#: So long a server serves on without its leader.
_ALONE_NS = 2 * SECOND
#: One that is late looks again after so long whether it has seen what it is to answer.
_LATE_LOOK_NS = SECOND // 20
#: The leader hears of a session's life no more often.
_TOUCH_NS = SECOND // 20


class ZooKeeper:
    """The ensemble and its servers.

    Args:
        kernel: Time and chance.
        network: All machines.
        tree: The leader's tree.
    """

    def __init__(self, kernel: Kernel, network: SimulatedNetwork, tree: SimTree) -> None:
        self.kernel = kernel
        self.network = network
        self.ensemble = Ensemble(tree)
        self.servers: list[Server] = []
        #: The probability that a connection ends at a request: before it, or before its answer.
        self.drops = 0.0

    def add(self, machine: Machine) -> Server:
        """Add a server."""
        server = Server(self, machine)
        self.servers.append(server)
        return server

    def committed(self) -> None:
        """The log grew: the servers hear of it."""
        for server in self.servers:
            server.hear_of(len(self.ensemble.log))

    def watch_over(self, session_id: int) -> None:
        """End a session when nothing was heard of it for its timeout."""
        session = self.ensemble.sessions.get(session_id)
        if session is None:
            return
        now_ns = self.kernel.now_ns
        over_ns = session.heard_ns + session.timeout_ns
        if now_ns < over_ns:
            self.kernel.at(over_ns, self.watch_over, session_id)
            return
        self.kernel.trace.note(LEADER, f"ends session {session_id:x}")
        self.ensemble.end_session(session_id, now_ns)
        self.committed()


class Server:
    """One server: its replica outlives its processes."""

    def __init__(self, zookeeper: ZooKeeper, machine: Machine) -> None:
        self.zookeeper = zookeeper
        self.machine = machine
        self.name = machine.name
        self.replica = Replica(MemoryTree())
        self._seen = 0
        self.connections: dict[int, _Connection] = {}
        self.watches = _Watches()
        self._last_to_leader_ns = 0
        self._last_from_leader_ns = 0
        self._alone_since_ns: int | None = None
        #: It carries nothing out, and shows the past to its clients.
        self.is_late = False

    def boot_up(self) -> None:
        """Start it, unless it runs."""
        if self.machine.process is None:
            self.connections.clear()
            self.watches = _Watches()
            self.machine.start(self._run)

    async def _run(self, process: Process) -> None:
        self.hear_of(len(self.zookeeper.ensemble.log))
        await process.env.network.listen(self.name, PORT, lambda: _Connection(self))
        while True:
            await asyncio.sleep(0.5)
            self._look_for_leader()

    def _look_for_leader(self) -> None:
        now_ns = self.zookeeper.kernel.now_ns
        if not self.is_apart:
            if self._alone_since_ns is not None:
                self._alone_since_ns = None
                self.hear_of(len(self.zookeeper.ensemble.log))
        elif self._alone_since_ns is None:
            self._alone_since_ns = now_ns
        elif now_ns - self._alone_since_ns > _ALONE_NS:
            for connection in list(self.connections.values()):
                connection.abort()

    @property
    def is_apart(self) -> bool:
        """Tell whether it does not reach the leader."""
        cuts = self.zookeeper.network.cuts
        return (self.name, LEADER) in cuts or (LEADER, self.name) in cuts

    def to_leader(self, who: _Connection, ask: Callable[[], None]) -> None:
        """Have something happen at the leader, in the order of the calls.

        The connection ends where that is not to be had, before it happened or never.
        """
        kernel = self.zookeeper.kernel

        def arrives() -> None:
            if not self.is_apart:
                ask()
            elif self.machine.process is not None:
                self.machine.process.loop.deliver(who.abort)

        if self.is_apart:
            who.abort()
            return
        when_ns = kernel.now_ns + self.zookeeper.network.latency_ns()
        self._last_to_leader_ns = max(when_ns, self._last_to_leader_ns)
        kernel.at(self._last_to_leader_ns, arrives)

    def from_leader(self, process: Process | None, tell: Callable[[], None]) -> None:
        """Have something happen here, behind all that the leader did before."""
        kernel = self.zookeeper.kernel
        when_ns = kernel.now_ns + self.zookeeper.network.latency_ns()
        self._last_from_leader_ns = max(when_ns, self._last_from_leader_ns)
        if process is not None:
            kernel.at(self._last_from_leader_ns, process.loop.arrive, tell)

    def answers(self, who: _Connection, count: int, tell: Callable[[], None]) -> None:
        """Answer once this server has seen so many steps; without the leader it cannot."""

        def here() -> None:
            if self.is_apart:
                who.abort()
                return
            if self.is_late and who.session_id:
                self.zookeeper.kernel.after(_LATE_LOOK_NS, self.answers, who, count, tell)
                return
            self.catch_up(count)
            tell()

        self.from_leader(who.process, here)

    def hear_of(self, count: int) -> None:
        """The log has so many steps."""
        self.from_leader(self.machine.process, lambda: self.catch_up(count))

    def go_on(self) -> None:
        """Be late no more."""
        self.is_late = False
        self.hear_of(len(self.zookeeper.ensemble.log))

    def catch_up(self, count: int) -> None:
        """Carry out the steps up to a number of them, and tell who watches."""
        if self.is_apart or self.is_late:
            return
        log = self.zookeeper.ensemble.log
        while self._seen < count:
            step = log[self._seen]
            self._seen += 1
            _, events = self.replica.apply(step)
            for event in events:
                self.watches.fire(event, self.replica.zxid)
            if step.is_end_of_session and step.session_id in self.connections:
                self.connections[step.session_id].abort()


class _Watches:
    """Who on a server waits for which node; a watch fires once."""

    def __init__(self) -> None:
        self._data: dict[str, dict[_Connection, None]] = {}
        self._children: dict[str, dict[_Connection, None]] = {}

    def add(self, path: str, who: _Connection, *, is_of_children: bool) -> None:
        """Wait."""
        table = self._children if is_of_children else self._data
        table.setdefault(path, {})[who] = None

    def remove(self, who: _Connection) -> None:
        """Forget a connection."""
        for table in (self._data, self._children):
            for waiting in table.values():
                waiting.pop(who, None)

    def fire(self, event: Event, zxid: int) -> None:
        """Tell of an event."""
        concerned: dict[_Connection, None] = {}
        if event.kind != EventKind.CHILDREN_CHANGED:
            concerned |= self._data.pop(event.path, {})
        if event.kind in (EventKind.CHILDREN_CHANGED, EventKind.DELETED):
            concerned |= self._children.pop(event.path, {})
        for connection in concerned:
            connection.send(wire.event(zxid, event.kind, event.path))


@dataclass(slots=True, eq=False)
class _Slot:
    """A request's place in the order of answers."""

    #: Makes the answer when all before it are answered; None while the leader has it.
    answer: Callable[[], bytes] | None = None
    #: The connection ends instead of the answer.
    is_lost: bool = False


class _Connection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._zookeeper = server.zookeeper
        self._kernel = server.zookeeper.kernel
        self.process = cast(Process, server.machine.process)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._slots: deque[_Slot] = deque()
        self._is_greeted = False
        self.session_id = 0
        self._touched_ns = -_TOUCH_NS

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it; what was forwarded goes on."""
        del exc
        self._transport = None
        self._server.watches.remove(self)
        if self._server.connections.get(self.session_id) is self:
            del self._server.connections[self.session_id]

    def data_received(self, data: bytes) -> None:
        """Carry out all complete frames."""
        self._received += data
        for body in wire.frames(self._received):
            if self._transport is None:
                return
            if not self._is_greeted:
                self._is_greeted = True
                self._greet(wire.greeting(body))
            else:
                self._ask(wire.request(body))

    def send(self, frame: bytes) -> None:
        """Send a frame, if somebody is there."""
        if self._transport is not None:
            self._transport.write(frame)

    def abort(self) -> None:
        """End the connection at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # Sessions

    def _greet(self, greeting: wire.Greeting) -> None:
        server = self._server
        knows_no_new_session = server.is_late and not greeting.session_id
        if greeting.last_zxid > server.replica.zxid or server.is_apart or knows_no_new_session:
            # It would see the past again, or nothing at all.
            self.abort()
            return

        def at_leader() -> None:
            ensemble, now_ns = self._zookeeper.ensemble, self._kernel.now_ns
            if greeting.session_id:
                session = ensemble.take_up(
                    greeting.session_id, greeting.password, server.name, now_ns
                )
            else:
                timeout_ns = greeting.timeout_ms * MILLISECOND
                session = ensemble.begin_session(server.name, timeout_ns, now_ns)
                self._zookeeper.watch_over(session.id)
                self._zookeeper.committed()

            def here() -> None:
                if self._transport is None:
                    return
                if session is None:
                    self.send(wire.connected(0, 0, bytes(16)))
                    self._transport.close()
                    return
                self.session_id = session.id
                before = server.connections.get(session.id)
                if before is not None:
                    before.abort()
                server.connections[session.id] = self
                timeout_ms = session.timeout_ns // MILLISECOND
                self.send(wire.connected(timeout_ms, session.id, session.password))

            server.answers(self, len(ensemble.log), here)

        server.to_leader(self, at_leader)

    def _touch(self) -> None:
        now_ns = self._kernel.now_ns
        if now_ns - self._touched_ns < _TOUCH_NS:
            return
        self._touched_ns = now_ns

        def at_leader() -> None:
            session = self._zookeeper.ensemble.sessions.get(self.session_id)
            if session is not None and session.server == self._server.name:
                session.heard_ns = self._kernel.now_ns

        self._server.to_leader(self, at_leader)

    # Requests

    def _ask(self, request: wire.ZooKeeperRequest) -> None:
        self._touch()
        operation, xid, record = request.operation, request.xid, request.record
        if operation == Op.PING:
            self.send(wire.answer(PING_XID, self._server.replica.zxid, Code.OK))
            return
        slot = _Slot()
        drops = self._zookeeper.drops
        if drops and self._kernel.tape.chance(drops):
            if self._kernel.tape.chance(0.5):
                self.abort()
                return
            slot.is_lost = True
        self._slots.append(slot)
        if operation in _WRITES or operation == Op.MULTI:
            self._write(slot, request)
        elif operation in (Op.SYNC, Op.CLOSE):
            self._forward(slot, xid, is_close=operation == Op.CLOSE)
        elif operation == Op.SET_WATCHES:
            slot.answer = lambda: self._set_watches(xid, record)
        else:
            path, is_watched = record.string(), record.flag()
            slot.answer = lambda: self._read(xid, operation, path, is_watched)
        self._answer()

    def _answer(self) -> None:
        """Send the answers whose turn it is."""
        slots = self._slots
        while slots and slots[0].answer is not None and self._transport is not None:
            slot = slots.popleft()
            assert slot.answer is not None
            frame = slot.answer()
            if slot.is_lost:
                self.abort()
            else:
                self.send(frame)

    def _forward(self, slot: _Slot, xid: int, *, is_close: bool) -> None:
        server = self._server

        def at_leader() -> None:
            if is_close:
                self._zookeeper.ensemble.end_session(self.session_id, self._kernel.now_ns)
                self._zookeeper.committed()
            self._come_back(slot, lambda: wire.answer(xid, server.replica.zxid, Code.OK))

        server.to_leader(self, at_leader)

    def _write(self, slot: _Slot, request: wire.ZooKeeperRequest) -> None:
        server, xid = self._server, request.xid
        is_multi = request.operation == Op.MULTI
        if is_multi:
            numbered = request.record.operations()
        else:
            numbered = [(request.operation, request.record.operation(request.operation))]
        kinds = [kind for kind, _ in numbered]
        operations = tuple(operation for _, operation in numbered)

        def at_leader() -> None:
            ensemble = self._zookeeper.ensemble
            done = ensemble.write(self.session_id, server.name, operations, self._kernel.now_ns)
            zxid = ensemble.zxid
            self._zookeeper.committed()
            if not isinstance(done, ServerFailure):
                records = [
                    wire.result(kind, outcome, ensemble.made)
                    for kind, outcome in zip(kinds, done, strict=True)
                ]
                record = wire.multi_results(kinds, records) if is_multi else records[0]
                answer = wire.answer(xid, zxid, Code.OK, record)
            elif is_multi and done.code not in (Code.SESSION_EXPIRED, Code.SESSION_MOVED):
                record = wire.multi_failure(len(operations), done.failed_at, done.code)
                answer = wire.answer(xid, zxid, Code.OK, record)
            else:
                answer = wire.answer(xid, zxid, done.code)
            self._come_back(slot, lambda: answer)

        server.to_leader(self, at_leader)

    def _come_back(self, slot: _Slot, answer: Callable[[], bytes]) -> None:
        """Answer once this server has seen all that the leader has done by now."""

        def here() -> None:
            slot.answer = answer
            self._answer()

        self._server.answers(self, len(self._zookeeper.ensemble.log), here)

    def _read(self, xid: int, operation: int, path: str, is_watched: bool) -> bytes:
        server = self._server
        replica = server.replica
        stat = replica.stat(path)
        if is_watched and (stat is not None or operation == Op.EXISTS):
            server.watches.add(path, self, is_of_children=operation == Op.CHILDREN)
        if stat is None:
            return wire.answer(xid, replica.zxid, Code.NO_NODE)
        if operation == Op.GET:
            row = replica.find(path)
            assert row is not None
            return wire.answer(xid, replica.zxid, 0, wire.data_and_stat(row.data, stat))
        if operation == Op.EXISTS:
            return wire.answer(xid, replica.zxid, 0, wire.stat(stat))
        assert operation == Op.CHILDREN, f"operation {operation} is not modelled"
        return wire.answer(xid, replica.zxid, 0, wire.strings(replica.children(path)))

    def _set_watches(self, xid: int, record: wire.RequestReader) -> bytes:
        server, replica = self._server, self._server.replica
        since = record.long()
        for path in record.strings():
            stat = replica.stat(path)
            if stat is None:
                self._news(EventKind.DELETED, path)
            elif stat.mzxid > since:
                self._news(EventKind.DATA_CHANGED, path)
            else:
                server.watches.add(path, self, is_of_children=False)
        for path in record.strings():
            if replica.find(path) is not None:
                self._news(EventKind.CREATED, path)
            else:
                server.watches.add(path, self, is_of_children=False)
        for path in record.strings():
            stat = replica.stat(path)
            if stat is None:
                self._news(EventKind.DELETED, path)
            elif stat.pzxid > since:
                self._news(EventKind.CHILDREN_CHANGED, path)
            else:
                server.watches.add(path, self, is_of_children=True)
        return wire.answer(xid, replica.zxid, Code.OK)

    def _news(self, kind: int, path: str) -> None:
        self.send(wire.event(self._server.replica.zxid, kind, path))
