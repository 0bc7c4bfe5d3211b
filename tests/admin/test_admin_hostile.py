"""Whatever is sent, to whichever endpoint, is answered by one problem object and no trace."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from typing import Any

import httpx
import pytest
from starlette.requests import Request as WebRequest

from admin.conftest import URL, problem
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.console.pages import _decoded
from quorumbook.admin.console.web import Console
from quorumbook.admin.http import app as app_module
from quorumbook.admin.http.endpoint import Endpoint, Events
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.problems import ApiError
from quorumbook.admin.server import all_endpoints

ENDPOINTS = all_endpoints()
OURS = [each for each in ENDPOINTS if not each.is_lenient]


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def good(field: Field) -> Any:
    """Return a value that a field takes."""
    if field.choices:
        return field.choices[0]
    if field.kind in ("integer", "number"):
        return max(1, int(field.minimum or 0))
    return {"boolean": True, "string": "earliest", "array": [], "object": {}}[field.kind]


def bad(field: Field) -> list[Any]:
    """Return values that it does not take."""
    values: list[Any] = [{"a": 1}, [[]], "\0", "\ud800", "x" * (field.max_length + 1)]
    if field.kind in ("integer", "number"):
        values = ["", "x", "1e999", "9" * 5000, "NaN", True, {}]
        values += [field.minimum - 1] if field.minimum is not None else []
        values += [field.maximum * 2 + 1] if field.maximum is not None else []
    elif field.kind == "boolean":
        values = ["maybe", 7, {}]
    elif field.kind in ("array", "object"):
        values = ["x", 1, True]
        values += [{"a": "\ud800"}, {"\ud800": "a"}] if field.kind == "object" else []
    elif field.choices:
        values.append("none-of-them")
    return values


def path_of(endpoint: Endpoint, **names: object) -> str:
    def fill(found: re.Match[str]) -> str:
        field = endpoint.names.get(found[1])
        return str(names.get(found[1], good(field) if field else "x"))

    return re.sub(r"\{(\w+)(?::\w+)?\}", fill, endpoint.path)


def required(fields: Any) -> dict[str, Any]:
    return {name: good(field) for name, field in fields.items() if field.is_required}


async def test_bad_parameters_of_every_endpoint_are_one_problem(api):
    for endpoint in OURS:
        for name, field in endpoint.query.items():
            if name == "password":
                continue
            for value in bad(field):
                if isinstance(value, dict | list) or value in ("", True, "\ud800"):
                    continue
                answer = await api.http.request(
                    endpoint.method, path_of(endpoint), params={name: value},
                    json=required(endpoint.body) if endpoint.body else None,
                )  # fmt: skip
                assert name in problem(answer, 400, "bad-parameter"), (endpoint.path, value)
        for params in ({"no-such": "1"}, {"<script>": "1"}):
            answer = await api.http.request(endpoint.method, path_of(endpoint), params=params)
            problem(answer, 400, "unknown-parameter")


async def test_bad_bodies_of_every_endpoint_are_one_problem(api):
    for endpoint in OURS:
        if not endpoint.body:
            continue
        send = {"method": endpoint.method, "url": path_of(endpoint)}
        headers = {"content-type": "application/json"}
        for text in ("{", "[]", "7", '"x"', "\xff", "{" * 20_000, '{"a":NaN}', "[" * 100_000):
            answer = await api.http.request(**send, content=text.encode("latin-1"), headers=headers)
            problem(answer, 400, "bad-json")
        problem(await api.http.request(**send, json={"no-such": 1}), 400, "unknown-parameter")
        for name, field in endpoint.body.items():
            for value in bad(field):
                content = json.dumps(required(endpoint.body) | {name: value})
                answer = await api.http.request(**send, content=content, headers=headers)
                assert name in problem(answer, 400, "bad-parameter"), (endpoint.path, name, value)
            if field.is_required:
                left = {n: v for n, v in required(endpoint.body).items() if n != name}
                assert name in problem(
                    await api.http.request(**send, json=left), 400, "bad-parameter"
                )


#: What is sent whatever an endpoint takes: bodies with what they say they are.
JUNK = (
    (b"", "application/json"),
    (b"\x00", "application/json"),
    (b"\xff\xfe\xfd", "application/json"),
    (b'{"a": "\xc3\x28"}', "application/json"),
    (b'{"a":' * 50_000, "application/json"),
    (b"[" * 100_000 + b"]" * 100_000, "application/json"),
    (b'{"a": 1' + b"0" * 5000 + b"}", "application/json"),
    (b'{"\x00": 1}', "application/json"),
    (b"x" * (1 << 20), "application/json"),
    (b"<a/>", "application/xml"),
    (b"{}", "text/plain; charset=utf-7"),
    (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
)


async def test_junk_of_every_kind_to_every_endpoint_of_the_document_is_one_problem(api):
    document = (await api.http.get("/api/v2/openapi.json")).json()
    sent = 0
    for path, verbs in document["paths"].items():
        for verb in verbs:
            if path.endswith("/tail"):
                continue
            for name in ("nobody", "%00", "%ff", "9" * 400, "%2e%2e", "1%20OR%201"):
                url = re.sub(r"\{\w+\}", name, path)
                for content, kind in JUNK if name == "nobody" else JUNK[:1]:
                    answer = await api.http.request(
                        verb.upper(), url, content=content, headers={"content-type": kind}
                    )
                    sent += 1
                    said = (verb, url, content[:20], answer.text[:300])
                    assert answer.status_code < 500, said
                    assert "Traceback" not in answer.text, said
                    if answer.status_code >= 400:
                        problem(answer, answer.status_code, answer.json()["code"])
    assert sent > 500


async def test_bad_names_in_paths_are_one_problem(api):
    for endpoint in OURS:
        for name, field in endpoint.names.items():
            wrong = ["x", "-1", "9" * 30, "1.5"] if field.kind == "integer" else ["%00", "a" * 5000]
            for value in wrong:
                answer = await api.http.request(
                    endpoint.method, path_of(endpoint, **{name: value}),
                    json=required(endpoint.body) if endpoint.body else None,
                )  # fmt: skip
                problem(answer, 400, "bad-parameter")


async def test_what_is_not_there_is_said_by_every_endpoint(api):
    for endpoint in OURS:
        # A rack may be that of a bookie which is not there yet.
        if not endpoint.names or "location" in endpoint.body:
            continue
        names = {
            name: 999_999 if field.kind == "integer" else "nobody"
            for name, field in endpoint.names.items()
        }
        body = required(endpoint.body)
        if "ids" in body:
            body["ids"] = ["0:1"]
        if "records" in body:
            body["records"] = [{"text": "x"}]
        if "before" in body:
            body["before"] = "seq:1"
        if "entries" in body:
            body["entries"] = [{"text": "x"}]
        for name, value in (("position", "earliest"), ("compatibility", "none")):
            if name in endpoint.body:
                body[name] = value
        answer = await api.http.request(
            endpoint.method, path_of(endpoint, **names), json=body if endpoint.body else None
        )
        assert answer.status_code in (404, 409), (endpoint.method, endpoint.path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


#: What the peer's paths are asked for.
STRANGE = ({}, {"ledger_id": "x"}, {"ledger_id": "-1"}, {"page": "9" * 99}, {"type": "x"},
           {"ledger_id": "7", "bookie": "nobody"}, {"enabled": "maybe"})  # fmt: skip
CONTENTS = (b"", b"{", b"[]", b'{"bookie_src": 7}', b'{"delay_seconds": "x"}')


async def test_the_peers_paths_take_anything_without_a_trace(api):
    for endpoint in (each for each in ENDPOINTS if each.is_lenient):
        contents = CONTENTS[:1] if endpoint.method == "GET" else CONTENTS
        for params, content in itertools.product(STRANGE, contents):
            answer = await api.http.request(
                endpoint.method, endpoint.path, params=params, content=content
            )
            said = (_name(endpoint), params, content, answer.text)
            assert answer.status_code < 500 or answer.status_code == 503, said
            if answer.status_code >= 400:
                assert answer.json().keys() == {"type", "title", "status", "detail", "code"}, said


async def test_strange_paths_and_verbs_are_problems(api):
    for path in ("/", "/api", "/api/v2", "/api/v3/x", "/%2e%2e/etc/passwd", "/api/v2/../../x",
                 "//", "/api/v2/ledgers/x/y/z", "/a%7f"):  # fmt: skip
        answer = await api.http.get(path, follow_redirects=True)
        assert answer.status_code in (400, 404), path
        assert answer.json()["code"]
    for method in ("PATCH", "DELETE", "OPTIONS", "PROPFIND"):
        problem(await api.http.request(method, "/api/v2/cluster"), 405, "wrong-method")


async def test_every_endpoint_asks_who_and_refuses_lower_roles(guarded):
    api, secrets = guarded
    for endpoint in ENDPOINTS:
        send = {"method": endpoint.method, "url": path_of(endpoint)}
        problem(await api.http.request(**send), 401, "not-authenticated")
        answer = await api.http.request(**send, headers={"Authorization": "Bearer wrong"})
        problem(answer, 401, "not-authenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
        for role in Role:
            if role < endpoint.role:
                async with api.with_token(secrets[role.word]) as http:
                    assert endpoint.role.word in problem(await http.request(**send), 403, "role")


async def test_refused_changes_are_in_the_audit_log(guarded):
    api, secrets = guarded
    await api.http.delete("/api/v2/ledgers/7")
    async with api.with_token(secrets["viewer"]) as viewer:
        await viewer.delete("/api/v2/ledgers/7")
    async with api.with_token(secrets["admin"]) as admin:
        await admin.delete("/api/v2/ledgers/7")
        changes = (await admin.get("/api/v2/audit")).json()["changes"]
    assert [(c["who"], c["outcome"]) for c in changes] == [
        ("admin", "no-such-ledger"), ("viewer", "role"), ("-", "not-authenticated"),
    ]  # fmt: skip
    assert {c["what"] for c in changes} == {"DELETE /api/v2/ledgers/7"}


async def test_secrets_are_in_no_answer(guarded):
    api, secrets = guarded
    client = await api.service.client()
    options = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    async with await client.create_ledger(password=b"canary-password", **options) as writer:
        await writer.append(b"x")
    ledger = writer.id
    path = f"/ledgers/00/0000/L{ledger:04d}"
    async with api.with_token(secrets["admin"]) as http:
        answers = [
            await http.request(each.method, path_of(each, id=ledger))
            for each in ENDPOINTS
            if each.method == "GET" and not each.path.endswith("/tail")
        ]
        answers += [
            await http.get("/api/v2/metadata", params={"path": path}),
            await http.get("/api/v1/ledger/metadata", params={"ledger_id": ledger}),
            await http.get("/api/v1/ledger/list", params={"print_metadata": "true"}),
            await http.get(
                f"/api/v2/ledgers/{ledger}/entries",
                headers={"Quorumbook-Ledger-Password": "canary-wrong"},
            ),
            await http.get(
                f"/api/v2/ledgers/{ledger}/entries",
                headers={"Quorumbook-Ledger-Password": "canary-password"},
            ),
        ]
        assert answers[-1].json()["entries"][0]["text"] == "x"
        refused = await http.get(
            f"/api/v2/ledgers/{ledger}/entries", params={"password": "canary-password"}
        )
        assert "canary" not in problem(refused, 400, "unknown-parameter")
    for answer in answers:
        assert "canary" not in answer.text, answer.url
        assert all(secret not in answer.text for secret in secrets.values())
    node = answers[-5].json()
    assert (node["kind"], node["value"]["has_password"]) == ("ledger", True)


async def test_bodies_are_bounded_before_they_are_read(api):
    async def endless():
        while True:
            yield b"x" * 65536

    path = "/api/v2/streams/s/records"
    for content in (b"x" * (8 << 20) + b"x", endless()):
        answer = await api.http.post(path, content=content)
        assert "8,388,608" in problem(answer, 413, "body-too-large")
    assert api.app._body_bytes == 0  # what a body costs before it is answered is not told


async def test_records_that_are_none_are_named(api):
    await api.http.post("/api/v2/streams", json={"name": "s"})
    for record in (7, {}, {"text": 1}, {"text": "a", "json": 1}, {"base64": "%"}, {"base64": 7},
                   {"text": "a", "key": 7}, {"text": "a", "headers": {"x": 1}},
                   {"text": "a", "event_time_ms": "now"}, {"text": "a", "event_time_ms": 2**63},
                   {"text": "\ud800"}, {"json": ["\ud800"]}, {"text": "a", "what": 1}):  # fmt: skip
        answer = await api.http.post(
            "/api/v2/streams/s/records", content=json.dumps({"records": [{"text": "a"}, record]}),
            headers={"content-type": "application/json"},
        )  # fmt: skip
        assert "records[1]" in problem(answer, 400, "bad-parameter"), record
    assert (await api.http.get("/api/v2/streams/s/records")).json()["records"] == []


async def test_pages_of_other_servers_change_nothing(api):
    answer = await api.http.post(
        "/api/v2/streams", json={"name": "s"}, headers={"Origin": "http://evil.example"}
    )
    problem(answer, 403, "foreign-origin")
    answer = await api.http.get("/api/v2/cluster", headers={"Host": "evil.example"})
    problem(answer, 421, "wrong-host")
    # A page of ours has a session, and its second secret.
    answer = await api.http.post(
        "/api/v2/streams", json={"name": "s"}, headers={"Origin": "http://127.0.0.1:8085"}
    )
    problem(answer, 403, "csrf")


async def test_head_is_let_in_as_get_and_does_no_more(guarded):
    api, secrets = guarded
    path = "/api/v1/autorecovery/lost_bookie_recovery_delay"
    async with api.with_token(secrets["viewer"]) as viewer:
        await viewer.request("HEAD", path, json={"delay_seconds": 77})
        assert "value: 0" in (await viewer.get(path)).text


async def test_a_body_with_two_lengths_counts_as_the_larger(api):
    counted = []

    async def pieces():
        counted.append(api.app._body_bytes)  # what a body costs before it is answered is not told
        yield b"{}"

    await api.http.post(
        "/api/v2/streams", content=pieces(),
        headers={"Transfer-Encoding": "chunked", "Content-Length": "1"},
    )  # fmt: skip
    assert counted == [8 << 20]


async def test_whoever_follows_is_let_go_when_its_token_is_revoked(guarded, monkeypatch):
    monkeypatch.setattr(app_module, "_FOLLOWER_CHECK_S", 0.0)
    api, secrets = guarded

    async def events():
        while True:
            yield {}

    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {secrets['viewer']}".encode())]
    request = WebRequest(
        {"type": "http", "method": "GET", "scheme": "http", "path": "/", "query_string": b"",
         "server": ("127.0.0.1", 8085), "headers": headers}
    )  # fmt: skip
    tail = next(each for each in ENDPOINTS if each.path.endswith("/tail"))
    # What a body costs before it is answered is not told.
    followed = api.app._response(Events(events()), tail, request).body_iterator
    assert [await anext(followed) for _ in range(3)] == [b": nothing yet\n\n"] * 3
    assert TokenFile(api.service.options.token_file).revoke("viewer")
    assert b"event: problem" in (last := await anext(followed))
    assert b"not-authenticated" in last
    assert [each async for each in followed] == []


async def test_places_of_followers_are_taken_before_their_first_event(api, monkeypatch):
    monkeypatch.setattr(app_module, "_EVENT_STREAMS", 1)

    async def events():
        yield {}

    request = WebRequest(
        {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    )
    tail = next(each for each in ENDPOINTS if each.path.endswith("/tail"))
    answer = api.app._response  # what a body costs before it is answered is not told

    async def gone(*_):
        raise OSError

    # A client that has left before anything was sent gives its place back as well.
    for _ in range(2):
        first = answer(Events(events()), tail, request)
        with pytest.raises(ApiError, match="too many requests follow"):
            answer(Events(events()), tail, request)
        with contextlib.suppress(Exception):
            await first({"type": "http", "asgi": {"spec_version": "2.4"}}, gone, gone)


async def test_a_form_is_small_whoever_sends_it(guarded):
    api, _ = guarded
    transport = httpx.ASGITransport(api.app.starlette(Console(api.app).routes()))

    async def endless():
        while True:
            yield b"x" * 4096

    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        for path in ("/ui/login", "/ui/logout", "/ui/do/recovery-off"):
            for content in (b"token=" + b"x" * 20_000, endless()):
                assert (await http.post(path, content=content)).status_code == 413, path


async def test_refusals_push_no_change_out_of_the_audit_log_and_it_holds_no_secret(
    guarded,
):
    api, secrets = guarded
    async with api.with_token(secrets["admin"]) as admin:
        await admin.post("/api/v2/streams", json={"name": "kept"})
        for _ in range(1100):
            api.service.audit.add(None, "-", "DELETE /api/v2/ledgers/7", "not-authenticated")
        for query in ("password=canary&x=1", "pass%77ord=canary", "a=1&token=canary&token=canary"):
            await api.http.delete(f"/api/v2/ledgers/7?{query}")
        answer = await admin.get("/api/v2/audit", params={"limit": 1000})
    changes = answer.json()["changes"]
    assert (changes[-1]["who"], changes[-1]["what"]) == ("admin", "POST /api/v2/streams")
    assert changes[2]["what"] == "DELETE /api/v2/ledgers/7?password=***&x=1"
    assert "canary" not in answer.text


async def test_strangers_and_confined_tokens_learn_nothing_of_the_cluster_from_pages(guarded):
    api, _ = guarded
    confined, _ = TokenFile(api.service.options.token_file).add(
        "confined", Role.ADMIN, lifetime_s=None, namespaces=("/team",)
    )
    console = Console(api.app)
    transport = httpx.ASGITransport(api.app.starlette(console.routes()))
    async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
        for path in ("/ui/login", "/ui/nowhere"):
            assert api.service.shown_uri not in (await http.get(path)).text
        bearer = {"Authorization": f"Bearer {confined}"}
        problem(await http.get("/ui/samples", headers=bearer), 403, "namespace")
        for endpoint in ENDPOINTS:
            url = path_of(endpoint)
            if "namespace" not in endpoint.query:
                answer = await http.request(endpoint.method, url, headers=bearer)
                problem(answer, 403, "namespace")
                continue
            for given in ("", "?namespace=", "?namespace=/team/", "?namespace=/team/../streams",
                          "?namespace=/team&namespace=/streams"):  # fmt: skip
                answer = await http.request(endpoint.method, url + given, headers=bearer)
                problem(answer, 403, "namespace")
    await console.close()


def test_entries_that_are_strange_json_are_shown_as_text():
    assert _decoded({"text": "[1]"}, "auto") == {"shown": "[\n  1\n]", "as": "JSON"}
    for text in ('{"a": "\\ud800"}', "[" * 900 + "]" * 900, "[" * 100_000):
        assert _decoded({"text": text}, "auto") == {"shown": text, "as": "text"}


async def test_a_name_that_is_not_unicode_is_one_problem(api):
    for path in ("bookie", "decommission"):
        answer = await api.http.put(
            f"/api/v1/autorecovery/{path}",
            content=json.dumps({"bookie_src": "\ud800" if path != "bookie" else ["\ud800"]}),
        )
        problem(answer, 404, "no-such-bookie")
