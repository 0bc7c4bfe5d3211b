"""Stands between a store and a ZooKeeper and does what networks and servers do at their worst."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import Enum, auto

from quorumbook.metadata.zookeeper.jute import Op


class Mishap(Enum):
    """What becomes of a request."""

    #: It arrives and is answered.
    NONE = auto()
    #: The connection ends before the server has it.
    NOT_SENT = auto()
    #: The server does what it says, and the connection ends before the answer.
    NOT_ANSWERED = auto()


class Proxy:
    """One address that leads to a server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.connections = 0
        #: Asked about every request behind the greeting.
        self.on_request: Callable[[int], Mishap] = lambda _op: Mishap.NONE
        #: No connection gets further than being accepted.
        self.is_deaf = False
        #: Answers are held back for good.
        self.is_mute = False
        #: Only the first half of each answer arrives.
        self.is_half = False
        #: What arrives of each frame that the server sends.
        self.change: Callable[[bytes], bytes] = lambda frame: frame

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def deafen(self) -> Awaitable[object]:
        """Let no further connection through; the result is for the end of the present ones."""
        self.is_deaf = True
        return asyncio.wait(set(self._tasks))

    def once(self, mishap: Mishap, operation: Op) -> None:
        """Let the next request of this kind have a mishap, and only that."""

        def choose(number: int) -> Mishap:
            if number != operation:
                return Mishap.NONE
            self.on_request = lambda _op: Mishap.NONE
            return mishap

        self.on_request = choose

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.is_deaf:
                await reader.read()  # to the end of the connection
                return
            await self._connect(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection(*self._target)
        #: Whose answer is to end the connection.
        fatal: set[int] = set()
        try:
            back = asyncio.ensure_future(self._answers(there, writer, fatal))
            forth = asyncio.ensure_future(self._requests(reader, to_there, fatal))
            both = {back, forth}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            to_there.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, to_there: asyncio.StreamWriter, fatal: set[int]
    ) -> None:
        is_greeting = True
        while True:
            frame = await _frame(reader)
            if not is_greeting:
                mishap = self.on_request(int.from_bytes(frame[8:12], "big", signed=True))
                if mishap is Mishap.NOT_SENT:
                    return
                if mishap is Mishap.NOT_ANSWERED:
                    fatal.add(int.from_bytes(frame[4:8], "big", signed=True))
            is_greeting = False
            to_there.write(frame)

    async def _answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, fatal: set[int]
    ) -> None:
        is_greeting = True
        while True:
            frame = self.change(await _frame(there))
            if not is_greeting and int.from_bytes(frame[4:8], "big", signed=True) in fatal:
                return
            is_greeting = False
            if self.is_half:
                writer.write(frame[: len(frame) // 2])
                await asyncio.Event().wait()
            while self.is_mute:
                await asyncio.sleep(0.01)
            writer.write(frame)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


@contextlib.asynccontextmanager
async def nonsense(answer: bytes):
    """Run a server that says the same to everybody, and yield its port."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with contextlib.suppress(OSError):
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
