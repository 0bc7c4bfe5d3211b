"""A metadata store far away, on the tree in memory: what is asked travels, and so do answers.

A store's requests arrive in the order in which they were sent, and so do answers and news of
watches and sessions, which share one way back.  Where the way is cut, or drops what is on it, a
request fails: it was carried out or was not, and the caller is told no more than a driver of
ZooKeeper would.  A session lives by heartbeats that arrive; one that ended while its owner was cut
off is known to the owner only afterwards.

Unlike a server of its own, this one is one machine that never fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from quorumbook.errors import MetadataFateUnknownError, MetadataUnavailableError
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.metadata.store import Operation, Watch
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.process import Process

T = TypeVar("T")

#: The name of its machine in the network's cuts.
METADATA = "metadata"
_RECONNECT_NS = SECOND // 5
_PATIENCE_NS = 4 * SECOND
#: How much more often than others requests to change several nodes are lost.
_MULTI_DROPS = 10


class SimTree(MemoryTree):
    """The one server; tells of each change before anybody else can see it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_change: Callable[[set[str]], None] = lambda _: None
        #: The probability that a request, or its answer, is lost with its connection.
        self.drops = 0.0

    def _finish(self) -> None:
        if self.tree.touched:
            self.on_change(set(self.tree.touched))
        super()._finish()


class SimStore(MemoryStore):
    """One process's store."""

    def __init__(self, tree: SimTree, process: Process, session_timeout_s: float) -> None:
        self._process = process
        self._tree = tree
        self._kernel = process.kernel
        self._last_request_ns = 0
        self._last_answer_ns = 0
        self._news: list[tuple[Callable[[Sequence[Watch]], None], Sequence[Watch]]] = []
        super().__init__(
            tree, process.env, uri="memory://simulated", session_timeout_s=session_timeout_s
        )
        process.at_death.append(lambda: tree.detach(self))

    async def _carry_out(self, step: Callable[[], T], *, is_write: bool) -> T:
        self._check_open()
        answer: asyncio.Future[T] = self._loop.create_future()
        _Request(self, step, answer, is_write=is_write).send()
        return await answer

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none; this is lost more often than what is harmless."""
        tape, share = self._kernel.tape, min(_MULTI_DROPS * self._tree.drops, 0.3)
        if not share or not tape.chance(share):
            return await super().multi(operations)
        if tape.chance(0.5):
            raise MetadataUnavailableError("the connection was lost")
        await super().multi(operations)
        raise MetadataFateUnknownError("the connection was lost, and the answer with it")

    def request_ns(self) -> int:
        """Draw when a request that is sent now arrives."""
        kernel = self._kernel
        latency_ns = self._process.machine.network.latency_ns()
        self._last_request_ns = max(kernel.now_ns + latency_ns, self._last_request_ns)
        return self._last_request_ns

    def answer_ns(self) -> int:
        """Draw when an answer that is sent now arrives."""
        kernel = self._kernel
        latency_ns = self._process.machine.network.latency_ns()
        self._last_answer_ns = max(kernel.now_ns + latency_ns, self._last_answer_ns)
        return self._last_answer_ns

    @property
    def is_cut_off(self) -> bool:
        """Tell whether requests or answers do not arrive now."""
        name, cuts = self._process.name, self._process.machine.network.cuts
        return (name, METADATA) in cuts or (METADATA, name) in cuts

    @property
    def process(self) -> Process:
        """Whose it is."""
        return self._process

    @property
    def is_dropping(self) -> bool:
        """Draw whether something is lost on its way."""
        return bool(self._tree.drops) and self._kernel.tape.chance(self._tree.drops)

    def _extend(self) -> None:
        if not self.is_cut_off:
            self._kernel.at(self.request_ns(), super()._extend)

    def _on_loop(
        self, callback: Callable[[Sequence[Watch]], None], watches: Sequence[Watch]
    ) -> None:
        self._news.append((callback, watches))
        self._tell_news()

    def _tell_news(self) -> None:
        if self.is_cut_off and not self._process.is_dead:
            self._kernel.after(_RECONNECT_NS, self._tell_news)
        else:
            self.send_news()

    def send_news(self) -> None:
        """Send what a cut held back; no answer overtakes it.

        So whoever lost his session hears of that before anything else, as stores promise.
        """
        news, self._news = self._news, []
        if not self._process.is_dead:
            for callback, watches in news:
                self._kernel.at(self.answer_ns(), self._process.loop.arrive, callback, watches)


class _Request:
    """One request, until its caller knows what can be known."""

    def __init__(
        self,
        store: SimStore,
        step: Callable[[], T],
        answer: asyncio.Future[T],
        *,
        is_write: bool,
    ) -> None:
        self._store = store
        self._kernel = store.process.kernel
        self._loop = store.process.loop
        self._step: Callable[[], object] = step
        self._answer: asyncio.Future[object] = answer  # type: ignore[assignment]
        self._is_write = is_write
        self._given_up_ns = self._kernel.now_ns + _PATIENCE_NS

    def send(self) -> None:
        """Send it, as soon as there is a connection."""
        if self._store.process.is_dead:
            return
        if self._store.is_cut_off:
            if self._kernel.now_ns < self._given_up_ns:
                self._kernel.after(_RECONNECT_NS, self.send)
            else:
                self._fail(MetadataUnavailableError("the metadata store does not answer"))
            return
        if self._store.is_dropping:
            self._fail(MetadataUnavailableError("the connection was lost"))
            return
        self._kernel.at(self._store.request_ns(), self._arrives)

    def _arrives(self) -> None:
        store = self._store
        is_lost = store.is_cut_off
        if is_lost and self._kernel.tape.chance(0.5):
            self._fail(MetadataUnavailableError("the connection was lost"))
            return
        try:
            result = self._step()
        except Exception as error:
            result = error
        if not is_lost:
            store.send_news()
        if is_lost or store.is_dropping:
            kind = MetadataFateUnknownError if self._is_write else MetadataUnavailableError
            self._fail(kind("the connection was lost, and the answer with it"))
            return
        self._kernel.at(store.answer_ns(), self._loop.arrive, self._settle, result)

    def _fail(self, error: Exception) -> None:
        self._kernel.at(self._store.answer_ns(), self._loop.arrive, self._settle, error)

    def _settle(self, result: object) -> None:
        if self._answer.done():
            return
        if isinstance(result, Exception):
            self._answer.set_exception(result)
        else:
            self._answer.set_result(result)
