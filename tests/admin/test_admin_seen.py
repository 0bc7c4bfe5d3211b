"""What a role sees of the metadata, and that nobody is shown a secret or where it is kept."""

from __future__ import annotations

import pytest

from admin.conftest import problem
from quorumbook.client.context import client_store
from quorumbook.metadata.nodes import create_with_parents

CANARY = b"c4nary"
SCRAM = (
    b'{"version":1,"config":{"SCRAM-SHA-256":"salt=c4nary,stored_key=c4nary,server_key=c4nary"}}'
)


@pytest.fixture
async def shared(guarded):
    """A store that others use as well: a server, its tokens."""
    api, secrets = guarded
    store = client_store(await api.service.client())
    for path, data in {
        "/config/users/alice": SCRAM,
        "/other/database": b"url=pg://u:c4nary@h/d\npassword = c4nary, c4nary\nsize=7",
        "/ledgers/notes": b'{"password": "c4nary", "size": 7}',
    }.items():
        await create_with_parents(store, path, data)
    async with api.with_token(secrets["admin"]) as admin:
        await admin.post("/api/v2/streams", json={"name": "s"})
    return api, secrets


async def _node(http, path: str):
    return await http.get("/api/v2/metadata", params={"path": path})


@pytest.mark.parametrize("role", ["viewer", "operator"])
async def test_who_does_not_administer_sees_the_clusters_nodes_and_the_way_there(shared, role):
    api, secrets = shared
    async with api.with_token(secrets[role]) as http:
        for path in ("/ledgers", "/ledgers/cookies", "/streams", "/streams/s"):
            assert (await _node(http, path)).json()["path"] == path
        assert (await http.get("/api/v2/metadata")).json()["path"] == "/ledgers"
        top = (await _node(http, "/")).json()
        assert (top["children"], top["value"]) == (["ledgers", "streams"], None)
        for path in ("/config", "/config/users", "/config/users/alice", "/other/database",
                     "/ledgersx", "/not-there", "/streamsx"):  # fmt: skip
            assert "admin" in problem(await _node(http, path), 403, "role")
        problem(await _node(http, "/ledgers/not-there"), 404, "no-such-node")


async def test_an_admin_sees_all_nodes_without_the_secrets_in_them(shared):
    api, secrets = shared
    async with api.with_token(secrets["admin"]) as http:
        assert {"config", "other"} <= set((await _node(http, "/")).json()["children"])
        for path, left in (("/config/users/alice", "version"), ("/other/database", "size=7"),
                           ("/ledgers/notes", "size")):  # fmt: skip
            answer = await _node(http, path)
            assert CANARY.decode() not in answer.text
            assert left in answer.json()["value"]


async def test_where_tokens_are_kept_is_said_in_the_log_alone(guarded, caplog, tmp_path):
    api, secrets = guarded
    path = api.service.options.token_file
    with open(path, "w", encoding="utf-8") as file:
        file.write("broken")
    async with api.with_token(secrets["admin"]) as http:
        answer = await http.get("/api/v2/tokens")
    assert "its log" in problem(answer, 503, "server-misconfigured")
    assert str(tmp_path) not in answer.text
    assert path in caplog.text
