"""What bodies become as JSON is bounded, whatever they hold and however many come at once."""

from __future__ import annotations

import json

import pytest
from starlette.requests import Request as WebRequest

from admin.conftest import problem
from quorumbook.admin.http import app as app_module
from quorumbook.admin.http.app import _values  # what a body costs is told nowhere else

URL = "/api/v2/streams"


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"{}", 1),
        (b'{"a": [1, 2, {}], "b": 3}', 6),
        (b'{"a": "' + b"1,2;[3]," * 90_000 + b'"}', 1),
        (b'{"a": "\\",[[" , "b": [' + b"[]," * 90_000 + b"7]}", 180_003),
        (b'"' + b',\\"' * 200_000, 0),
        (b'"a",' * 300_000, 300_000),
        (b'"' * 300_001, 0),
    ],
)
def test_values_are_counted_without_those_in_text(body, values):
    assert _values(body) == values


@pytest.mark.timeout(60)  # it would be hours if the time grew with the square
@pytest.mark.parametrize("piece", [b"[],", b'"', b'\\"', b'",', b'"a",', b",\\", b'"\\'])
def test_values_of_a_large_body_are_counted_soon(piece):
    assert _values(piece * (8_000_000 // len(piece))) < 8_000_000


async def test_a_body_of_too_many_values_is_refused_before_it_is_read(api):
    for field in ("name", "policy", "x"):
        content = b'{"%s": [%s0]}' % (field.encode(), b"[]," * 600_000)
        answer = await api.http.post(URL, content=content)
        assert "1,000,000 values" in problem(answer, 413, "body-too-large")
    # Text may have as many as it likes.
    await api.http.post(URL, json={"name": "s"})
    records = [{"text": "1,[2],{3}" * 100_000}] * 7
    answer = await api.http.post(f"{URL}/s/records", json={"records": records})
    assert answer.status_code == 200, answer.text


async def test_bodies_share_what_they_may_become(api, monkeypatch):
    monkeypatch.setattr(app_module, "_VALUES_MAX", 1000)
    content = json.dumps({"name": "s", "policy": {"x": [0] * 600}}).encode()

    async def receive():
        return {"type": "http.request", "body": content}

    headers = [(b"content-length", str(len(content)).encode())]
    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": headers}
    async with api.app.body(WebRequest(scope, receive)):
        problem(await api.http.post(URL, content=content), 503, "busy")
        assert (await api.http.post(URL, json={"name": "small"})).status_code == 201
    problem(await api.http.post(URL, content=content), 400, "bad-parameter")
    assert api.app._body_values == 0  # what a body costs is told nowhere else
