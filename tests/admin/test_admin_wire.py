"""Bytes at the server's port: requests that hide others, broken bodies, other protocols."""

from __future__ import annotations

import asyncio
import logging
import ssl

import httpx
import pytest

from admin.test_admin_server import make
from doubles.certificates import Authority
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile

HEAD = b"GET /heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HIDDEN = b"PUT /api/v1/bookie/state/readonly?read_only=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BOTH = b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n"


async def _exchange(*pieces: bytes) -> bytes:
    """Send pieces a moment apart, and return what comes until the server ends the connection."""
    server = make()
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.url.rpartition(":")[2])
    came = b""
    for piece in pieces:
        writer.write(piece)
        if piece is not pieces[-1]:
            came += await reader.readuntil(b"OK\n")
    async with asyncio.timeout(8):
        came += await reader.read()
    writer.close()
    await server.stop()
    return came


@pytest.mark.parametrize("lengths", [BOTH, BOTH[::-1]])
async def test_a_request_with_two_lengths_hides_no_other(lengths: tuple[bytes, bytes]) -> None:
    body = b"0\r\n\r\n" + HIDDEN
    for length in 5, len(body):
        head = HEAD + b"".join(lengths) % length
        came = await _exchange(head + b"\r\n" + body)
        assert came.startswith(b"HTTP/1.1 400 ")
        assert came.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("size", [b"-1\r\n", b"0x5\r\n", b"\r\n", b"z\r\n"])
async def test_a_body_that_is_no_http_ends_its_request_alone(
    size: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = HEAD + BOTH[1] + b"\r\n"
    came = await _exchange(head + size)
    assert came.count(b"HTTP/1.1 ") == 1
    # It was answered before it went wrong: that answer stands.
    came = await _exchange(head, size + HIDDEN)
    assert came.startswith(b"HTTP/1.1 200 ")
    assert came.count(b"HTTP/1.1 ") == 1
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_who_asks_for_another_protocol_is_answered_in_this_one_and_writes_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for protocol in b"websocket", b"h2c":
        wish = b"Upgrade: " + protocol + b"\r\nConnection: Upgrade, close\r\n"
        came = await _exchange(HEAD + wish + b"\r\n")
        assert came.startswith(b"HTTP/1.1 200 ")
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_a_session_over_tls_has_a_cookie_that_browsers_take_over_tls_alone(tmp_path):
    ca = Authority(tmp_path)
    own = ca.issue("server", ips=["127.0.0.1"])
    tokens = TokenFile(str(tmp_path / "tokens.json"))
    token, _ = tokens.add("me", Role.VIEWER, lifetime_s=None)
    server = make(
        f"sqlite:///{tmp_path}/none.db", str(tmp_path / "tokens.json"),
        certificate_file=own.certificate_file, key_file=own.key_file,
    )  # fmt: skip
    await server.start()
    context = ssl.create_default_context(cafile=ca.ca_file)
    async with httpx.AsyncClient(verify=context, base_url=server.url) as http:
        answer = await http.post("/ui/login", data={"token": token})
        cookie, *rest = answer.headers["set-cookie"].split("; ")
        assert cookie.startswith(f"__Host-quorumbook_session_{server.url.rpartition(':')[2]}=")
        said = {each.lower() for each in rest}
        assert {"secure", "httponly", "path=/", "samesite=strict"} <= said
        assert not any(each.startswith("domain") for each in said)
        assert (await http.get("/ui/tokens")).status_code != 401
        assert token not in cookie
    await server.stop()
