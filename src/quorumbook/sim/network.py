"""A network between named machines: streams that keep their order and nothing else.

Each piece that is written arrives after a time of its own, heavy-tailed, never before what was
written earlier on that stream; pieces are joined or cut anywhere, down to single bytes, and within
the first bytes of a frame.  A machine may be slow: all its links are.  A link
that is cut in one direction holds back what goes that way until it heals, as TCP does, and lets no
new connection be made.  A reset loses what is under way in both directions.  A process that dies
resets its connections; a machine that dies in silence leaves them half open, until what is
written to them finds another life of the machine.

Frames, time-outs and retries are the business of those who talk.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from quorumbook.sim.kernel import MICROSECOND, SECOND, Kernel
from quorumbook.sim.loop import ProcessLoop

_LATENCY_NS = 150 * MICROSECOND
_LONGEST_LATENCY_NS = 3 * SECOND
_HIGH_WATER_BYTES = 64 * 1024
_CONNECT_TIMEOUT_NS = 20 * SECOND
_RECHUNK_BYTES_MAX = 4096
#: A frame begins with its length in 4 bytes, and what kind it is in 4 more.
_HEAD_BYTES = 9
_INBOX_BYTES = 256 * 1024


class NetworkedProcess(Protocol):
    """One life of a machine, as the network sees it."""

    name: str
    is_dead: bool
    loop: ProcessLoop

    @property
    def is_machine_up(self) -> bool:
        """Tell whether its machine runs this or another process."""
        ...


class SimulatedNetwork:
    """All links, listeners and connections."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        #: Directed links that carry nothing, as (from, to).
        self.cuts: set[tuple[str, str]] = set()
        #: The probability of a long latency, and that a piece is cut up.
        self.tail = 0.0
        self.rechunk = 0.0
        #: By machine, what stands between it and who connects to it.
        self.interpreters: dict[str, Callable[[asyncio.Protocol], asyncio.Protocol]] = {}
        #: By machine, how many times longer everything takes from there and to there.
        self.slow: dict[str, float] = {}
        self.listeners: dict[
            tuple[str, int], tuple[NetworkedProcess, Callable[[], asyncio.Protocol]]
        ] = {}
        self._ports = 20000
        #: Directed links on which something is to happen: after how many pieces, and what.
        self._awaited: dict[tuple[str, str], tuple[int, Callable[[], None]]] = {}
        self._ends: dict[str, list[Transport]] = {}

    def of(self, process: NetworkedProcess) -> ProcessNetwork:
        """Return the network as one process sees it."""
        return ProcessNetwork(self, process)

    def latency_ns(self, *ends: str) -> int:
        """Draw how long a piece takes, between two machines if they are said."""
        typical_ns = _LATENCY_NS
        for end in ends if self.slow else ():
            typical_ns = int(typical_ns * self.slow.get(end, 1.0))
        return self.kernel.tape.heavy_ns(typical_ns, self.tail, _LONGEST_LATENCY_NS)

    def cut(self, source: str, target: str) -> None:
        """Let nothing go from one machine to another."""
        self.cuts.add((source, target))

    def at_piece(self, source: str, target: str, number: int, act: Callable[[], None]) -> None:
        """Act just before the so-manieth piece from now on gets from one machine to another."""
        self._awaited[source, target] = number, act

    def piece_arrives(self, source: str, target: str) -> None:
        """A piece is about to arrive."""
        found = self._awaited.get((source, target)) if self._awaited else None
        if found is None:
            return
        left, act = found[0] - 1, found[1]
        if left:
            self._awaited[source, target] = left, act
        else:
            del self._awaited[source, target]
            act()

    def heal(self, source: str, target: str) -> None:
        """End a cut, and send what it held back."""
        self._awaited.pop((source, target), None)
        self.cuts.discard((source, target))
        for end in list(self._ends.get(source, ())):
            if end.peer is not None and end.peer.process.name == target:
                end.release()

    def heal_all(self) -> None:
        """End all cuts."""
        self._awaited.clear()
        for source, target in sorted(self.cuts):
            self.heal(source, target)

    def reset_one(self) -> None:
        """Reset some connection."""
        ends = [end for name in sorted(self._ends) for end in self._ends[name]]
        if ends:
            end = self.kernel.tape.pick(ends)
            self.kernel.trace.note(end.process.name, "loses a connection")
            for each in (end, end.peer):
                if each is not None:
                    each.reset()

    def reset_between(self, one: str, other: str) -> None:
        """Reset the connections between two machines."""
        for end in list(self._ends.get(one, ())):
            if end.peer is not None and end.peer.process.name == other:
                end.peer.reset()
                end.reset()

    def reset_within(self, size: int) -> None:
        """Let some connection carry so many bytes more in one direction, then reset it."""
        ends = [end for name in sorted(self._ends) for end in self._ends[name]]
        if ends:
            self.kernel.tape.pick(ends).carries_bytes = size

    def forget(self, name: str, *, is_silent: bool) -> None:
        """A process died: nobody listens there, and its connections end or go half open."""
        for address in [each for each in self.listeners if self.listeners[each][0].name == name]:
            del self.listeners[address]
        for end in self._ends.pop(name, []):
            end.is_over = True
            if end.peer is not None and not is_silent:
                self.kernel.after(self.latency_ns(), end.peer.reset)

    def join(
        self, client: NetworkedProcess, server: NetworkedProcess, port: int
    ) -> tuple[Transport, Transport]:
        """Make a connection."""
        self._ports += 1
        near = Transport(self, client, (client.name, self._ports), (server.name, port))
        far = Transport(self, server, (server.name, port), (client.name, self._ports))
        near.peer, far.peer = far, near
        for end in (near, far):
            self._ends.setdefault(end.process.name, []).append(end)
        return near, far

    def connections_of(self, name: str) -> int:
        """Return how many ends of connections a machine has."""
        return len(self._ends.get(name, ()))

    def leave(self, end: Transport) -> None:
        """Forget an end that is over."""
        ends = self._ends.get(end.process.name, [])
        if end in ends:
            ends.remove(end)


class _Socket:
    def __init__(self, host: str, port: int) -> None:
        self._name = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._name


class Listener:
    """What ``listen`` returns."""

    def __init__(self, network: SimulatedNetwork, host: str, port: int) -> None:
        self._network = network
        self._address = host, port
        # Names are addresses here; whoever looks at one wants digits.
        self.sockets = (_Socket("127.0.0.1", port),)

    def close(self) -> None:
        """Listen no more."""
        self._network.listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        """Return at once."""


class ProcessNetwork:
    """The network of one process, as an ``Env`` has it."""

    def __init__(self, network: SimulatedNetwork, process: NetworkedProcess) -> None:
        self._network = network
        self._process = process

    async def address_of(self, host: str) -> str:
        """Return the host: names are addresses here."""
        return host

    async def listen(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> Any:
        """Accept connections."""
        listeners = self._network.listeners
        if (host, port) in listeners:
            raise OSError(errno.EADDRINUSE, "the port is in use")
        listeners[host, port] = self._process, factory
        return Listener(self._network, host, port)

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[Any, asyncio.Protocol]:
        """Open a connection."""
        network, process = self._network, self._process
        kernel, loop = network.kernel, process.loop
        made: asyncio.Future[Transport] = loop.create_future()
        given_up_ns = kernel.now_ns + _CONNECT_TIMEOUT_NS

        def latency_ns() -> int:
            return network.latency_ns(process.name, host)

        def answer(outcome: Transport | OSError) -> None:
            if made.done():
                if isinstance(outcome, Transport):
                    outcome.abort()
            elif isinstance(outcome, OSError):
                made.set_exception(outcome)
            else:
                made.set_result(outcome)

        def knock() -> None:
            if process.is_dead:
                return
            if {(process.name, host), (host, process.name)} & network.cuts:
                if kernel.now_ns < given_up_ns:
                    kernel.after(SECOND // 2, knock)
                else:
                    loop.deliver(answer, TimeoutError(errno.ETIMEDOUT, "no answer"))
                return
            found = network.listeners.get((host, port))
            if found is None:
                refused = ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
                kernel.after(latency_ns(), loop.deliver, answer, refused)
                return
            server, serve = found
            near, far = network.join(process, server, port)
            server.loop.deliver(far.begin, serve)
            kernel.after(latency_ns(), loop.arrive, answer, near)

        kernel.after(latency_ns(), knock)
        transport = await made
        protocol = factory()
        between = network.interpreters.get(host)
        transport.begin(lambda: protocol if between is None else between(protocol))
        return transport, protocol

    def start_tls(self, *arguments: Any, **named: Any) -> Any:
        """Refuse: there is no TLS here yet."""
        raise NotImplementedError


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: SimulatedNetwork,
        process: NetworkedProcess,
        name: tuple[str, int],
        peer_name: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": name, "peername": peer_name})
        self._network = network
        self.process = process
        self.peer: Transport | None = None
        self.is_over = False
        self._protocol: asyncio.Protocol | None = None
        self._is_closing = False
        self._is_paused = False
        #: Arrived before the protocol was there, or while it did not read.
        self._unread: list[bytes] = []
        self._has_ended = False
        self._failure: Exception | None = None
        self._is_lost = False
        #: Under way, the oldest first; an arrival is that of the oldest.
        self._flying: deque[bytes | None] = deque()
        #: How many arrivals a cut holds back.
        self._held = 0
        self._last_arrival_ns = 0
        self._unsent_bytes = 0
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        self._is_full = False
        #: How many bytes it still carries, if something ends it.
        self.carries_bytes: int | None = None
        #: What lies here and was not taken in: more than enough, and the sender has to wait.
        self.inbox_bytes = 0

    # For the protocol

    def begin(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Hand the connection to its protocol."""
        self._protocol = factory()
        self._protocol.connection_made(self)
        self._drain_unread()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand it to another one."""
        self._protocol = protocol  # type: ignore[assignment]

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self._is_closing or self.is_over

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._is_closing or self.is_over or not data:
            return
        piece = bytes(data)
        self._unsent_bytes += len(piece)
        network = self._network
        if network.rechunk and network.kernel.tape.chance(network.rechunk):
            self._send_in_pieces(piece)
        else:
            self._send(piece)
        if self._unsent_bytes > self._high and not self._is_full:
            self._is_full = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send them as one."""
        self.write(b"".join(list_of_data))

    def _send_in_pieces(self, piece: bytes) -> None:
        tape = self._network.kernel.tape
        position = tape.below(_HEAD_BYTES)
        if position:
            self._send(piece[:position])
        while position < len(piece):
            size = 1 + tape.below(tape.pick((1, 16, _RECHUNK_BYTES_MAX)))
            # Not too many of them: each is an event.
            size = max(size, len(piece) // 16)
            self._send(piece[position : position + size])
            position += size

    def get_write_buffer_size(self) -> int:
        """Return how much the other side has not taken."""
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say when the protocol is to pause and to resume."""
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        """Take nothing in."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Take things in again."""
        if self._is_paused:
            self._is_paused = False
            self.process.loop.call_soon(self._drain_unread)

    def is_reading(self) -> bool:
        """Tell whether things are taken in."""
        return not self._is_paused

    def close(self) -> None:
        """Send what is there, then end."""
        if not self._is_closing and not self.is_over:
            self._is_closing = True
            self._send(None)
            self.process.loop.call_soon(self._lost, None)

    def abort(self) -> None:
        """End now."""
        if self.is_over:
            return
        self._is_closing = True
        self._end()
        if self.peer is not None and not self.peer.is_over:
            network = self._network
            network.kernel.after(network.latency_ns(), self.peer.reset)
        self.process.loop.call_soon(self._lost, None)

    # For the network

    def reset(self) -> None:
        """End with an error; what is under way is lost."""
        if not self.is_over:
            self._end()
            error = ConnectionResetError(errno.ECONNRESET, "the connection was reset")
            self.process.loop.deliver(self._lost, error)

    def release(self) -> None:
        """Send what a cut held back."""
        held, self._held = self._held, 0
        for _ in range(held):
            self._schedule()

    def _end(self) -> None:
        self.is_over = True
        self._network.leave(self)

    def _send(self, piece: bytes | None) -> None:
        self._flying.append(piece)
        self._schedule()

    def _schedule(self) -> None:
        network = self._network
        peer = self.process.name if self.peer is None else self.peer.process.name
        arrival_ns = network.kernel.now_ns + network.latency_ns(self.process.name, peer)
        self._last_arrival_ns = arrival_ns = max(arrival_ns, self._last_arrival_ns)
        network.kernel.at(arrival_ns, self._arrives)

    def _arrives(self) -> None:
        peer, network = self.peer, self._network
        assert peer is not None
        network.piece_arrives(self.process.name, peer.process.name)
        if network.cuts and (self.process.name, peer.process.name) in network.cuts:
            self._held += 1
            return
        if peer.inbox_bytes > _INBOX_BYTES and not peer.is_over:
            # Nobody takes anything in over there: the sender learns it by its own full buffer.
            self._held += 1
            return
        piece = self._flying.popleft()
        if piece is not None:
            self._taken(len(piece))
            if self.carries_bytes is not None:
                self.carries_bytes -= len(piece)
                if self.carries_bytes <= 0:
                    # The rest never gets there.
                    piece = piece[: len(piece) + self.carries_bytes]
            peer.inbox_bytes += len(piece)
        if not peer.is_over:
            peer.process.loop.arrive(peer.receive, piece)
            if self.carries_bytes is not None and self.carries_bytes <= 0:
                peer.process.loop.deliver(peer.reset)
                self.reset()
        elif not self.is_over and (not peer.process.is_dead or peer.process.is_machine_up):
            # A half open one stays so until another life of that machine says that it is none.
            self.reset()

    def _taken(self, size: int) -> None:
        self._unsent_bytes -= size
        if self._is_full and self._unsent_bytes <= self._low and not self.is_over:
            self._is_full = False
            self.process.loop.deliver(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._is_lost:
            self.get_protocol().resume_writing()

    def receive(self, piece: bytes | None) -> None:
        """Take in a piece, or the end."""
        if piece is None:
            self._has_ended = True
        elif not self._is_lost:
            self._unread.append(piece)
        self._drain_unread()

    def _drain_unread(self) -> None:
        if self._protocol is None:
            return
        while self._unread and not self._is_paused and not self._is_lost and not self.is_over:
            joined = b"".join(self._unread)
            self._unread.clear()
            was_full, self.inbox_bytes = self.inbox_bytes > _INBOX_BYTES, 0
            if was_full and self.peer is not None:
                self.peer.release()
            self._protocol.data_received(joined)
        if self._has_ended and not self._unread and not self._is_lost:
            self._lost(None)

    def _lost(self, error: Exception | None) -> None:
        if self._protocol is None:
            # It is told when it is there.
            self._failure, self._has_ended = error, True
            return
        if not self._is_lost:
            self._is_lost = True
            if not self.is_over:
                self._end()
            self._protocol.connection_lost(error or self._failure)
