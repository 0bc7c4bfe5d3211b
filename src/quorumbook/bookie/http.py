"""Health and metrics over HTTP, and garbage collection (``gc_pages``).

    /heartbeat    "OK": the process and its event loop live
    /is_ready     "OK" when the bookie serves and is registered, else 503
    /metrics      the Prometheus text format

It runs on the bookie's own event loop, so that it reads the counters where they are written and
stops answering when the loop does.  One request a connection; it listens on loopback unless told
otherwise and knows nothing secret.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

from quorumbook.bookie import gc_pages
from quorumbook.env import Env, logger
from quorumbook.storage.gc.collector import Collector

_log = logger("bookie.http")
_HEAD_BYTES_MAX = 8192
_REQUEST_TIMEOUT_S = 10.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class _HttpConnection(asyncio.Protocol):
    """Reads one request head, writes one answer, closes."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._head = b""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_REQUEST_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" not in self._head and b"\n\n" not in self._head:
            if len(self._head) > _HEAD_BYTES_MAX:
                self._send("GET", 400, _TEXT, b"the request is too long\n")
            return
        parts = self._head.split(b"\n", 1)[0].decode("latin-1").split()
        if len(parts) < 2:
            self._send("GET", 400, _TEXT, b"no HTTP request\n")
            return
        method, target = parts[0], parts[1]
        if method in ("GET", "PUT") and target.startswith(gc_pages.ROOT):
            self._task = asyncio.get_running_loop().create_task(self._collect(method, target))
            return
        if method not in ("GET", "HEAD"):
            self._send(method, 405, _TEXT, b"only GET\n")
            return
        try:
            status, kind, body = self._server.respond(target.partition("?")[0])
        except Exception:
            _log.exception("%s failed", target)
            status, kind, body = 500, _TEXT, b"Internal Server Error\n"
        self._send(method, status, kind, body)

    async def _collect(self, method: str, target: str) -> None:
        status, body = 200, cast(object, None)
        try:
            collector = self._server.collector()
            if collector is None:
                status, body = 503, {"error": "the bookie is not started"}
            else:
                status, body = await gc_pages.answer(collector, method, target)
        except Exception:
            _log.exception("%s failed", target)
            status, body = 500, {"error": "Internal Server Error"}
        if not self._transport.is_closing():
            self._send(method, status, _JSON, json.dumps(body).encode() + b"\n")

    def _send(self, method: str, status: int, kind: str, body: bytes) -> None:
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode("latin-1")
        self._transport.write(head if method == "HEAD" else head + body)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Cut it."""
        self._transport.abort()


class HttpServer:
    """The three paths.

    Args:
        env: The outside world.
        host: Where to listen.
        port: Where to listen; 0 takes a free one.
        is_ready: What ``/is_ready`` says.
        metrics: Renders ``/metrics``.
        collector: What ``gc_pages`` speaks of, None before the start.
    """

    def __init__(
        self,
        env: Env,
        host: str,
        port: int,
        *,
        is_ready: Callable[[], bool],
        metrics: Callable[[], bytes],
        collector: Callable[[], Collector | None],
    ) -> None:
        self._env = env
        self._host = host
        self.port = port
        self._is_ready = is_ready
        self._metrics = metrics
        self.collector = collector
        self._server: asyncio.Server | None = None
        self.connections: set[_HttpConnection] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await self._env.network.listen(
            self._host, self.port, lambda: _HttpConnection(self)
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for connection in list(self.connections):
                connection.abort()
            await server.wait_closed()

    def respond(self, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for a path."""
        match path.rstrip("/"):
            case "/heartbeat":
                return 200, _TEXT, b"OK\n"
            case "/is_ready" | "/api/v1/bookie/is_ready":
                if self._is_ready():
                    return 200, _TEXT, b"OK\n"
                return 503, _TEXT, b"not ready\n"
            case "/metrics":
                return 200, _METRICS, self._metrics()
        return 404, _TEXT, b"there are /heartbeat, /is_ready and /metrics\n"
