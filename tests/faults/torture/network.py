"""What lies between the torture's clients and their servers, and what goes wrong on it.

A client reaches a bookie through a proxy of its group, so that one group can be cut off while
another is not, and in one direction alone.  Metadata go through a proxy that loses requests,
answers, connections and sessions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from doubles.zookeeper_proxy import Mishap, Proxy
from quorumbook.env import RealNetwork
from quorumbook.metadata.zookeeper import jute

_SIZE = 1 << 18


class Way(Enum):
    """What becomes of bytes in one direction."""

    #: They arrive.
    FLOWS = auto()
    #: They arrive when the way is free again.
    HELD = auto()
    #: They are gone, and so is the connection once the way is free again.
    LOST = auto()


class BookieProxy:
    """One address that leads to a bookie."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        #: One for each connection that lost bytes.
        self._torn: set[asyncio.Transport] = set()
        self._ways = [Way.FLOWS, Way.FLOWS]
        self._free = asyncio.Event()
        self._free.set()
        self.port = 0

    async def __aenter__(self) -> BookieProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_SIZE)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, forth: Way, back: Way) -> None:
        """Let bytes to the bookie, and bytes from it, go these ways."""
        self._ways = [forth, back]
        self._free.clear()

    def heal(self) -> None:
        """Let everything through; who lost bytes has to connect again."""
        self._ways = [Way.FLOWS, Way.FLOWS]
        self._free.set()
        for transport in self._torn:
            transport.abort()
        self._torn.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", self._target, limit=_SIZE)
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        pumps = [
            asyncio.ensure_future(self._pump(reader, to_there, 0)),
            asyncio.ensure_future(self._pump(there, writer, 1)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for each in (writer, to_there):
                each.transport.abort()
                self._torn.discard(each.transport)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int
    ) -> None:
        while data := await reader.read(_SIZE):
            while self._ways[direction] is Way.HELD:
                await self._free.wait()
            if self._ways[direction] is Way.LOST:
                self._torn.add(writer.transport)
                continue
            writer.write(data)
            await writer.drain()


class LosingZooKeeper(Proxy):
    """The proxy of the tests, which has mishaps by lot and can end sessions."""

    def __init__(self, host: str, port: int, dice: random.Random) -> None:
        super().__init__(host, port)
        self._dice = dice
        self._sessions: dict[asyncio.StreamWriter, jute.Connected] = {}
        self.mishaps = 0

    def lose(self, share: float) -> None:
        """Have a mishap with so many of the requests from now on."""

        def choose(operation: int) -> Mishap:
            if operation == jute.Op.PING or self._dice.random() >= share:
                return Mishap.NONE
            self.mishaps += 1
            return self._dice.choice((Mishap.NOT_SENT, Mishap.NOT_ANSWERED))

        self.on_request = choose if share else lambda _op: Mishap.NONE

    async def expire(self) -> int:
        """End the sessions of everybody who is connected; their owners learn it afterwards."""
        sessions = list(self._sessions.values())
        self.cut()
        for session in sessions:
            reader, writer = await asyncio.open_connection(*self._target)
            try:
                writer.write(jute.connect(0, 10_000, session.session_id, session.password))
                writer.write(jute.request(1, jute.Op.CLOSE))
                await reader.read()
            except OSError:
                pass
            finally:
                writer.transport.abort()
        return len(sessions)

    async def _answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, fatal: set[int]
    ) -> None:
        size = await there.readexactly(4)
        greeting = await there.readexactly(int.from_bytes(size, "big"))
        writer.write(size + greeting)
        self._sessions[writer] = jute.connected(greeting)
        try:
            await super()._answers(there, writer, fatal)
        finally:
            self._sessions.pop(writer, None)


class DivertedNetwork(RealNetwork):
    """The network of a client whose connections to bookies go through proxies."""

    def __init__(self, proxies: Mapping[int, int]) -> None:
        self._proxies = proxies

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, Any]:
        return await super().connect(host, self._proxies.get(port, port), factory)
