"""A process that dies between two of its steps, in this one.

A step is whatever others can see: a write to the metadata store, or bytes to a bookie.  From its
death on nothing that it does reaches anybody and nothing answers, as after ``kill -9``; what was
under way may still happen.  Its session lives on until ``bury``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

from quorumbook.client import client
from quorumbook.env import Env, RealNetwork
from quorumbook.errors import MetadataUnauthorizedError
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.streams import Namespace, Stream

_WRITES = frozenset(("create", "create_node", "set", "delete", "replace", "multi"))
_READS = frozenset(("get", "get_many", "exists", "children", "renew_session"))


class Mortal:
    """Counts steps and dies before one of them; 0: never."""

    def __init__(self) -> None:
        self.dies_before = 0
        self.steps = 0
        #: What it asked of the metadata store without changing it, and of bookies.
        self.reads = 0
        self.bookie_requests = 0
        self.is_dead = False
        self.died = asyncio.Event()
        self._grave: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way: set[asyncio.Future[Any]] = set()

    def step(self) -> bool:
        """Tell whether the process is alive to take its next step."""
        if not self.is_dead:
            self.steps += 1
            if self.steps == self.dies_before:
                self.is_dead = True
                self.died.set()
        return not self.is_dead

    async def do(self, work: Callable[[], Coroutine[Any, Any, Any]], *, is_step: bool) -> Any:
        """Do something on the metadata store, unless it is too late."""
        if is_step:
            self.step()
        else:
            self.reads += 1
        if not self.is_dead:
            task = asyncio.ensure_future(work())
            self._under_way.add(task)
            try:
                result = await asyncio.shield(task)
            finally:
                if task.done():
                    self._under_way.discard(task)
            if not self.is_dead:
                return result
        await asyncio.shield(self._grave)
        raise MetadataUnauthorizedError("the process is dead")

    async def last_breath(self) -> None:
        """Wait until what was under way at its death has happened."""
        while pending := {task for task in self._under_way if not task.done()}:
            await asyncio.wait(pending)

    def bury(self) -> None:
        """Let its tasks end, with errors."""
        self.is_dead = True
        if not self._grave.done():
            self._grave.set_result(None)


class MortalStore:
    """The metadata store as a mortal process has it."""

    def __init__(self, store: MetadataStore, mortal: Mortal) -> None:
        self._store = store
        self._mortal = mortal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _WRITES | _READS:
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._mortal.do(
                lambda: found(*arguments, **options), is_step=name in _WRITES
            )

        return call


def _frame_count(data: bytes) -> int:
    count = offset = 0
    while offset < len(data):
        offset += 4 + int.from_bytes(data[offset : offset + 4], "big")
        count += 1
    return count


class _Transport:
    """Sends nothing any more after death."""

    def __init__(self, transport: asyncio.Transport, mortal: Mortal) -> None:
        self._transport = transport
        self._mortal = mortal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._mortal.step():
            self._mortal.bookie_requests += _frame_count(data)
            self._transport.write(data)


class _Protocol(asyncio.Protocol):
    """Hears nothing any more after death."""

    def __init__(self, inner: asyncio.Protocol, mortal: Mortal) -> None:
        self.inner = inner
        self._mortal = mortal

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.inner.connection_made(_Transport(transport, self._mortal))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if not self._mortal.is_dead:
            self.inner.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.inner.connection_lost(exc)

    def resume_writing(self) -> None:
        self.inner.resume_writing()


class MortalNetwork(RealNetwork):
    """The network as a mortal process has it."""

    def __init__(self, mortal: Mortal) -> None:
        self.mortal = mortal

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        transport, protocol = await super().connect(
            host, port, lambda: _Protocol(factory(), self.mortal)
        )
        assert isinstance(protocol, _Protocol)
        return transport, protocol.inner


async def _open_mortal(uri: str, env: Env, **options: Any) -> Any:
    store = await open_store(uri, env, **options)
    network = env.network
    return MortalStore(store, network.mortal) if isinstance(network, MortalNetwork) else store


@asynccontextmanager
async def mortal_namespace(
    address: str, dies_before: int = 0, **options: Any
) -> AsyncIterator[tuple[Namespace, Mortal]]:
    """Open a namespace in a process that dies before a step of those that follow; 0: in none."""
    mortal = Mortal()
    env = Env(network=MortalNetwork(mortal), random=random.Random(dies_before))
    with mock.patch.object(client, "open_store", _open_mortal):
        ns = await Namespace.open(address, client_id="mortal", env=env, **options)
    mortal.steps, mortal.dies_before = 0, dies_before
    try:
        yield ns, mortal
    finally:
        mortal.bury()
        await ns.close()


@asynccontextmanager
async def died(
    address: str,
    name: str,
    live: Callable[[Stream], Awaitable[None]],
    dies_before: int,
) -> AsyncIterator[Mortal]:
    """Live until death; the session of the dead lives on while the block runs."""
    async with mortal_namespace(address, dies_before) as (ns, mortal):
        task = asyncio.ensure_future(live(ns.stream(name)))
        end = asyncio.ensure_future(mortal.died.wait())
        try:
            async with asyncio.timeout(60):
                await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
                await mortal.last_breath()
            if not mortal.is_dead:
                await task
            yield mortal
        finally:
            mortal.bury()
            end.cancel()
            task.cancel()
            await asyncio.gather(task, end, return_exceptions=True)
