"""From a request to an answer: who asks, what is asked, limits, and one problem for each error.

A body is at most 8 MiB, a form 16 KiB, all bodies together 64 MiB, and a body that does not come in
30 seconds is not waited for.  All bodies together have at most a million values of JSON: lists of
lists take 25 times their bytes.  A client that takes no events in for so long is let go.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as WebRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from quorumbook.admin.access.gate import Denial, Gate, GatedRequest
from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.http.endpoint import Ask, Endpoint, Events, Text
from quorumbook.admin.http.fields import read_all
from quorumbook.admin.http.problems import MEDIA_TYPE, ApiError, problem_of
from quorumbook.admin.http.service import Service
from quorumbook.env import logger, patience
from quorumbook.env.redaction import redacted_query
from quorumbook.metric_texts import text_of

_log = logger("admin.http")
_BODY_BYTES = 8 << 20
_BODIES_BYTES = 64 << 20
#: One takes 35 to 100 bytes as an object of Python.
_VALUES_MAX = 1_000_000
_STRINGS_MAX = 100_000
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BODY_S = 30.0
_SEND_S = 30.0
_EVENT_STREAMS = 64
_FOLLOWER_CHECK_S = 1.0
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PASSWORD_HEADER = "quorumbook-ledger-password"  # noqa: S105 - a name
CERTIFICATE = "quorumbook.certificate"


class App:
    """Answers for one service.

    Args:
        service: Whom it asks.
        gate: Whom it lets in.
        endpoints: What there is, in the order in which paths are tried.
    """

    def __init__(self, service: Service, gate: Gate, endpoints: Sequence[Endpoint]) -> None:
        self.service = service
        self.gate = gate
        self.endpoints = endpoints
        self._body_bytes = 0
        self._body_values = 0
        self._event_streams = 0
        self._answers: Counter[int] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def routes(self) -> list[BaseRoute]:
        """Return a route for each endpoint, and those that need nobody let in."""
        return [
            Route("/heartbeat", self._heartbeat),
            Route("/metrics", self._metrics),
            *(
                Route(each.path, self._answerer(each), methods=[each.method])
                for each in self.endpoints
            ),
        ]

    def starlette(self, further: Sequence[BaseRoute] = ()) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[*self.routes(), *further],
            exception_handlers={HTTPException: self._on_http_error, Exception: self._on_bug},
        )

    def collect(self) -> list[Metric]:
        """Return the metrics."""
        answers = CounterMetricFamily(
            "admin_requests", text_of("admin_requests_total"), labels=["status"]
        )
        for status, count in sorted(self._answers.items()):
            answers.add_metric([str(status)], count)
        return [answers]

    def count_answer(self, status: int) -> None:
        """Count an answer that was not made here."""
        self._answers[status] += 1

    async def _heartbeat(self, _request: WebRequest) -> Response:
        return Response("OK\n", media_type="text/plain")

    async def _metrics(self, request: WebRequest) -> Response:
        denial = self.gate.host_denial(gate_request(request))
        if denial is not None:
            return problem_response(ApiError(denial.status, denial.code, denial.detail))
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(generate_latest(self._registry), media_type=kind)

    def _answerer(self, endpoint: Endpoint) -> Callable[[WebRequest], Any]:
        async def answer(request: WebRequest) -> Response:
            who: Who | None = None
            outcome = "done"
            try:
                who = self.known(request)
                self._check(who, endpoint, request)
                async with self.body(request) as body:
                    ask = self._ask(endpoint, request, who, body)
                    result = await endpoint.handle(ask)
                response = self._response(result, endpoint, request)
            except ClientDisconnect:
                outcome = "broken-off"
                response = Response(status_code=400)
            except Exception as error:
                response, outcome = self.failed(error, request)
            if endpoint.is_change:
                self.note(request, who, outcome)
            self._answers[response.status_code] += 1
            return response

        return answer

    def note(
        self, request: WebRequest, who: Who | None, outcome: str, *, is_one_of_many: bool = False
    ) -> None:
        """Write a line about a change; see ``AuditLog.add``."""
        source = request.client.host if request.client else "-"
        query = f"?{request.url.query}" if request.url.query else ""
        what = f"{request.method} {request.url.path}{redacted_query(query)}"
        self.service.audit.add(who, source, what, outcome, is_one_of_many=is_one_of_many)

    def judged(self, request: WebRequest, *, csrf: str | None = None) -> Who:
        """Return who asks, at whichever cluster.

        Raises:
            ApiError: It is not let in.
        """
        who = self.gate.judge(gate_request(request, csrf))
        if isinstance(who, Denial):
            headers = {"WWW-Authenticate": "Bearer"} if who.status == 401 else {}
            raise ApiError(who.status, who.code, who.detail, headers)
        return who

    def known(self, request: WebRequest, *, csrf: str | None = None) -> Who:
        """Return who asks, and what it may do at this cluster.

        Raises:
            ApiError: It is not let in, or has no role here.
        """
        who = self.judged(request, csrf=csrf)
        here = who.at(self.service.options.cluster)
        if here is None:
            name = self.service.options.cluster or "this cluster"
            raise ApiError(403, "cluster", f"{who.name} may do nothing at {name}")
        return here

    def demand(self, who: Who, role: Role) -> None:
        """Refuse whoever has a lower role.

        Raises:
            ApiError: It has.
        """
        if not who.may(role):
            raise ApiError(
                403, "role", f"this takes the role {role.word}, and {who.name} is {who.role.word}"
            )

    def _check(self, who: Who, endpoint: Endpoint, request: WebRequest) -> None:
        self.demand(who, endpoint.role)
        if not who.namespaces:
            return
        field = endpoint.query.get("namespace")
        if field is None or not who.may_see(
            request.query_params.get("namespace") or str(field.default)
        ):
            allowed = ", ".join(who.namespaces)
            raise ApiError(403, "namespace", f"{who.name} is confined to streams in {allowed}")

    @contextlib.asynccontextmanager
    async def body(self, request: WebRequest, bytes_max: int = _BODY_BYTES) -> AsyncIterator[bytes]:
        """Read a request's body; its bytes count until the block ends.

        Args:
            request: Whose.
            bytes_max: The largest; a small one where nobody knows yet who asks.

        Raises:
            ApiError: It is too large, or does not come.
        """
        announced = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers:  # then a length says nothing
            expected = bytes_max
        else:
            expected = int(announced) if announced.isdigit() and len(announced) < 20 else 0
        if expected > bytes_max:
            raise _too_large(bytes_max)
        if self._body_bytes + expected > _BODIES_BYTES:
            raise _busy()
        self._body_bytes += expected
        values = 0
        try:
            body = await self._read_body(request, bytes_max) if expected else b""
            values = _values(body)
            self._body_values += values
            if values > _VALUES_MAX:
                raise ApiError(413, "body-too-large", f"a body has at most {_VALUES_MAX:,} values")
            if self._body_values > _VALUES_MAX:
                raise _busy()
            yield body
        finally:
            self._body_bytes -= expected
            self._body_values -= values

    async def _read_body(self, request: WebRequest, bytes_max: int) -> bytes:
        pieces, size = [], 0
        try:
            async with patience.timeout(_BODY_S):
                async for piece in request.stream():
                    size += len(piece)
                    if size > bytes_max:
                        raise _too_large(bytes_max)
                    pieces.append(piece)
        except TimeoutError:
            raise ApiError(
                408, "body-timeout", f"the body did not come in {_BODY_S:.0f} s"
            ) from None
        return b"".join(pieces)

    def _ask(self, endpoint: Endpoint, request: WebRequest, who: Who, data: bytes) -> Ask:
        given = dict(request.query_params.items())
        if len(given) != len(request.query_params.multi_items()):
            raise ApiError(400, "bad-parameter", "a parameter is given twice")
        accept = request.headers.get("accept", "")
        if endpoint.is_lenient:
            # The endpoint's verb, not the request's: HEAD is let in as GET, and may do no more.
            path = {**request.path_params, "method": endpoint.method, "path": request.url.path}
            return Ask(self.service, who, path, given, _object(data) if data else {}, accept)
        if "last_event_id" in endpoint.query and "last-event-id" in request.headers:
            given.setdefault("last_event_id", request.headers["last-event-id"])
        if "password" in endpoint.query:
            if "password" in given:
                raise ApiError(
                    400, "unknown-parameter",
                    "a password does not belong in an address; use the header "
                    "Quorumbook-Ledger-Password",
                )  # fmt: skip
            if _PASSWORD_HEADER in request.headers:
                given["password"] = request.headers[_PASSWORD_HEADER]
        path = read_all(endpoint.names, request.path_params, is_text=True, where="name")
        query = read_all(endpoint.query, given, is_text=True, where="parameter")
        body = read_all(
            endpoint.body, _body_of(endpoint, request, query, data), is_text=False, where="field"
        )
        return Ask(self.service, who, path, query, body, accept)

    def _response(self, result: object, endpoint: Endpoint, request: WebRequest) -> Response:
        if isinstance(result, Text):
            return Response(result.content, media_type=result.kind, headers=_HEADERS)
        if isinstance(result, Events):
            if self._event_streams >= _EVENT_STREAMS:
                raise ApiError(
                    503, "too-many-followers", "too many requests follow streams already"
                )
            # Its place is taken here: many may have come this far before the first event.
            self._event_streams += 1
            events = self._events(result.events, endpoint, request)
            return _EventResponse(events, headers=_HEADERS, at_end=self._end_events)
        return Json(result, status_code=endpoint.status, headers=_HEADERS)

    async def _events(
        self, events: AsyncIterator[Mapping[str, object]], endpoint: Endpoint, request: WebRequest
    ) -> AsyncIterator[bytes]:
        checked_at = time.monotonic()
        try:
            async for event in events:
                # A token that was revoked, or has expired, lets nobody follow any longer.
                if time.monotonic() - checked_at >= _FOLLOWER_CHECK_S:
                    self._check(self.known(request), endpoint, request)
                    checked_at = time.monotonic()
                yield _event_bytes(event)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                _log.exception("a stream of events failed")
                problem = _bug()
            yield _event_bytes({"event": "problem", "data": problem.row()})
        finally:
            with contextlib.suppress(Exception):
                await events.aclose()  # type: ignore[attr-defined]

    def _end_events(self) -> None:
        self._event_streams -= 1

    def failed(self, error: Exception, request: WebRequest) -> tuple[Response, str]:
        """Return what is answered for an error, and its code."""
        problem = problem_of(error)
        if problem is None:
            _log.exception("%s %s failed", request.method, request.url.path)
            problem = _bug()
        return problem_response(problem), problem.code

    async def _on_http_error(self, _request: WebRequest, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        code, detail = {
            404: ("no-such-path", "there is nothing at this path; see /api/v2/openapi.json"),
            405: ("wrong-method", "this path takes other verbs; see /api/v2/openapi.json"),
        }.get(status, ("bad-request", "the request cannot be understood"))
        self._answers[status] += 1
        headers = getattr(error, "headers", None) or {}
        return problem_response(ApiError(status, code, detail, headers))

    async def _on_bug(self, request: WebRequest, error: Exception) -> Response:
        return self.failed(error, request)[0]


class Json(JSONResponse):
    """JSON, also of text that is not Unicode: half a surrogate pair is escaped."""

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class _EventResponse(StreamingResponse):
    """Events, for as long as somebody takes them in."""

    def __init__(
        self, content: AsyncIterator[bytes], headers: Mapping[str, str], at_end: Callable[[], None]
    ) -> None:
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; whoever left before the first event has ended, too."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._at_end()

    async def stream_response(self, send: Send) -> None:
        async def send_soon(message: Any) -> None:
            async with patience.timeout(_SEND_S):
                await send(message)

        with contextlib.suppress(TimeoutError):
            await super().stream_response(send_soon)


def gate_request(request: WebRequest, csrf: str | None = None) -> GatedRequest:
    """Return what decides of a request."""
    server = request.scope.get("server") or ("127.0.0.1", 0)
    return GatedRequest(
        method=request.method,
        headers=[(name.lower(), value) for name, value in request.headers.items()],
        reached=server[0],
        scheme=request.url.scheme,
        cookies=request.cookies,
        certificate=(request.scope.get("extensions") or {}).get(CERTIFICATE),
        csrf=csrf,
    )


def problem_response(problem: ApiError) -> Response:
    """Return what is answered for a problem."""
    return Json(
        problem.row(),
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers={**_HEADERS, **problem.headers},
    )


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(413, "body-too-large", f"a body is at most {bytes_max:,} bytes")


def _busy() -> ApiError:
    return ApiError(503, "busy", "too many bodies are being read; try again")


def _values(body: bytes) -> int:
    """Return how many values a body has if it is JSON, before it is read as such."""

    def separators(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    found = separators(body)
    if found <= _VALUES_MAX // 10:
        return found
    # Those in text are none; to look for strings takes longer, so not for any number of them.
    return separators(_STRING.sub(b"", body, count=_STRINGS_MAX))


def _object(data: bytes) -> dict[str, object]:
    collects = gc.isenabled()
    gc.disable()  # it would look through a million lists again and again while they become more
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ApiError(400, "bad-json", "the body is not JSON") from None
    finally:
        if collects:
            gc.enable()
    if not isinstance(found, dict):
        raise ApiError(400, "bad-json", "the body is not a JSON object")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _body_of(
    endpoint: Endpoint, request: WebRequest, query: Mapping[str, Any], data: bytes
) -> dict[str, object]:
    """Return a body's fields; what is no JSON is one record, where records are taken."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    if "records" in endpoint.body and not is_json:
        record: dict[str, object] = {"base64": base64.b64encode(data).decode()}
        if query["key"] is not None:
            record["key"] = query["key"]
        return {"records": [record]}
    return _object(data) if data else {}


def _event_bytes(event: Mapping[str, object]) -> bytes:
    if not event:
        return b": nothing yet\n\n"
    lines = [f"{name}: {event[name]}" for name in ("id", "event") if name in event]
    data = event["data"]  # text is JSON already
    lines.append(f"data: {data if isinstance(data, str) else json.dumps(data)}")
    return ("\n".join(lines) + "\n\n").encode()


def _bug() -> ApiError:
    return ApiError(500, "internal", "an error of ours; the server's log has its trace")
