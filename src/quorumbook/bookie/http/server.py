"""Health and metrics over HTTP, and the pages of other modules.

    /heartbeat                 "OK": the process and its event loop live
    /is_ready                  "OK" when the bookie serves and is registered, else 503
    /api/v1/bookie/is_ready    the same under the peer's path
    /metrics                   the Prometheus text format

A page is there under exactly the method and path of its key in the table of pages, so whatever is
served is named by the 404 of everything else.  HEAD is answered where GET is.

It runs on the bookie's own event loop, so that it reads the counters where they are written and
stops answering when the loop does.  One request a connection; it listens on loopback unless told
otherwise and knows nothing secret.  Which requests are carried out ``access.py`` decides.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

from prometheus_client.core import CounterMetricFamily, Metric

from quorumbook.bookie.http.access import HttpAccess, Refusal, is_loopback_only
from quorumbook.bookie.http.metrics_text import MetricsText
from quorumbook.env import Env, Recurrence, logger, patience
from quorumbook.env.redaction import redacted_query
from quorumbook.errors import ConfigError
from quorumbook.metric_texts import text_of

_log = logger("bookie.http")
_HEAD_BYTES_MAX = 8192
_REQUEST_TIMEOUT_S = 10.0
_CONNECTIONS_MAX = 64
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    421: "Misdirected Request",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_CONTENT_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r\n]*)", re.IGNORECASE)
#: The fields of the JSON object in a request's body; the texts that the peer makes of values.
Body: TypeAlias = Mapping[str, str]
#: Takes method (GET also for HEAD), target and body, returns status and what becomes JSON.
Page: TypeAlias = Callable[[str, str, Body], Awaitable[tuple[int, object]]]
#: What every server has beside the pages of others.
OWN_PATHS = ("/heartbeat", "/is_ready", "/api/v1/bookie/is_ready", "/metrics")
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_CHALLENGE = "WWW-Authenticate: Bearer\r\n"
_NUMBER_MAX = 2**63 - 1


class BadHttpRequestError(Exception):
    """A page cannot be asked like this; the text says why."""


def whole_number(text: str, name: str) -> int:
    """Return what a parameter says.

    Raises:
        BadHttpRequestError: It is not a number from 0 to 2**63 - 1.
    """
    # The length first: to read a number of many digits takes long, and of more than 4300 fails.
    if len(text) <= 19 and text.isascii() and text.isdigit() and int(text) <= _NUMBER_MAX:
        return int(text)
    raise BadHttpRequestError(f"{name} must be a number from 0 to {_NUMBER_MAX}, not {text!r:.40}")


def _path_of(target: str) -> str:
    return target.partition("?")[0].rstrip("/")


def _as_get(method: str) -> str:
    """Return the method whose page answers: that of GET answers HEAD too."""
    return "GET" if method == "HEAD" else method


def _shown(target: str) -> str:
    path, _, query = target.partition("?")
    return path + redacted_query(query)


class _HttpConnection(asyncio.Protocol):
    """Reads one request head, writes one answer, closes."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._head = b""
        self._timer: patience.Timer | None = None
        self._task: asyncio.Task[None] | None = None
        #: A change that was begun is not left half-way.
        self._may_be_cut = False
        self._waits_for_metrics = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.take(self)
        self._timer = patience.Timer(_REQUEST_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing() or self._task is not None or self._waits_for_metrics:
            return
        self._head += data
        try:
            missing = _missing(self._head)
        except BadHttpRequestError as error:
            self._send("GET", 400, _TEXT, f"{error}\n".encode())
            return
        if missing > 0:
            if len(self._head) + missing > _HEAD_BYTES_MAX:
                self._send("GET", 400, _TEXT, b"the request is too long\n")
            return
        parts = self._head.split(b"\n", 1)[0].decode("latin-1").split()
        if len(parts) < 2:
            self._send("GET", 400, _TEXT, b"no HTTP request\n")
            return
        method, target = parts[0], parts[1]
        refusal = self._refusal(method, target)
        if refusal is not None:
            text = json.dumps({"error": refusal.reason}).encode() + b"\n"
            self._send(method, refusal.status, _JSON, text)
            return
        page = self._server.page(method, target)
        if page is not None:
            body = _fields(self._head)
            if body is None:
                self._send(method, 400, _TEXT, b"the body is not a JSON object\n")
                return
            turn = self._turn(page, method, target, body)
            self._task = asyncio.get_running_loop().create_task(turn)
            self._may_be_cut = _as_get(method) == "GET"
            return
        path = _path_of(target)
        methods = self._server.methods(path)
        if methods and _as_get(method) not in methods:
            allowed = ", ".join(methods)
            self._send(method, 405, _TEXT, f"only {allowed}\n".encode(), f"Allow: {allowed}\r\n")
            return
        if path == "/metrics":
            self._waits_for_metrics = True
            self._server.metrics_text.ask(partial(self._send_metrics, method))
            return
        try:
            status, kind, text = self._server.respond(path)
        except Exception:
            _log.exception("%.200s failed", _shown(target))
            status, kind, text = 500, _TEXT, b"Internal Server Error\n"
        self._send(method, status, kind, text)

    def _send_metrics(self, method: str, text: bytes | None) -> None:
        if self._transport.is_closing():
            return
        if text is None:
            self._send(method, 500, _TEXT, b"Internal Server Error\n")
        else:
            self._send(method, 200, _METRICS, text)

    def _refusal(self, method: str, target: str) -> Refusal | None:
        reached = self._transport.get_extra_info("sockname")[0]
        try:
            return self._server.refusal(method, target, _headers(self._head), reached)
        except ConfigError as error:
            _log.warning("nothing can be changed over HTTP: %s", error)
            return Refusal(503, "http.token_file cannot be used; the server's log says why")

    async def _turn(self, page: Page, asked: str, target: str, body: Body) -> None:
        status, answer, method = 200, cast(object, None), _as_get(asked)
        if method != "GET":
            _log.info("%s %.200s is carried out for %s", method, _shown(target), self.peer)
        try:
            status, answer = await self._server.answer(page, method, target, body)
        except BadHttpRequestError as error:
            status, answer = 400, {"error": str(error)}
        except Exception:
            _log.exception("%.200s failed", _shown(target))
            status, answer = 500, {"error": "Internal Server Error"}
        if not self._transport.is_closing():
            self._send(asked, status, _JSON, json.dumps(answer).encode() + b"\n")

    def _send(self, method: str, status: int, kind: str, body: bytes, more: str = "") -> None:
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n"
            f"{_CHALLENGE if status == 401 else more}\r\n"
        ).encode("latin-1")
        self._transport.write(head if method == "HEAD" else head + body)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._may_be_cut:
            self._task.cancel()

    @property
    def peer(self) -> str:
        """Where it comes from."""
        # A connection that was reset at once has none.
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "?"

    def abort(self) -> None:
        """Cut it."""
        self._transport.abort()


def _missing(request: bytes) -> int:
    """Return how many bytes at least are to come.

    Few paths use a body, but closing before it came would reset the connection, and the answer
    would be lost on its way.

    Raises:
        BadHttpRequestError: The length of its body is not a number.
    """
    end = _END_OF_HEAD.search(request)
    if end is None:
        return 1
    length = _CONTENT_LENGTH.search(request, 0, end.start())
    if length is None:
        return end.end() - len(request)
    body = whole_number(length[1].decode("latin-1").strip(), "Content-Length")
    return end.end() + body - len(request)


def _headers(request: bytes) -> list[tuple[str, str]]:
    """Return the names of a request's headers, in lower case, and their values."""
    end = _END_OF_HEAD.search(request)
    lines = request[: end.start() if end is not None else None].decode("latin-1").split("\n")[1:]
    parts = (line.partition(":") for line in lines)
    return [(name.strip().lower(), value.strip()) for name, _, value in parts]


def _fields(request: bytes) -> Body | None:
    """Return the fields of a request's body, none of an empty one; None if it is no object."""
    end = _END_OF_HEAD.search(request)
    text = request[end.end() :].strip() if end is not None else b""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
    }


class HttpServer:
    """Its own paths, and pages.

    Args:
        env: The outside world.
        host: Where to listen.
        port: Where to listen; 0 takes a free one.
        is_ready: What ``/is_ready`` says.
        metrics: Renders ``/metrics``.
        pages: Who answers which method and path, such as ``"GET /a/page"``.
        guarded: Paths that take a token where not everybody who asks is on this machine.
        access: Which requests are carried out.
    """

    def __init__(
        self,
        env: Env,
        host: str,
        port: int,
        *,
        is_ready: Callable[[], bool],
        metrics: Callable[[], bytes],
        pages: Mapping[str, Page],
        guarded: Collection[str] = (),
        access: HttpAccess,
    ) -> None:
        self._env = env
        self._host = host
        self.port = port
        self._is_ready = is_ready
        self.metrics_text = MetricsText(env.clock, metrics)
        self._pages = pages
        self._turn = asyncio.Lock()
        self._guarded = frozenset(guarded)
        self._access = access
        self._is_on_loopback = False
        self._server: asyncio.Server | None = None
        #: Oldest first.
        self.connections: dict[_HttpConnection, None] = {}
        self._cut = 0
        self._cuts_log = Recurrence()

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: that is not possible at this place, or the token file cannot be used.
        """
        self._access.check()
        try:
            self._server = await self._env.network.listen(
                self._host, self.port, lambda: _HttpConnection(self)
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host}:{self.port} for HTTP: {error.strerror or error}; "
                "choose another port with http.port (0: a free one)"
            ) from error
        addresses = [each.getsockname() for each in self._server.sockets]
        self.port = addresses[0][1]
        self._is_on_loopback = is_loopback_only([address[0] for address in addresses])

    async def stop(self) -> None:
        """Stop listening."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self.metrics_text.forget()
            for connection in list(self.connections):
                connection.abort()
            await server.wait_closed()

    def take(self, connection: _HttpConnection) -> None:
        """Take a connection in; where there are too many, the oldest goes."""
        if len(self.connections) >= _CONNECTIONS_MAX:
            oldest = next(iter(self.connections))
            del self.connections[oldest]
            self._note_cut(oldest)
            oldest.abort()
        self.connections[connection] = None

    def _note_cut(self, connection: _HttpConnection) -> None:
        self._cut += 1
        unsaid = self._cuts_log.due(self._env.clock.now_ns())
        if unsaid:
            _log.warning(
                "%d connections to the HTTP port cut, the last of %s: at most %d may be there, "
                "and the oldest goes for a new one",
                unsaid, connection.peer, _CONNECTIONS_MAX,
            )  # fmt: skip

    def families(self) -> Iterable[Metric]:
        """Yield its own numbers."""
        family = CounterMetricFamily("http_connections_cut", text_of("http_connections_cut"))
        family.add_sample("http_connections_cut", {}, self._cut)
        yield family

    def refusal(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], reached: str
    ) -> Refusal | None:
        """Tell why a request that reached this address of ours is refused; None if it is not."""
        return self._access.refusal(
            method,
            headers,
            reached,
            on_loopback=self._is_on_loopback,
            is_guarded=_path_of(target) in self._guarded,
        )

    def page(self, method: str, target: str) -> Page | None:
        """Return who answers a request, None if nobody but ``respond``."""
        return self._pages.get(f"{_as_get(method)} {_path_of(target)}")

    async def answer(self, page: Page, method: str, target: str, body: Body) -> tuple[int, object]:
        """Have a page answer; it begins in a turn of the loop in which no other one does.

        A page takes a millisecond at most, but sixty who ask at once would have it for sixty in
        one turn.
        """
        async with self._turn:
            # Who waits next is woken by the end of this, and goes on in the turn after it.
            await asyncio.sleep(0)
        return await page(method, target, body)

    def methods(self, path: str) -> list[str]:
        """Return what a path takes; nothing if it is not there."""
        if path in OWN_PATHS:
            return ["GET", "HEAD"]
        return [each for each in ("GET", "HEAD", "PUT") if self.page(each, path) is not None]

    def respond(self, path: str) -> tuple[int, str, bytes]:
        """Return status, content type and body for any other path, without a slash at its end."""
        match path:
            case "/heartbeat":
                return 200, _TEXT, b"OK\n"
            case "/is_ready" | "/api/v1/bookie/is_ready":
                if self._is_ready():
                    return 200, _TEXT, b"OK\n"
                return 503, _TEXT, b"not ready\n"
        return 404, _TEXT, f"there are {', '.join(self._names())}\n".encode()

    def _names(self) -> list[str]:
        """Return the paths that there are; one that cannot be looked at with what it takes."""
        paths = sorted({page.partition(" ")[2] for page in self._pages})
        methods = {path: self.methods(path) for path in paths}
        shown = (path if "GET" in methods[path] else f"PUT {path}" for path in paths)
        return [*OWN_PATHS, *shown]
