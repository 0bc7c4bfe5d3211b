"""What the HTTP API does, endpoint by endpoint, on a cluster that lives."""

from __future__ import annotations

import asyncio
import json

import pytest

from admin.conftest import problem
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.streams import PartitionedStream
from quorumbook.streams.stream_context import namespace_store, stream_context

S = "/api/v2/streams"


async def test_the_cluster_its_bookies_and_ledgers_are_seen(api):
    client = await api.service.client()
    async with await client.create_ledger(custom_metadata={"team": b"blue"}) as writer:
        for n in range(5):
            await writer.append(b"entry %d" % n)
    found = (await api.http.get("/api/v2/cluster", params={"fresh": "true"})).json()
    assert (found["status"], found["ledgers"], found["writable_bookies"]) == ("warning", 1, 3)
    bookies = (await api.http.get("/api/v2/bookies")).json()["bookies"]
    assert {row["state"] for row in bookies} == {"writable"}
    ledger = (await api.http.get(f"/api/v2/ledgers/{writer.id}")).json()
    assert (ledger["state"], ledger["entries"]) == ("closed", 5)
    assert ledger["fragments"][0]["replicas_reachable"] == 3
    for params, count in (({"custom": "team=blue"}, 1), ({"custom": "team=red"}, 0),
                          ({"text": "BLU"}, 1), ({"state": "open"}, 0), ({"min_bytes": 36}, 0),
                          ({"older_than_s": 3600}, 0), ({"newer_than_s": 3600}, 1),
                          ({"bookie": "nobody"}, 0)):  # fmt: skip
        page = (await api.http.get("/api/v2/ledgers", params=params)).json()
        assert len(page["ledgers"]) == count, params


async def test_a_bookie_that_died_is_down_and_recovered_by_a_job(api):
    client = await api.service.client()
    options = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
    async with await client.create_ledger(**options) as writer:
        await writer.append(b"x")
    lost = writer.metadata.ensemble[0]
    problem(await api.http.post(f"/api/v2/bookies/{lost}/recover", json={}), 409, "bookie-up")
    await api.cluster.stop(lost)
    found = (await api.http.get("/api/v2/cluster", params={"fresh": "true"})).json()
    assert found["down_bookies"] == 1
    problem(await api.http.post(f"/api/v2/bookies/{lost}/drain"), 409, "bookie-down")
    answer = await api.http.post(f"/api/v2/bookies/{lost}/recover", json={"delete_cookie": True})
    assert answer.status_code == 202
    number = answer.json()["id"]
    while (job := (await api.http.get(f"/api/v2/jobs/{number}")).json())["state"] == "running":
        await asyncio.sleep(0.05)
    assert job["state"] == "done", job
    assert (job["result"]["ledgers"], job["result"]["left"], job["result"]["cookie_deleted"]) == (
        1, 0, True,
    )  # fmt: skip
    ledger = (await api.http.get(f"/api/v2/ledgers/{writer.id}")).json()
    assert lost not in ledger["fragments"][0]["ensemble"]
    found = (await api.http.get("/api/v2/cluster", params={"fresh": "true"})).json()
    assert found["down_bookies"] == 0


async def test_a_drain_that_has_no_room_changes_nothing(api):
    client = await api.service.client()
    async with await client.create_ledger() as writer:
        await writer.append(b"x")
    bookie = writer.metadata.ensemble[0]
    answer = await api.http.post(f"/api/v2/bookies/{bookie}/drain")
    assert "Nothing was changed" in problem(answer, 409, "no-room")
    assert (await api.http.get("/api/v2/jobs")).json() == {"jobs": []}


async def test_entries_come_page_by_page_and_a_ledger_can_be_closed_and_deleted(api):
    client = await api.service.client()
    writer = await client.create_ledger()
    for n in range(7):
        await writer.append(b"\xff\x00" if n == 3 else b"entry %d" % n)
    await writer.append(b"told")
    url = f"/api/v2/ledgers/{writer.id}"
    assert (await api.http.post(f"{url}/recover")).json()["entries"] == 8
    seen, first = [], 0
    while first is not None:
        page = (await api.http.get(f"{url}/entries", params={"first": first, "limit": 3})).json()
        seen += page["entries"]
        first = page["next_first"]
    assert [row["entry_id"] for row in seen] == list(range(8))
    assert (seen[0]["text"], seen[3]["base64"]) == ("entry 0", "/wA=")
    answer = await api.http.get(f"{url}/entries", params={"first": 5, "last": 2})
    problem(answer, 400, "bad-parameter")
    assert (await api.http.delete(url)).json()["state"] == "deleted"
    problem(await api.http.get(url), 404, "no-such-ledger")


async def test_records_are_appended_once_however_often_they_are_sent(api):
    await api.http.post(S, json={"name": "orders/eu"})
    url = f"{S}/orders/eu/records"
    batch = {"records": [{"text": "a", "key": "k"}, {"json": {"n": 1}}, {"base64": "/w=="}]}
    sent = {"params": {"producer": "p", "sequence": 0}, "json": batch}
    first = (await api.http.post(url, **sent)).json()["appended"]
    again = (await api.http.post(url, **sent)).json()["appended"]
    assert [row["duplicate"] for row in first + again] == [False] * 3 + [True] * 3
    assert [r["sequence_id"] for r in first] == [r["sequence_id"] for r in again] == [0, 1, 2]
    # Some of them new, and beside it a producer that comes for the first time.
    sent["params"]["sequence"] = 2
    assert [r["duplicate"] for r in (await api.http.post(url, **sent)).json()["appended"]] == [
        True, False, False,
    ]  # fmt: skip
    answers = await asyncio.gather(*(
        api.http.post(url, params={"producer": f"q{n}", "sequence": 0}, content=b"%d" % n)
        for n in range(5) for _ in range(2)
    ))  # fmt: skip
    assert sum(row["duplicate"] for a in answers for row in a.json()["appended"]) == 5
    found = (await api.http.get(url)).json()
    assert [r.get("text") for r in found["records"][:2]] == ["a", '{"n":1}']
    assert found["records"][2]["base64"] == "/w=="
    assert len(found["records"]) == 10
    assert found["next"] == "seq:10"
    problem(await api.http.post(url, params={"sequence": 1}, content=b"x"), 400, "bad-parameter")
    answer = await api.http.post(url, params={"expect": 3}, content=b"x")
    assert answer.json()["code"] == "sequence-conflict"


async def test_a_long_poll_waits_and_a_tail_goes_on_after_the_last_event(api):
    await api.http.post(S, json={"name": "s"})
    url = f"{S}/s/records"
    poll = asyncio.create_task(api.http.get(url, params={"from": "latest", "wait_s": 30}))
    while not poll.done():
        await api.http.post(url, content=b"x")
        await asyncio.sleep(0.2)
    assert poll.result().json()["records"][0]["text"] == "x"
    await api.http.post(url, content=b"one at least")
    before = (await api.http.get(url)).json()["records"]
    events = await _events(api, 2, last_event_id=-1)
    assert [event["sequence_id"] for event in events] == [0, 1]
    await api.http.post(url, content=b"more")
    events = await _events(api, 1, last_event_id=len(before) - 1)
    assert events[0]["text"] == "more"


async def _events(api, count: int, last_event_id: int) -> list[dict]:
    """Follow a stream without httpx, whose transport hands nothing out before the end."""
    from quorumbook.admin.access.roles import ANYBODY
    from quorumbook.admin.http.endpoint import Ask

    endpoint = next(each for each in api.app.endpoints if each.path.endswith("/tail"))
    query = {"namespace": "/streams", "partition": None, "from": "earliest", "decode": None,
             "last_event_id": None if last_event_id < 0 else last_event_id}  # fmt: skip
    answer = await endpoint.handle(Ask(api.service, ANYBODY, {"name": "s"}, query, {}))
    found = []
    async for event in answer.events:
        if event:
            found.append(event["data"])
        if len(found) == count:
            break
    await answer.events.aclose()
    return found


async def test_a_group_consumes_acknowledges_and_gets_back_what_it_refused(api):
    await api.http.post(S, json={"name": "jobs", "partitions": 2})
    batch = {"records": [{"text": str(n), "key": str(n)} for n in range(10)]}
    rows = (await api.http.post(f"{S}/jobs/records", json=batch)).json()["appended"]
    assert {row["partition"] for row in rows} == {0, 1}
    group = f"{S}/jobs/groups/workers"
    taken: list[dict] = []
    while len(taken) < 10:
        ask = {"member": "a", "limit": 100, "wait_s": 5}
        taken += (await api.http.post(f"{group}/records", json=ask)).json()["records"]
    assert sorted(row["text"] for row in taken) == sorted(map(str, range(10)))
    ids = [row["id"] for row in taken]
    acked = await api.http.post(f"{group}/ack", json={"member": "a", "ids": ids[1:]})
    assert acked.json() == {"acknowledged": 9, "in_hand": 1}
    refused = await api.http.post(f"{group}/nack", json={"member": "a", "ids": ids[:1]})
    assert refused.json()["in_hand"] == 0
    again = (await api.http.post(f"{group}/records", json={"member": "a", "wait_s": 5})).json()
    assert [(r["id"], r["delivery_count"]) for r in again["records"]] == [(ids[0], 2)]
    answer = await api.http.post(f"{group}/ack", json={"member": "a", "ids": ids[1:2]})
    problem(answer, 409, "not-in-hand")
    # Not acknowledged, and the member goes: the next one gets it.
    assert (await api.http.delete(f"{group}/members/a")).json() == {"left": True}
    next_one: list[dict] = []
    while not next_one:
        ask = {"member": "b", "wait_s": 5}
        next_one = (await api.http.post(f"{group}/records", json=ask)).json()["records"]
    assert [row["id"] for row in next_one] == [ids[0]]
    found = (await api.http.get(f"{S}/jobs/groups")).json()["groups"]
    assert found[0]["group"] == "workers"
    problem(await api.http.delete(f"{group}/members/nobody"), 404, "no-such-member")


async def test_streams_are_listed_truncated_and_deleted(api):
    assert (await api.http.get(S)).json() == {"streams": [], "next_after": None}
    for name in ("a", "b/c", "d"):
        assert (await api.http.post(S, json={"name": name})).status_code == 201
    problem(await api.http.post(S, json={"name": "a"}), 409, "stream-exists")
    page = (await api.http.get(S, params={"limit": 2})).json()
    assert page == {"streams": ["a", "b/c"], "next_after": "b/c"}
    page = (await api.http.get(S, params={"after": "b/c"})).json()
    assert page == {"streams": ["d"], "next_after": None}
    changed = await api.http.put(f"{S}/b/c/policy", json={"policy": {"retain_time_s": "7d"}})
    assert changed.json()["policy"]["retain_time_s"] == 7 * 86400
    bad = await api.http.put(f"{S}/b/c/policy", json={"policy": {"retain_time_s": "soon"}})
    problem(bad, 400, "config")
    await api.http.post(f"{S}/b/c/records", json={"records": [{"text": "x"}] * 5})
    cut = await api.http.post(f"{S}/b/c/truncate", json={"before": "seq:3", "dry_run": True})
    assert cut.json()["dry_run"] is True
    moved = await api.http.put(f"{S}/b/c/cursors/me", json={"position": "seq:2"})
    assert moved.json()["records"] == 3
    assert (await api.http.get(f"{S}/b/c/cursors")).json()["cursors"][0]["cursor"] == "me"
    assert (await api.http.delete(f"{S}/b/c/cursors/me")).json()["state"] == "deleted"
    await api.service.streams.close()  # its writer has the stream
    assert (await api.http.delete(f"{S}/b/c")).json()["state"] == "deleted"
    assert (await api.http.get(f"{S}/b/c")).json()["code"] == "stream-not-found"


async def test_recovery_is_switched_and_the_peers_paths_agree(api):
    audit = "/api/v2/recovery/audit"
    problem(await api.http.post(audit, json={}), 409, "no-auditor")
    changed = await api.http.put(
        "/api/v2/recovery", json={"enabled": False, "lost_bookie_delay_s": 7}
    )
    assert (changed.json()["enabled"], changed.json()["lost_bookie_delay_s"]) == (False, 7)
    v1 = "/api/v1/autorecovery"
    assert (await api.http.get(f"{v1}/status")).json() == {"enabled": False}
    assert (await api.http.put(f"{v1}/status", params={"enabled": "true"})).json()["enabled"]
    delay = await api.http.get(f"{v1}/lost_bookie_recovery_delay")
    assert delay.text == "lostBookieRecoveryDelay value: 7"
    assert (await api.http.post(audit, json={})).status_code == 200
    assert (await api.http.put(f"{v1}/trigger_audit")).status_code == 200
    assert (await api.http.get("/api/v2/recovery")).json()["lost_bookie_delay_s"] == 7
    problem(await api.http.get(f"{v1}/who_is_auditor"), 404, "no-auditor")
    info = (await api.http.get("/api/v1/bookie/cluster_info")).json()
    assert (info["writableBookiesCount"], info["totalBookiesCount"]) == (3, 3)
    listed = await api.http.get("/api/v1/bookie/list_bookies", params={"print_hostnames": "true"})
    assert set(listed.json().values()) == {"127.0.0.1"}


async def test_tokens_are_made_confined_and_revoked(guarded):
    api, secrets = guarded
    async with api.with_token(secrets["admin"]) as admin:
        wanted = {"name": "ci", "role": "operator", "days": 1, "namespaces": ["/orders"]}
        made = (await admin.post("/api/v2/tokens", json=wanted)).json()
        problem(await admin.post("/api/v2/tokens", json=wanted), 400, "config")
        assert made["token"] not in (await admin.get("/api/v2/tokens")).text
        async with api.with_token(made["token"]) as ci:
            assert (await ci.get(S, params={"namespace": "/orders"})).status_code == 200
            problem(await ci.get(S), 403, "namespace")
            problem(await ci.get("/api/v2/cluster"), 403, "namespace")
            problem(await ci.get("/api/v2/tokens"), 403, "role")
            assert (await admin.delete("/api/v2/tokens/ci")).json()["revoked"] is True
            problem(await ci.get(S, params={"namespace": "/orders"}), 401, "not-authenticated")
        problem(await admin.delete("/api/v2/tokens/ci"), 404, "no-such-token")


def test_a_token_expires_and_its_file_must_be_fit(tmp_path):
    path = tmp_path / "tokens.json"
    file = TokenFile(str(path))
    secret, _ = file.add("a", Role.VIEWER, lifetime_s=-1)
    assert file.who(secret) is None
    kept, _ = file.add("b", Role.VIEWER, lifetime_s=None)
    assert file.who(kept).role is Role.VIEWER
    assert kept not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    from quorumbook.errors import ConfigError

    for name in ("b", "", "a b", "x" * 65, "../x"):
        with pytest.raises(ConfigError):
            file.add(name, Role.VIEWER, lifetime_s=None)
    path.write_text('{"tokens": [{"name": "canary"}]}')
    with pytest.raises(ConfigError) as failed:
        TokenFile(str(path)).tokens()
    assert "canary" not in str(failed.value)
    path.write_text('{"tokens": []}')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody may read it"):
        TokenFile(str(path)).tokens()


async def test_the_document_names_every_endpoint_of_ours(api):
    document = (await api.http.get("/api/v2/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    named = {(m.upper(), p) for p, verbs in document["paths"].items() for m in verbs}
    ours = {
        (each.method, each.path.replace(":path", ""))
        for each in api.app.endpoints
        if not each.is_lenient and not each.path.endswith("openapi.json")
    }
    assert named == ours
    operations = [o["operationId"] for verbs in document["paths"].values() for o in verbs.values()]
    assert len(operations) == len(set(operations))
    assert json.dumps(document)


async def test_damaged_nodes_of_a_stream_are_named_and_cost_themselves_alone(api):
    await api.http.post(S, json={"name": "jobs", "partitions": 2})
    for group in "a", "b", "c":
        await api.http.put(f"{S}/jobs/cursors/{group}", params={"partition": 0},
                           json={"position": "earliest"})  # fmt: skip
    namespace = await api.service.streams.namespace("/streams")
    stream = await PartitionedStream.open(namespace, "jobs")
    for group in "a", "b", "c":
        async with stream.consumer(group):
            pass
    await (await stream.partitions[0].cursor("c")).hold_retention(holds=True)
    store = namespace_store(namespace)
    group = f"{stream.node}/groups/b"
    cursor = f"{stream_context(stream.partitions[0]).nodes.paths.subscriber('c')}/cursor"
    for node in group, cursor:
        await store.set(node, b"\xff")
    found = (await api.http.get(f"{S}/jobs/groups")).json()["groups"]
    assert [row["group"] for row in found] == ["a", "b", "c"]
    assert [row["damage"] is None for row in found] == [True, False, True]
    assert group in found[1]["damage"]
    assert cursor in found[2]["partitions"][0]["damage"]
    found = (await api.http.get(f"{S}/jobs/cursors")).json()["cursors"]
    assert [(row["cursor"], row["damage"] is None) for row in found if row["partition"] == 0] == [
        ("a", True), ("b", True), ("c", False),
    ]  # fmt: skip
    for name in "b", "c":
        assert (await api.http.delete(f"{S}/jobs/groups/{name}")).status_code == 200
    assert [row["group"] for row in (await api.http.get(f"{S}/jobs/groups")).json()["groups"]] == [
        "a"
    ]
