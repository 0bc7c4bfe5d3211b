"""etcd, as a driver meets it: three members, of which each may be out of reach (``etcd_members``).

What the members hold is one copy (``etcd_state``): a member that cannot ask the others has nothing
carried out, so nobody reads the past.  A request is lost, or its answer, with the connection, or
waits at a member until there is a leader, be it longer than who asks; who is told that there was
no answer asks the next member.  Watches are late, and end with their stream.

The driver is the project's own but for grpcio: the attempts of ``EtcdClient`` go over the simulated
network.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc

from quorumbook.env import Env
from quorumbook.errors import MetadataUnavailableError, NodeExistsError
from quorumbook.metadata.etcd.address import EtcdAddress
from quorumbook.metadata.etcd.client import EtcdClient, Method, messages
from quorumbook.metadata.etcd.rows import decode_row, node_key, path_of
from quorumbook.metadata.etcd.store import EtcdStore
from quorumbook.metadata.store import DEFAULT_LEDGERS_ROOT, Create, Operation
from quorumbook.metadata.tree import Row
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.kernel import SECOND, Kernel
from quorumbook.sim.metadata.etcd_members import NAMES, Members
from quorumbook.sim.metadata.etcd_state import (
    EtcdState,
    KeyChange,
    NotThereError,
    OldRevisionError,
    Watched,
)
from quorumbook.sim.process import Process

_LATEST_NEWS_NS = SECOND // 2
#: How often a member that waits for a leader looks again, and how often at most.
_LOOK_EVERY_NS = SECOND // 4
_LOOKS_MAX = 20


class _UnansweredError(grpc.RpcError):  # type: ignore[misc] # grpc comes without types
    """What grpcio raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


class Etcd:
    """The cluster.

    Args:
        kernel: Time and chance.
        history: Hears which nodes changed, and which answers cannot be true.
    """

    def __init__(self, kernel: Kernel, history: History) -> None:
        self.kernel = kernel
        self.history = history
        self.state = EtcdState(kernel, self._changed)
        self.members = Members(kernel, self._break_streams_of, self.state.renew_leases)
        #: The probability that a request, or its answer, is lost with its connection.
        self.drops = 0.0
        self._streams: list[_WatchStream] = []

    async def open(self, process: Process, session_timeout_s: float) -> EtcdStore:
        """Connect and begin a session; raises as ``EtcdStore.open``."""
        store = SimEtcdStore(self, process, session_timeout_s)
        await store.begin()
        return store

    def find(self, path: str) -> Row | None:
        """Return what a node holds, as everybody sees it from now on."""
        entry = self.state.entries.get(node_key(path))
        return None if entry is None else decode_row(entry.value, path)

    def join(self, stream: _WatchStream) -> None:
        """Have a stream told of changes."""
        self._streams.append(stream)

    def leave(self, stream: _WatchStream) -> None:
        """Tell it nothing any more."""
        if stream in self._streams:
            self._streams.remove(stream)

    def _break_streams_of(self, member: str) -> None:
        for stream in [each for each in self._streams if each.member == member]:
            stream.end()

    def _changed(self, changes: list[KeyChange]) -> None:
        paths = {path_of(each.key) for each in changes} - {None}
        self.history.changed({path for path in paths if path is not None})
        for stream in list(self._streams):
            stream.tell(changes)


class _WatchStream:
    """A stream of watches, at its member's end and at its owner's."""

    def __init__(self, etcd: Etcd, process: Process, member: str) -> None:
        self._etcd = etcd
        self._process = process
        self.member = member
        self._watched: dict[int, Watched] = {}
        self._news: asyncio.Queue[Any] = asyncio.Queue()
        self._last_news_ns = 0
        etcd.join(self)
        process.at_death.append(self.close)

    async def write(self, request: Any) -> None:
        """Send a request."""
        network, kernel = self._process.machine.network, self._etcd.kernel
        kernel.after(network.latency_ns(), self._arrives, request)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        news = await self._news.get()
        if isinstance(news, Exception):
            raise news
        return news

    def close(self) -> None:
        """End it."""
        self._etcd.leave(self)

    def tell(self, changes: list[KeyChange]) -> None:
        """Take the news of some changes."""
        for watched in self._watched.values():
            self._send(watched, watched.events(changes))

    def _arrives(self, request: Any) -> None:
        if self._is_cut_off or self._etcd.members.is_down(self.member):
            self.end()
        elif request.HasField("cancel_request"):
            self._watched.pop(request.cancel_request.watch_id, None)
        else:
            wanted = request.create_request
            watched = self._watched[wanted.watch_id] = Watched.of(wanted)
            changes = self._etcd.state.changes
            behind = bisect_left(changes, wanted.start_revision, key=lambda each: each.revision)
            missed = changes[behind:]
            self._send(watched, watched.events(missed))

    def _send(self, watched: Watched, events: list[Any]) -> None:
        if not events:
            return
        kernel, network = self._etcd.kernel, self._process.machine.network
        late_ns = kernel.tape.heavy_ns(network.latency_ns(), 0.02, _LATEST_NEWS_NS)
        self._last_news_ns = max(kernel.now_ns + late_ns, self._last_news_ns)
        news = messages["WatchResponse"](
            header=self._etcd.state.header(), watch_id=watched.watch_id, events=events
        )
        kernel.at(self._last_news_ns, self._deliver, news)

    def _deliver(self, news: Any) -> None:
        if self._is_cut_off:
            self.end()
        else:
            self._process.loop.arrive(self._news.put_nowait, news)

    def end(self) -> None:
        """End it as a broken connection does."""
        self.close()
        error = _UnansweredError(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        self._process.loop.deliver(self._news.put_nowait, error)

    @property
    def _is_cut_off(self) -> bool:
        return is_cut_off(self._process, self.member)


def is_cut_off(process: Process, member: str) -> bool:
    """Tell whether requests or answers do not arrive now."""
    cuts = process.machine.network.cuts
    return (process.name, member) in cuts or (member, process.name) in cuts


class _ModelClient(EtcdClient):
    """The driver's client, without grpcio's channels."""

    def __init__(self, etcd: Etcd, process: Process) -> None:
        super().__init__(())
        self._etcd = etcd
        self._process = process
        self._endpoints = NAMES
        self._current = etcd.kernel.tape.below(len(NAMES))

    async def _attempt(self, method: Method, request: Any, timeout_s: float) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        network, kernel = self._process.machine.network, self._etcd.kernel
        member = self._endpoints[self._current]
        kernel.after(network.latency_ns(), self._arrives, member, method, request, answer)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            text = "no answer in time"
            raise _UnansweredError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None

    def _arrives(
        self,
        member: str,
        method: Method,
        request: Any,
        answer: asyncio.Future[Any],
        looks: int = 0,
    ) -> None:
        kernel, members = self._etcd.kernel, self._etcd.members
        lost = _UnansweredError(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
        if is_cut_off(self._process, member):
            # It lies there until the link is whole, or somebody gives up.
            if not kernel.tape.chance(0.5):
                self._answer(answer, lost)
        elif members.is_down(member) or self._is_dropping:
            self._answer(answer, lost)
        elif members.looks_at_ns(member) > kernel.now_ns:
            goes_on_ns = members.looks_at_ns(member)
            kernel.at(goes_on_ns, self._arrives, member, method, request, answer)
        elif members.serves(member):
            self._carry_out(method, request, answer)
        elif looks == _LOOKS_MAX:
            self._answer(answer, lost)
        else:
            again = member, method, request, answer, looks + 1
            kernel.after(_LOOK_EVERY_NS, self._arrives, *again)

    def _carry_out(self, method: Method, request: Any, answer: asyncio.Future[Any]) -> None:
        result: Any
        try:
            result = self._etcd.state.carry_out(method, request)
        except NotThereError as error:
            result = _UnansweredError(grpc.StatusCode.NOT_FOUND, str(error))
        except OldRevisionError as error:
            result = _UnansweredError(grpc.StatusCode.OUT_OF_RANGE, str(error))
        lost = _UnansweredError(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
        self._answer(answer, lost if self._is_dropping else result)

    @property
    def _is_dropping(self) -> bool:
        return bool(self._etcd.drops) and self._etcd.kernel.tape.chance(self._etcd.drops)

    def _answer(self, answer: asyncio.Future[Any], result: Any) -> None:
        network, kernel = self._process.machine.network, self._etcd.kernel
        kernel.after(network.latency_ns(), self._process.loop.arrive, _settle, answer, result)

    @contextlib.asynccontextmanager
    async def stream(self, method: Method) -> AsyncIterator[Any]:
        """Open a stream to the present member."""
        del method
        stream = _WatchStream(self._etcd, self._process, self._endpoints[self._current])
        try:
            yield stream
        except grpc.RpcError as error:
            raise MetadataUnavailableError(f"etcd at {self._next(error)}") from error
        finally:
            stream.close()


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class SimEtcdStore(EtcdStore):
    """One process's store."""

    def __init__(self, etcd: Etcd, process: Process, session_timeout_s: float) -> None:
        self._etcd = etcd
        self._process = process
        #: Nodes that are being created, and those that two calls create.
        self._creating: Counter[str] = Counter()
        self._shared: set[str] = set()
        address = EtcdAddress(NAMES, DEFAULT_LEDGERS_ROOT, tls=None)
        super().__init__(
            address, process.env, uri="etcd://simulated", session_timeout_s=session_timeout_s
        )

    def _connected(self, address: EtcdAddress, env: Env) -> EtcdClient:
        del address, env
        return _ModelClient(self._etcd, self._process)

    async def _write(self, operations: list[Operation]) -> list[str | int | None]:
        """Write, and look whether a refusal can be true: it is not of what the call itself made."""
        state = self._etcd.state
        made = [each.path for each in operations if isinstance(each, Create)]
        since = state.revision
        for path in made:
            self._creating[path] += 1
            if self._creating[path] > 1:
                self._shared.add(path)
        try:
            return await super()._write(operations)
        except NodeExistsError:
            for path in made:
                self._judge(path, since)
            raise
        finally:
            self._creating.subtract(made)

    def _judge(self, path: str, since: int) -> None:
        state, key = self._etcd.state, node_key(path)
        entry = state.entries.get(key)
        is_own = entry is not None and state.makers.get(key) == self.session_id
        if is_own and entry is not None and entry.created > since and path not in self._shared:
            text = f"{self._process.name} is told that {path} exists, which it has just made"
            self._etcd.history.violation(Invariant.DRIVERS_TELL_WHAT_HAPPENED, text)
