"""The audit log as a stream of the cluster: what is in it, and when the cluster takes no record."""

from __future__ import annotations

import asyncio
import json

import pytest

import quorumbook
from admin.conftest import client_of
from quorumbook.admin.access.gate import Gate
from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.http import audit_stream, streams_held
from quorumbook.admin.http.app import App
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.server import all_endpoints
from quorumbook.errors import BookieUnavailableError
from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

USER = Who("somebody", Role.OPERATOR, "token")


@pytest.fixture
async def audited(tmp_path):
    path = str(tmp_path / "tokens.json")
    secrets = {role.word: TokenFile(path).add(role.word, role, lifetime_s=None)[0] for role in Role}
    async with LocalCluster(bookies=3) as cluster:
        uri = cluster.metadata_uri
        options = ServiceOptions(
            uri, connect=lambda: quorumbook.connect(uri), token_file=path, audit_stream="audit"
        )
        service = Service(options)
        app = App(service, Gate(service.tokens), all_endpoints())
        try:
            yield service, app, secrets
        finally:
            await service.close()


def as_(audited, role):
    _, app, secrets = audited
    return client_of(app, {"Authorization": f"Bearer {secrets[role]}"})


async def records(audited, count):
    async with as_(audited, "viewer") as http:
        while True:
            answer = await http.get("/api/v2/streams/audit/records", params={"wait_s": 2})
            found = answer.json().get("records", [])
            if len(found) >= count:
                return [json.loads(each["text"]) for each in found]
            await asyncio.sleep(0.05)


async def test_each_change_of_somebody_known_is_a_record(audited):
    service, app, secrets = audited
    async with as_(audited, "operator") as http:
        await http.post("/api/v2/streams", json={"name": "s"})
        await http.delete("/api/v2/streams/s")
        await http.get("/api/v2/cluster")
    async with client_of(app, {"Authorization": "Bearer qb_stranger"}) as http:
        await http.post("/api/v2/streams", json={"name": "strange"})
    async with as_(audited, "admin") as http:
        await http.delete("/api/v2/streams/s")
    found = await records(audited, 3)
    assert [(each["who"], each["what"], each["outcome"]) for each in found] == [
        ("operator", "POST /api/v2/streams", "done"),
        ("operator", "DELETE /api/v2/streams/s", "role"),
        ("admin", "DELETE /api/v2/streams/s", "done"),
    ]
    assert {each["server"] for each in found} == {service.name}
    assert not any(secret in str(found) for secret in secrets.values())


async def test_what_the_cluster_does_not_take_is_written_later(audited, monkeypatch, caplog):
    service, _, _ = audited
    monkeypatch.setattr(audit_stream, "_AGAIN_S", 0.01)
    # A cluster that takes no records is hard to have while it takes the change itself.
    write, tries = service._audit_stream._write, []

    async def fail_twice(changes):
        tries.append(len(changes))
        if len(tries) <= 2:
            raise BookieUnavailableError("nobody is there")
        await write(changes)

    monkeypatch.setattr(service._audit_stream, "_write", fail_twice)  # likewise
    async with as_(audited, "operator") as http:
        assert (await http.post("/api/v2/streams", json={"name": "s"})).status_code == 201
    (found,) = await records(audited, 1)
    assert (found["what"], len(tries)) == ("POST /api/v2/streams", 3)
    assert "not in the stream audit yet: nobody is there" in caplog.text


@pytest.mark.parametrize("has_rival", [False, True], ids=["alone", "beside another server"])
@pytest.mark.parametrize("fate", ["never sent", "answer lost"])
async def test_each_change_is_one_record_whatever_became_of_an_answer(
    audited, monkeypatch, fate, has_rival
):
    """What is tried again goes with changes that came meanwhile, and another writer's between."""
    service, _, _ = audited
    monkeypatch.setattr(streams_held, "_WRITER_IDLE_S", 0.01)
    monkeypatch.setattr(audit_stream, "_AGAIN_S", 0.01)
    write, tries = service._audit_stream._write, []  # as above

    async def lose(changes):
        tries.append(len(changes))
        if len(tries) > 2:
            await write(changes)
            return
        if fate == "answer lost":
            await write(changes)
        for number in range(2):
            audit.add(USER, "here", f"{len(tries)}.{number}", "done")
        if has_rival:
            uri = f"{service.options.metadata_uri}#/streams"
            async with Namespace.open(uri, bind=True) as namespace:
                await namespace.create_stream("audit", exist_ok=True)
                async with namespace.stream("audit").writer(wait_for_lock_s=30) as rival:
                    await rival.append(b'{"what": "rival"}')
        raise BookieUnavailableError("nobody answers")

    monkeypatch.setattr(service._audit_stream, "_write", lose)  # likewise
    audit = service.audit
    audit.add(USER, "here", "first", "done")
    found = [each["what"] for each in await records(audited, 5 + 2 * has_rival)]
    ours = [what for what in found if what != "rival"]
    assert ours == ["first", "1.0", "1.1", "2.0", "2.1"]
    assert len(tries) >= 3


async def test_more_than_may_wait_is_counted_and_the_end_waits_a_little(
    audited, monkeypatch, caplog
):
    service, _, _ = audited
    monkeypatch.setattr(audit_stream, "_WAITING_MAX", 2)
    monkeypatch.setattr(audit_stream, "_END_S", 0.05)

    async def fail(_changes):
        raise BookieUnavailableError("nobody is there")

    monkeypatch.setattr(service._audit_stream, "_write", fail)  # likewise
    async with as_(audited, "operator") as http:
        for name in "abc":
            await http.post("/api/v2/streams", json={"name": name})
    await service.close()
    assert "3 changes are in no record of the stream audit" in caplog.text
