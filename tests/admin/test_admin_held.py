"""What a server holds between requests: members of groups, namespaces, a drain that is undone."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import parse_qs

import pytest

from admin.conftest import problem
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.endpoints import bookies as bookie_endpoints
from quorumbook.admin.facts import bookie_http
from quorumbook.admin.http import streams_held
from quorumbook.errors import ConnectFailedError

S = "/api/v2/streams"
G = f"{S}/jobs/groups/workers"


async def _taken(http, member: str, **more) -> list[dict]:
    answer = await http.post(f"{G}/records", json={"member": member, "wait_s": 5, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["records"]


async def _jobs(http, count: int) -> None:
    one = dict.fromkeys(("ensemble_size", "write_quorum_size", "ack_quorum_size"), "1")
    made = await http.post(S, json={"name": "jobs", "partitions": 1, "policy": one})
    assert made.is_success, made.text
    if count:
        rows = [{"text": str(n)} for n in range(count)]
        answer = await http.post(f"{S}/jobs/records", json={"records": rows})
        assert answer.is_success, answer.text


async def test_nobody_acknowledges_for_a_member_of_another_token(guarded):
    api, secrets = guarded
    file = TokenFile(api.service.options.token_file)
    rival, _ = file.add("rival", Role.OPERATOR, lifetime_s=None)
    async with api.with_token(secrets["operator"]) as mine, api.with_token(rival) as other:
        await _jobs(mine, 3)
        ids = [row["id"] for row in await _taken(mine, "a")]
        assert ids
        answer = await other.post(f"{G}/ack", json={"member": "a", "ids": ids})
        problem(answer, 409, "not-in-hand")
        answer = await other.delete(f"{G}/members/a")
        problem(answer, 404, "no-such-member")
        acked = await mine.post(f"{G}/ack", json={"member": "a", "ids": ids})
        assert acked.json() == {"acknowledged": len(ids), "in_hand": 0}


async def test_a_member_that_waits_stays_longer_than_one_that_is_silent(api, monkeypatch):
    monkeypatch.setattr(streams_held, "MEMBER_IDLE_S", 0.2)
    await _jobs(api.http, 1)
    members = api.service.streams._members  # what is held open is nobody else's business
    while not (first := await _taken(api.http, "a")):
        pass
    # It is silent for longer than a member may be, but it waits: what it had stays its own.
    waiting = asyncio.create_task(_taken(api.http, "a", wait_s=1.5))
    await waiting
    (member,) = members.values()
    assert len(member.in_hand) == 1
    await api.http.post(f"{G}/ack", json={"member": "a", "ids": [first[0]["id"]]})
    while members:
        await asyncio.sleep(0.02)
    # Acknowledging makes nobody a member.
    answer = await api.http.post(f"{G}/ack", json={"member": "a", "ids": ["0:0"]})
    assert "silent" in problem(answer, 409, "not-in-hand")
    assert not members


async def test_a_namespace_has_one_writer_for_a_stream_however_it_is_spelt(api):
    await api.http.post(S, json={"name": "s"})
    for spelling in ("/streams", "/streams/", "", "/streams"):
        answer = await api.http.post(
            f"{S}/s/records", params={"namespace": spelling}, json={"records": [{"text": "x"}]}
        )
        assert answer.status_code == 200, answer.text
    held = api.service.streams
    # What is held open is nobody else's business.
    assert (list(held._writers), list(held._namespaces)) == ([("/streams", "s")], ["/streams"])
    for bad in ("streams", "//streams", "/a#b"):
        answer = await api.http.get(f"{S}/s", params={"namespace": bad})
        problem(answer, 400, "config")


async def test_the_namespace_asked_for_least_recently_makes_place_and_is_closed(api, monkeypatch):
    monkeypatch.setattr(streams_held, "_NAMESPACES_MAX", 2)
    held = api.service.streams
    closed = []
    close = streams_held.Namespace.close

    async def note(namespace) -> None:
        closed.append(namespace.path)
        await close(namespace)

    monkeypatch.setattr(streams_held.Namespace, "close", note)
    for path in ("/a", "/b", "/a", "/c"):
        await held.namespace(path, bind=True)
    # What is held open is nobody else's business.
    assert (closed, sorted(held._namespaces)) == (["/b"], ["/a", "/c"])


@pytest.mark.parametrize("end", ["cancelled", "answer lost"])
async def test_a_drain_that_ends_while_the_bookie_is_told_leaves_it_writable(api, monkeypatch, end):
    told: list[bool] = []
    goes_on = threading.Event()
    is_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(method, address, path, **_options):
        is_on = "read_only=true" in path
        if is_on:
            loop.call_soon_threadsafe(is_asked.set)
            assert goes_on.wait(10)
        told.append(is_on)
        if is_on and end == "answer lost":
            raise ConnectFailedError("no answer")
        return {}

    async def somewhere(*_):
        return "http://127.0.0.1:1"

    monkeypatch.setattr(bookie_endpoints, "ask_bookie", ask)
    monkeypatch.setattr(bookie_endpoints, "http_of", somewhere)
    monkeypatch.setattr(bookie_endpoints, "is_held_read_only", lambda *_, **__: False)
    bookie = api.cluster.bookie_ids[0]
    job = (await api.http.post(f"/api/v2/bookies/{bookie}/drain")).json()["id"]
    await is_asked.wait()
    cancelling = asyncio.create_task(api.http.delete(f"/api/v2/jobs/{job}"))
    if end == "cancelled":
        await asyncio.sleep(0.05)
    else:
        cancelling.cancel()
    goes_on.set()
    await asyncio.gather(cancelling, return_exceptions=True)
    while (row := (await api.http.get(f"/api/v2/jobs/{job}")).json())["state"] == "running":
        await asyncio.sleep(0.02)
    assert row["state"] == ("cancelled" if end == "cancelled" else "failed")
    assert told == [True, False]


async def test_a_drain_that_fails_leaves_alone_what_an_operator_said_meanwhile(api, monkeypatch):
    kept: list[str] = []

    def ask(_method, _address, path, **_options):
        asked = {name: values[0] for name, values in parse_qs(path.partition("?")[2]).items()}
        if kept[:1] == [asked.get("if_reason", *kept)] or not kept:
            kept[:] = [asked["reason"]] if asked["read_only"] == "true" else []
        return {}

    async def somewhere(*_):
        return "http://127.0.0.1:1"

    async def fails(*_):
        (reason,) = kept
        assert api.service.name in reason, "the job of another server has another reason"
        kept[:] = ["bad disk"]
        raise ConnectFailedError("no answer")

    monkeypatch.setattr(bookie_endpoints, "ask_bookie", ask)
    monkeypatch.setattr(bookie_endpoints, "http_of", somewhere)
    monkeypatch.setattr(bookie_endpoints, "is_held_read_only", lambda *_, **__: False)
    monkeypatch.setattr(bookie_endpoints.Mover, "run", fails)
    bookie = api.cluster.bookie_ids[0]
    job = (await api.http.post(f"/api/v2/bookies/{bookie}/drain")).json()["id"]
    while (row := (await api.http.get(f"/api/v2/jobs/{job}")).json())["state"] == "running":
        await asyncio.sleep(0.02)
    assert row["state"] == "failed", row
    assert kept == ["bad disk"]


async def test_a_drain_leaves_alone_whom_an_operator_held_read_only(api, monkeypatch):
    """Its registration may still say "writable": that follows later."""
    told: list[str] = []

    async def somewhere(*_):
        return "http://127.0.0.1:1"

    def look(_address, _path, **_options):
        return {"read_only": True, "reasons": ["operator: new disks"], "since_ms": 1}

    monkeypatch.setattr(bookie_http, "look", look)
    monkeypatch.setattr(
        bookie_endpoints, "ask_bookie", lambda _method, _address, path, **_: told.append(path)
    )
    monkeypatch.setattr(bookie_endpoints, "http_of", somewhere)
    bookie = api.cluster.bookie_ids[0]
    job = (await api.http.post(f"/api/v2/bookies/{bookie}/drain")).json()["id"]
    while (row := (await api.http.get(f"/api/v2/jobs/{job}")).json())["state"] == "running":
        await asyncio.sleep(0.02)
    assert row["state"] in ("done", "failed"), row
    assert told == []
