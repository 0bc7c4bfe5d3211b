"""A bookie that stands still in the middle of a request over HTTP."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from doubles.virtual_time import run_virtually, virtual_loop
from quorumbook.bookie.http.server import _HttpConnection

HEAD = b"GET /health HTTP/1.1\r\n\r\n"


class Server:
    """Takes any connection and knows one answer."""

    def __init__(self) -> None:
        self.connections: dict[Any, None] = {}

    def take(self, connection: Any) -> None:
        self.connections[connection] = None

    def page(self, _method: str, _target: str) -> None:
        return None

    def methods(self, _path: str) -> list[str]:
        return ["GET"]

    def respond(self, _target: str) -> tuple[int, str, bytes]:
        return 200, "text/plain", b"alive"


class OpenConnection(_HttpConnection):
    """Asks for no name and no token: a pair of sockets has neither address nor port."""

    def _refusal(self, _method: str, _target: str) -> None:
        return None


def test_a_request_that_came_during_a_pause_is_answered() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            server: Any = Server()
            await virtual_loop().connect_accepted_socket(lambda: OpenConnection(server), ours)
            theirs.send(HEAD[:10])
            await asyncio.sleep(1)
            await virtual_loop().pause(1000, lambda: theirs.send(HEAD[10:]))
            await asyncio.sleep(5)
            assert theirs.recv(1000).startswith(b"HTTP/1.1 200")

    run_virtually(main())
