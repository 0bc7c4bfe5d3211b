"""Pages over HTTP: sessions, roles, forms with their secrets and confirmations, templates.

A page is safe by what it may not do: no script of another place and none in the page itself, no
frame around it, no form to another server.  Whoever sends a form without the secret of its
session changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import jinja2
from starlette.requests import Request as WebRequest
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from quorumbook.admin.access.gate import Denial
from quorumbook.admin.access.oidc import OidcError
from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.console.actions import BY_KEY, Action, body_of, endpoint_of
from quorumbook.admin.console.pages import NAVIGATION, PAGES, Page
from quorumbook.admin.console.samples import Samples
from quorumbook.admin.facts.words import ago, at, counted, lasting, of_policy, since, sized
from quorumbook.admin.http.app import App, Json, gate_request
from quorumbook.admin.http.endpoint import Ask
from quorumbook.admin.http.fields import read_all
from quorumbook.admin.http.problems import ApiError, problem_of
from quorumbook.env import logger

_log = logger("admin.console")
#: A form is read before anybody knows who sends it: its secret is in it.
_FORM_BYTES = 16 * 1024
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}
_OWN_PAGE = re.compile(r"(/clusters/[\w.-]+)?/ui")
_STATIC = {
    "htmx.min.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "console.js": "text/javascript",
    "console.css": "text/css",
}


class Console:
    """The pages of one server.

    Args:
        app: Whom it asks; its gate lets in, and its service answers.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._service = app.service
        self.samples = Samples(self._known)
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("quorumbook.admin.console"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "sized": sized,
            "ago": ago,
            "at": at,
            "lasting": lasting,
            "segment": _quoted,
            "of_policy": of_policy,
        }
        self._base = self._service.options.base
        self._templates.globals |= {
            "counted": counted,
            "since": since,
            "base": self._base,
            "navigation": [
                (name, self._base + link, *rest)
                for name, link, *rest in NAVIGATION
                if name != "clusters" or len(self._service.neighbours) > 1
            ],
        }

    async def _known(self) -> Any:
        return (await self._service.facts(takes_old=True)).bookies

    def routes(self) -> list[BaseRoute]:
        """Return a route for each page, and those beside them."""
        return [
            Route("/", self._to_overview),
            Route("/ui/login", self._login, methods=["GET", "POST"]),
            Route("/ui/oidc", self._to_provider),
            Route("/ui/oidc/callback", self._from_provider),
            Route("/ui/logout", self._logout, methods=["POST"]),
            Route("/ui/samples", self._samples),
            Route("/ui/do/{key}", self._do, methods=["POST"]),
            Route("/ui/static/{name}", _static),
            *(Route(page.path, self._shower(page)) for page in PAGES),
            Route("/ui/{rest:path}", self._nowhere),
        ]

    # Pages ---------------------------------------------------------------------------------

    def _shower(self, page: Page) -> Any:
        async def show(request: WebRequest) -> Response:
            cookie = None
            try:
                who, cookie = self._let_in(request)
                self._app.demand(who, page.role)
                _check_whole(who)
                names = read_all(page.names, request.path_params, is_text=True, where="name")
                given = {key: value for key, value in request.query_params.items() if value != ""}
                told = given.pop("told", "")
                query = read_all(page.query, given, is_text=True, where="parameter")
                data = await page.load(Ask(self._service, who, names, query, {}, is_page=True))
            except Exception as error:
                return self._failed(request, error, cookie)
            if "application/json" in request.headers.get("accept", ""):
                return Json(data, headers=_HEADERS)
            return self._page(
                request, page, who, cookie, {**data, "told": told, "query": query}, names
            )

        return show

    def _page(
        self, request: WebRequest, page: Page, who: Who, cookie: str | None,
        data: Mapping[str, Any], names: Mapping[str, Any],
    ) -> Response:  # fmt: skip
        own = f"{request.url.scheme}://{request.headers['host']}{self._base}"
        uri = self._service.shown_uri
        words = {"url": own, "uri": uri, **data["query"], **names}
        shown = {key: value for key, value in data["query"].items() if value is not None}
        told = page.query.keys() & request.query_params.keys()
        twin = self._base + _filled(page.twin, names)
        if twin_query := {
            key: shown[key] for key in sorted(told) if key != "view" and key in shown
        }:
            twin += f"?{urlencode(twin_query)}"
        offered = [
            action
            for key in page.actions
            if who.may(endpoint_of(action := BY_KEY[key], self._app.endpoints).role)
        ]
        return self._render(
            request, page.template, who, cookie,
            title=page.title.format_map(_Words(words)), area=page.area, twin=twin,
            command=page.command.format_map(_Words(words)), refresh_s=page.refresh_s,
            actions={action.key: action for action in offered}, names=names, **data,
        )  # fmt: skip

    def _render(
        self, request: WebRequest, template: str, who: Who | None, cookie: str | None,
        status: int = 200, **data: Any,
    ) -> Response:  # fmt: skip
        gate = self._app.gate
        session = gate.session({gate.cookie: cookie} if cookie else request.cookies)
        text = self._templates.get_template(template).render(
            who=who, csrf=session.csrf if session else "", is_open=gate.is_open,
            address=str(request.url.path), uri=self._service.shown_uri, now_ms=_now_ms(),
            clusters=self._clusters(who), **data,
        )  # fmt: skip
        response = Response(text, status, _HEADERS, "text/html; charset=utf-8")
        if cookie:
            self._set_cookie(request, response, cookie)
        return response

    def _clusters(self, who: Who | None) -> list[dict[str, object]]:
        """Return the server's clusters that somebody may see, for the way from one to another."""
        return [
            {"name": each.options.cluster, "link": f"{each.options.base}/ui",
             "is_here": each is self._service}
            for each in self._service.neighbours
            if who is not None and who.at(each.options.cluster) is not None
        ]  # fmt: skip

    def _set_cookie(self, request: WebRequest, response: Response, cookie: str) -> None:
        response.set_cookie(
            self._app.gate.cookie, cookie, httponly=True, samesite="strict",
            secure=request.url.scheme == "https", path="/",
        )  # fmt: skip

    def _let_in(self, request: WebRequest, csrf: str | None = None) -> tuple[Who, str | None]:
        """Return who asks; a browser on loopback gets a session, whose cookie is returned.

        Raises:
            ApiError: It is not let in.
        """
        who = self._app.known(request, csrf=csrf)
        if who.how == "loopback" and self._app.gate.session(request.cookies) is None:
            begun = self._app.gate.begin("")
            return who, None if isinstance(begun, Denial) else begun
        return who, None

    def _failed(self, request: WebRequest, error: Exception, cookie: str | None = None) -> Response:
        problem = problem_of(error)
        if problem is None:
            _log.exception("%s %s failed", request.method, request.url.path)
            problem = ApiError(500, "internal", "an error of ours; the server's log has its trace")
        if "application/json" in request.headers.get("accept", ""):
            return self._app.failed(error, request)[0]
        if problem.status == 401 and request.method == "GET":
            query = f"?{request.url.query}" if request.url.query else ""
            wanted = urlencode({"next": request.url.path + query})
            return RedirectResponse(f"/ui/login?{wanted}", 303, _HEADERS)
        who = self._app.gate.judge(gate_request(request)) if request.method == "GET" else None
        return self._render(
            request, "problem.html", who if isinstance(who, Who) else None, cookie, problem.status,
            title="This did not work", problem=problem, area="", twin="", command="", refresh_s=0,
            told="",
        )  # fmt: skip

    async def _to_overview(self, _request: WebRequest) -> Response:
        return RedirectResponse(f"{self._base}/ui", 302, _HEADERS)

    async def _nowhere(self, request: WebRequest) -> Response:
        return self._failed(request, ApiError(404, "no-such-page", "there is no such page"))

    async def _samples(self, request: WebRequest) -> Response:
        try:
            who = self._app.known(request)
            self._app.demand(who, Role.VIEWER)
            _check_whole(who)
        except Exception as error:
            return self._app.failed(error, request)[0]
        return Json(self.samples.recent(), headers=_HEADERS)

    # Sessions ------------------------------------------------------------------------------

    async def _login(self, request: WebRequest) -> Response:
        denial = self._app.gate.host_denial(gate_request(request))
        if denial is not None:
            return self._failed(request, ApiError(denial.status, denial.code, denial.detail))
        wanted = _wanted(request)
        status, bad = 200, ""
        if request.method == "POST":
            try:
                form = await self._form(request)
            except Exception as error:
                return self._failed(request, error)
            begun = self._app.gate.begin(form.get("token", "").strip())
            if not isinstance(begun, Denial):
                response = RedirectResponse(wanted, 303, _HEADERS)
                self._set_cookie(request, response, begun)
                return response
            self._app.note(request, None, begun.code)
            status, bad = begun.status, begun.detail
        return self._sign_in_page(request, wanted, status, bad)

    def _sign_in_page(self, request: WebRequest, wanted: str, status: int, bad: str) -> Response:
        gate = self._app.gate
        return self._render(
            request, "login.html", None, None, status, title="Sign in", bad=bad,
            area="", twin="", command="", refresh_s=0, told="", next=wanted,
            takes_tokens=gate.tokens is not None or gate.is_open, has_oidc=gate.oidc is not None,
        )  # fmt: skip

    async def _to_provider(self, request: WebRequest) -> Response:
        """Send a browser to the identity provider."""
        oidc = self._app.gate.oidc
        if oidc is None:
            return await self._nowhere(request)
        denial = self._app.gate.host_denial(gate_request(request))
        if denial is not None:
            return self._failed(request, ApiError(denial.status, denial.code, denial.detail))
        wanted = _wanted(request)
        back = f"{request.url.scheme}://{request.headers['host']}/ui/oidc/callback"
        try:
            where, kept = await oidc.begin(back, wanted)
        except OidcError as error:
            return self._sign_in_page(request, wanted, 503, str(error))
        response = RedirectResponse(where, 303, _HEADERS)
        # Not strict: it comes back by a link of the provider's.
        response.set_cookie(
            f"{self._app.gate.cookie}_oidc", kept, max_age=600, httponly=True, samesite="lax",
            secure=request.url.scheme == "https", path="/",
        )  # fmt: skip
        return response

    async def _from_provider(self, request: WebRequest) -> Response:
        """Let in whom the identity provider sends back."""
        gate = self._app.gate
        if gate.oidc is None:
            return await self._nowhere(request)
        denial = gate.host_denial(gate_request(request))
        if denial is not None:
            return self._failed(request, ApiError(denial.status, denial.code, denial.detail))
        state, code = (request.query_params.get(name, "") for name in ("state", "code"))
        kept = request.cookies.get(f"{gate.cookie}_oidc", "")
        source = request.client.host if request.client else "-"
        what = f"GET {request.url.path}"  # not the query: the code is in it
        try:
            who, wanted = await gate.oidc.finish(state, kept, code)
        except OidcError as error:
            self._service.audit.add(None, source, what, "not-authenticated")
            return self._sign_in_page(request, "/ui", 401, str(error))
        self._service.audit.add(who, source, what, "done")
        # A page, not a redirect: by one the browser would not send a strict cookie.
        response = self._render(
            request, "signed_in.html", None, None, title="Signed in", area="", twin="",
            command="", refresh_s=0, told="", next=wanted,
        )  # fmt: skip
        self._set_cookie(request, response, gate.begin_as(who))
        response.delete_cookie(f"{gate.cookie}_oidc", path="/")
        return response

    async def _logout(self, request: WebRequest) -> Response:
        try:
            form = await self._form(request)
            self._app.judged(request, csrf=form.get("csrf"))  # of whichever cluster
        except Exception as error:
            return self._failed(request, error)
        self._app.gate.end(request.cookies)
        response = RedirectResponse("/ui/login", 303, _HEADERS)
        response.delete_cookie(
            self._app.gate.cookie, path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    # Forms ---------------------------------------------------------------------------------

    async def _form(self, request: WebRequest) -> dict[str, str]:
        async with self._app.body(request, _FORM_BYTES) as body:
            try:
                pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100)
            except ValueError:
                raise ApiError(400, "bad-form", "the form cannot be understood") from None
        return dict(pairs)

    async def _do(self, request: WebRequest) -> Response:
        who: Who | None = None
        action = BY_KEY.get(request.path_params["key"])
        if action is None:
            return await self._nowhere(request)
        form: dict[str, str] = {}
        outcome = "done"
        try:
            form = await self._form(request)
            who, _ = self._let_in(request, form.get("csrf", ""))
            told = await self._carry_out(action, who, form)
            response: Response = RedirectResponse(
                f"{self._base}{_filled(action.then, form)}"
                f"?{urlencode({'told': told, **_namespace(form)})}",
                303, _HEADERS,
            )  # fmt: skip
        except Exception as error:
            problem = problem_of(error)
            outcome = problem.code if problem else "internal"
            response = self._failed(request, error)
        source = request.client.host if request.client else "-"
        what = f"{action.method} {_filled(action.path, form)} (console)"
        self._service.audit.add(who, source, what, outcome)
        return response

    async def _carry_out(self, action: Action, who: Who, form: Mapping[str, str]) -> str:
        """Do it, and return what is told.

        Raises:
            ApiError: It may not, or the confirmation is not what it has to be.
        """
        endpoint = endpoint_of(action, self._app.endpoints)
        self._app.demand(who, endpoint.role)
        _check_whole(who)
        if action.confirm and form.get("confirm", "").strip() != form.get(action.confirm):
            raise ApiError(
                400, "not-confirmed",
                f"nothing was done: to confirm, type {form.get(action.confirm, '')[:200]} exactly",
            )  # fmt: skip
        names = {name: form.get(name, "") for name in endpoint.names}
        query = {name: form[name] for name in endpoint.query if form.get(name)}
        ask = Ask(
            self._service,
            who,
            read_all(endpoint.names, names, is_text=True, where="name"),
            read_all(endpoint.query, query, is_text=True, where="parameter"),
            read_all(endpoint.body, body_of(action, form, endpoint), is_text=False, where="field"),
        )
        await endpoint.handle(ask)
        return f"{action.label}: done" if endpoint.status != 202 else f"{action.label}: begun"

    async def close(self) -> None:
        """Take no more samples."""
        await self.samples.close()


def _check_whole(who: Who) -> None:
    """Refuse whoever is confined to some namespaces: pages are about the whole cluster.

    Raises:
        ApiError: It is.
    """
    if who.namespaces:
        raise ApiError(403, "namespace", "this token is for the API alone")


class _Words(dict[str, Any]):
    """Words for a title or a command; what is not given is left out."""

    def __missing__(self, _key: str) -> str:
        return ""


def _wanted(request: WebRequest) -> str:
    """Return the page that a sign-in leads to: one of ours, not //evil.example or its kin."""
    wanted = request.query_params.get("next", "/ui")
    return wanted if _OWN_PAGE.match(wanted) and "\\" not in wanted else "/ui"


def _filled(path: str, names: Mapping[str, Any]) -> str:
    for name, value in names.items():
        text = quote(str(value), safe="/:" if name == "name" else ":")
        path = path.replace(f"{{{name}:path}}", text).replace(f"{{{name}}}", text)
    return path


def _quoted(value: object) -> str:
    return quote(str(value), safe="/:")


def _namespace(form: Mapping[str, str]) -> dict[str, str]:
    return {"namespace": form["namespace"]} if form.get("namespace") else {}


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _static(request: WebRequest) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return Response("there is no such file\n", 404, media_type="text/plain")
    content = files("quorumbook.admin.console").joinpath("static", name).read_bytes()
    headers = {**_HEADERS, "Cache-Control": "max-age=300"}
    return Response(content, 200, headers, f"{_STATIC[name]}; charset=utf-8")
