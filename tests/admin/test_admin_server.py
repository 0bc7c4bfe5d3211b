"""The server itself: where it listens, TLS, certificates of clients, clients that do nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl

import httpx
import pytest
import uvloop

import quorumbook
from doubles.certificates import Authority
from doubles.waiting import until
from quorumbook.admin import server as server_module
from quorumbook.admin.access.answers import BoundedAnswers
from quorumbook.admin.http.app import problem_response
from quorumbook.admin.http.problems import ApiError
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.errors import ConfigError
from quorumbook.testing import LocalCluster
from surfaces.conftest import CommandLine


def make(uri: str = "sqlite:///none.db", token_file: str = "", **options: object) -> AdminServer:
    service = Service(
        ServiceOptions(uri, connect=lambda: quorumbook.connect(uri), token_file=token_file)
    )
    given = {"port": 0, "token_file": token_file, **options}
    return AdminServer(AdminOptions(**given), service)


async def test_off_loopback_it_starts_only_with_authentication(tmp_path):
    with pytest.raises(ConfigError, match=r"admin\.token_file"):
        await make(host="0.0.0.0").start()
    server = make(host="0.0.0.0", token_file=str(tmp_path / "tokens.json"))
    await server.start()
    async with httpx.AsyncClient() as http:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert (await http.get(f"{url}/heartbeat")).text == "OK\n"
        assert (await http.get(f"{url}/api/v2/cluster")).status_code == 401
    await server.stop()


@pytest.mark.parametrize(
    "options",
    [{"certificate_file": "x.pem"}, {"ca_file": "ca.pem"},
     {"certificate_file": "no.pem", "key_file": "no.key"}, {"certificate_roles": ("x",)},
     {"certificate_roles": ("x=king",)}, {"host": "no.such.host.invalid"}],
)  # fmt: skip
async def test_what_cannot_work_is_said_at_the_start(options):
    with pytest.raises(ConfigError):
        await make(**options).start()


async def test_a_server_without_a_cluster_serves_and_says_so(tmp_path):
    server = make(f"sqlite:///{tmp_path}/none.db")
    await server.start()
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{server.url}/api/v2/cluster")
        assert answer.status_code == 503
        assert answer.json()["code"] == "cluster-not-initialized"
        assert (
            'admin_requests_total{status="503"} 1.0'
            in (await http.get(f"{server.url}/metrics")).text
        )
    await server.stop()


async def test_a_certificate_takes_the_place_of_a_token(tmp_path):
    ca = Authority(tmp_path)
    own = ca.issue("server", ips=["127.0.0.1"], dns=["localhost"])
    other = ca.issue("viewer-bot", common_name="viewer-bot", ips=["127.0.0.1"])
    stranger = ca.issue("stranger", common_name="stranger", ips=["127.0.0.1"])
    async with LocalCluster(bookies=1) as cluster:
        server = make(
            cluster.metadata_uri, certificate_file=own.certificate_file, key_file=own.key_file,
            ca_file=ca.ca_file, certificate_roles=("viewer-bot=viewer",),
        )  # fmt: skip
        await server.start()
        assert server.url.startswith("https://")
        statuses = []
        for client in (other, stranger, None):
            context = ssl.create_default_context(cafile=ca.ca_file)
            if client is not None:
                context.load_cert_chain(client.certificate_file, client.key_file)
            async with httpx.AsyncClient(verify=context) as http:
                statuses.append((await http.get(f"{server.url}/api/v2/cluster")).status_code)
                if client is other:
                    refused = await http.delete(f"{server.url}/api/v2/ledgers/1")
                    assert refused.json()["code"] == "role"
        assert statuses == [200, 401, 401]
        await server.stop()


async def test_a_connection_that_asks_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(server_module, "_HEAD_S", 0.2)
    server = make()
    await server.start()
    port = int(server.url.rpartition(":")[2])
    for sent in (b"", b"GET / HTTP/1.1\r\nHost:"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(10):
            assert b"200" not in await reader.read()
        writer.close()
    await server.stop()


async def test_a_head_that_does_not_end_closes_the_connection_after_other_requests(monkeypatch):
    monkeypatch.setattr(server_module, "_HEAD_S", 0.2)
    server = make()
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.url.rpartition(":")[2])
    async with asyncio.timeout(8):
        for _ in range(2):
            writer.write(b"GET /heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await reader.readuntil(b"OK\n")
        writer.write(b"GET / HTTP/1.1\r\nHost:")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await server.stop()


async def test_a_connection_over_the_limit_is_closed_before_it_asks_where_all_are_at_work(
    monkeypatch,
):
    asked, goes_on = [], asyncio.Event()

    async def slow(_scope, _receive, send):
        asked.append(True)
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"OK\n"})

    monkeypatch.setattr(server_module, "BoundedAnswers", lambda *_: slow)
    server = make(max_connections=2)
    await server.start()
    port = int(server.url.rpartition(":")[2])
    held = []
    async with asyncio.timeout(8):
        for _ in range(2):
            held.append(await asyncio.open_connection("127.0.0.1", port))
            held[-1][1].write(b"GET /heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await until(lambda: len(asked) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        goes_on.set()
        for each, _ in held:
            await each.readuntil(b"OK\n")
    for each in (writer, *[each for _, each in held]):
        each.close()
    await server.stop()


#: What a stranger sends who only wants to stay.
_STAYS = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost:",
    "a request": b"GET /heartbeat HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a form that never ends": b"POST /ui/login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nto",
}


@pytest.mark.parametrize("is_tls", [False, True], ids=["clear", "TLS"])
@pytest.mark.parametrize("sent", _STAYS)
async def test_strangers_who_only_stay_keep_nobody_out(tmp_path, sent, is_tls):
    ca = Authority(tmp_path)
    own = ca.issue("server", ips=["127.0.0.1"])
    files = {"certificate_file": own.certificate_file, "key_file": own.key_file} if is_tls else {}
    server = make(max_connections=5, **files)
    await server.start()
    port = int(server.url.rpartition(":")[2])
    trust = ssl.create_default_context(cafile=ca.ca_file)
    strangers = []
    async with asyncio.timeout(30):
        for _ in range(12):
            strangers.append(
                await asyncio.open_connection("127.0.0.1", port, ssl=trust if is_tls else None)
            )
            strangers[-1][1].write(_STAYS[sent])
        async with httpx.AsyncClient(verify=trust) as http:
            for _ in range(3):
                assert (await http.get(f"{server.url}/heartbeat")).text == "OK\n"
    for _, writer in strangers:
        writer.transport.abort()
    await server.stop()


async def test_a_handshake_that_does_not_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_HEAD_S", 0.2)
    own = Authority(tmp_path).issue("server", ips=["127.0.0.1"])
    server = make(certificate_file=own.certificate_file, key_file=own.key_file)
    await server.start()
    async with asyncio.timeout(8):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.url.rpartition(":")[2])
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await server.stop()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_handshakes_count_and_the_oldest_goes_for_who_comes(tmp_path, loop):
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(shake_hands(tmp_path))


async def shake_hands(tmp_path):
    ca = Authority(tmp_path)
    own = ca.issue("server", ips=["127.0.0.1"])
    server = make(
        max_connections=3, certificate_file=own.certificate_file, key_file=own.key_file
    )  # fmt: skip
    await server.start()
    port = int(server.url.rpartition(":")[2])
    trust = ssl.create_default_context(cafile=ca.ca_file)
    async with asyncio.timeout(8), httpx.AsyncClient(verify=trust) as http:
        assert (await http.get(f"{server.url}/heartbeat")).text == "OK\n"
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        # One connection is at work, so two of those that never shake hands have a place.
        for reader, _ in silent[:4]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        # Another client needs one place, and whoever is at work keeps its own.
        async with httpx.AsyncClient(verify=trust) as other:
            assert (await other.get(f"{server.url}/heartbeat")).text == "OK\n"
            assert (await http.get(f"{server.url}/heartbeat")).text == "OK\n"
        with contextlib.suppress(ConnectionResetError):
            assert await silent[4][0].read() == b""
    for _, writer in silent:
        writer.close()
    await server.stop()


async def test_a_private_key_that_everybody_may_read_is_refused(tmp_path):
    own = Authority(tmp_path).issue("server", ips=["127.0.0.1"])
    os.chmod(own.key_file, 0o644)
    with pytest.raises(ConfigError, match=r"admin\.key_file .* everybody may read it"):
        await make(certificate_file=own.certificate_file, key_file=own.key_file).start()


async def test_large_answers_beyond_the_budget_are_refused_and_pieces_wait_for_their_reader():
    taken, goes_on, body = [], asyncio.Event(), b"x" * 1_000_000

    async def answer(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def slow(message):
        taken.append(message)
        if len(taken) > 2:
            await goes_on.wait()

    busy = problem_response(ApiError(503, "busy", "too many"))
    bounded, other = BoundedAnswers(answer, busy, 1_500_000), []

    async def quick(message):
        other.append(message)

    first = asyncio.create_task(bounded({"type": "http"}, None, slow))
    while len(taken) < 3:
        await asyncio.sleep(0)
    await bounded({"type": "http"}, None, quick)
    assert [each.get("status") for each in other] == [503, None]
    assert b'"busy"' in other[1]["body"]
    goes_on.set()
    await first
    assert b"".join(each["body"] for each in taken[1:]) == body
    assert [each["more_body"] for each in taken[1:]][-2:] == [True, False]
    other.clear()
    await bounded({"type": "http"}, None, quick)
    assert b"".join(each["body"] for each in other[1:]) == body


async def test_the_head_of_a_request_is_bounded():
    server = make()
    await server.start()
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: " + b"y" * 100_000)
    assert b" 400 " in await reader.readline()
    writer.close()
    await server.stop()


def test_the_command_serves_with_a_token_that_the_command_made(tmp_path):
    with LocalCluster(bookies=3) as cluster:
        quorumbook = CommandLine(cluster.metadata_uri, str(tmp_path))
        file = ("--file", "tokens.json")
        made = json.loads(
            quorumbook("token", "add", "me", "--role", "operator", *file, "-o", "json").text
        )
        listed = quorumbook("token", "ls", *file).text
        assert "me" in listed
        assert made["token"] not in listed
        run = ("admin", "run", "--port", 0, "--set", f"admin.token_file={tmp_path}/tokens.json")
        with quorumbook.running(*run, "-o", "jsonl") as process:
            url = json.loads(process.stdout.readline())["url"]
            bearer = {"Authorization": f"Bearer {made['token']}"}
            streams = f"{url}/api/v2/streams"
            assert httpx.get(streams).status_code == 401
            assert httpx.post(streams, json={"name": "s"}, headers=bearer).status_code == 201
            httpx.post(f"{streams}/s/records", content=b"hello", headers=bearer)
            with httpx.stream(
                "GET", f"{streams}/s/tail?from=earliest", headers=bearer, timeout=30
            ) as tail:
                lines = tail.iter_lines()
                assert next(lines) == "id: 0"
                assert json.loads(next(lines).removeprefix("data: "))["text"] == "hello"
            quorumbook("token", "revoke", "me", *file)
            assert httpx.get(streams, headers=bearer).status_code == 401
            process.terminate()
            assert process.wait(30) == 0
            assert made["token"].encode() not in process.stderr.read()
        quorumbook("token", "revoke", "me", *file, code=3)
