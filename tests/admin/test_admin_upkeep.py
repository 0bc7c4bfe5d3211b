"""What the API does since it does what the command line does: racks, schemas, ends, ledgers."""

from __future__ import annotations

import json

from admin.conftest import problem

S = "/api/v2/streams"
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


async def test_racks_are_set_listed_and_removed(api):
    bookie = api.cluster.bookie_ids[0]
    answer = await api.http.put(f"/api/v2/racks/{bookie}", json={"location": "/west/r1"})
    assert answer.json() == {"row": bookie, "location": "/west/r1"}
    await api.http.put("/api/v2/racks/10.0.0.7", json={"location": "/west/r2"})
    rows = (await api.http.get("/api/v2/racks")).json()["racks"]
    assert {"bookie_id": bookie, "location": "/west/r1", "row": bookie} in rows
    assert {"location": "/west/r2", "row": "10.0.0.7"} in rows
    found = (await api.http.get("/api/v2/bookies")).json()["bookies"]
    assert next(each for each in found if each["bookie_id"] == bookie)["rack"] == "/west/r1"
    bad = await api.http.put("/api/v2/racks/x", json={"location": "no slash"})
    problem(bad, 400, "config")
    assert (await api.http.delete(f"/api/v2/racks/{bookie}")).status_code == 200
    problem(await api.http.delete(f"/api/v2/racks/{bookie}"), 404, "no-such-row")


async def test_a_ledger_is_written_at_once_or_waits_for_its_writer(api):
    made = (
        await api.http.post(
            "/api/v2/ledgers",
            json={"entries": [{"text": "one"}, {"json": {"n": 2}}, {"base64": "AP8="}],
                  "custom": {"team": "blue"}},
            headers={"Quorumbook-Ledger-Password": "secret-of-mine"},
        )
    ).json()  # fmt: skip
    assert (made["state"], made["entries"]) == ("closed", 3)
    at = f"/api/v2/ledgers/{made['ledger_id']}"
    assert (await api.http.get(at)).json()["custom_metadata"] == {"team": "blue"}
    problem(await api.http.get(f"{at}/entries"), 403, "unauthorized")
    headers = {"Quorumbook-Ledger-Password": "secret-of-mine"}
    rows = (await api.http.get(f"{at}/entries", headers=headers)).json()["entries"]
    assert [row.get("text", row.get("base64")) for row in rows] == ["one", '{"n":2}', "AP8="]
    problem(await api.http.post(f"{at}/entries", json={"entries": [{"text": "x"}]},
                                headers=headers), 409, "ledger-closed")  # fmt: skip

    waits = (await api.http.post("/api/v2/ledgers", json={"ledger_id": 70})).json()
    assert waits == {"ledger_id": 70, "state": "open", "entries": 0, "bytes": 0}
    problem(await api.http.post("/api/v2/ledgers", json={"ledger_id": 70}), 409, "ledger-exists")
    assert (await api.http.get("/api/v2/ledgers/70/entries?wait_s=0.1")).json()["entries"] == []
    written = await api.http.post("/api/v2/ledgers/70/entries", json={"entries": [{"text": "x"}]})
    assert written.json()["state"] == "closed"
    bad = await api.http.post("/api/v2/ledgers", json={"entries": [{"text": "x", "json": 1}]})
    assert "entries[0]" in problem(bad, 400, "bad-parameter")
    bad = await api.http.post("/api/v2/ledgers", json={"custom": {"a": 1}})
    problem(bad, 400, "bad-parameter")
    bad = await api.http.post("/api/v2/ledgers", json={"ensemble_size": 99})
    problem(bad, 503, "not-enough-bookies")


async def test_to_give_entries_up_takes_the_role_admin(guarded):
    api, secrets = guarded
    body = {"ensemble_size": 1, "entries": [{"text": "x"}]}
    async with api.with_token(secrets["operator"]) as http:
        made = (await http.post("/api/v2/ledgers", json=body)).json()
        path = f"/api/v2/ledgers/{made['ledger_id']}/recover"
        problem(await http.post(path, json={"accept_loss": True}), 403, "role")
        assert (await http.post(path)).status_code == 200
    async with api.with_token(secrets["admin"]) as http:
        assert (await http.post(path, json={"accept_loss": True})).status_code == 200


async def test_a_schema_is_set_compared_and_shown(api):
    await api.http.post(S, json={"name": "orders"})
    at = f"{S}/orders/schema"
    problem(await api.http.get(at), 404, "schema-not-found")
    first = {"kind": "avro", "text": json.dumps(AVRO)}
    shown = (await api.http.put(at, json=first)).json()
    assert [each["version"] for each in shown["versions"]] == [1]
    other = {**AVRO, "fields": [*AVRO["fields"], {"name": "at", "type": "string"}]}
    second = {"kind": "avro", "text": json.dumps(other)}
    assert "at" in problem(await api.http.put(at, json=second), 409, "schema-incompatible")
    problem(await api.http.put(at, json={**first, "expected": 7}), 409, "schema-conflict")
    for bad in (
        {},
        {"kind": "avro"},
        {"kind": "avro", "text": "{"},
        {"kind": "protobuf", "text": "x"},
    ):
        assert (await api.http.put(at, json=bad)).status_code == 400, bad
    assert (await api.http.put(at, json={"compatibility": "none"})).json()[
        "compatibility"
    ] == "none"
    assert len((await api.http.put(at, json=second)).json()["versions"]) == 2


async def test_streams_are_sealed_grow_and_keep_what_a_policy_says(api):
    await api.http.post(S, json={"name": "jobs", "partitions": 2})
    grown = (await api.http.put(f"{S}/jobs/partitions", json={"partitions": 3})).json()
    assert grown == {"name": "jobs", "partitions": 3, "were": 2}
    problem(await api.http.put(f"{S}/jobs/partitions", json={"partitions": 1}), 400,
            "bad-parameter")  # fmt: skip
    await api.http.post(S, json={"name": "one"})
    problem(await api.http.put(f"{S}/one/partitions", json={"partitions": 2}), 404,
            "stream-not-found")  # fmt: skip
    # The server's own writer, which rests, does not stand in the way.
    await api.http.post(f"{S}/one/records", content=b"last")
    assert (await api.http.post(f"{S}/one/seal")).json() == {"name": "one", "state": "sealed"}
    problem(await api.http.post(f"{S}/one/records", content=b"more"), 409, "stream-sealed")
    assert (await api.http.post(f"{S}/jobs/seal")).status_code == 200
    whole = (await api.http.get(f"{S}/jobs")).json()
    assert all(each["is_sealed"] for each in whole["partitions"])

    changed = await api.http.put("/api/v2/policy", json={"policy": {"retain_time_s": "7d"}})
    assert (changed.json()["policy"]["retain_time_s"], changed.json()["policy_own"]) == (
        604800, ["retain_time_s"],
    )  # fmt: skip
    assert (await api.http.get(f"{S}/one")).json()["policy"]["retain_time_s"] == 604800
    back = await api.http.put("/api/v2/policy", json={"inherit": ["retain_time_s"]})
    assert back.json()["policy_own"] == []
    kept = (await api.http.post("/api/v2/retention", json={"dry_run": True})).json()
    assert kept == {"dry_run": True, "segments": [], "overrun": []}
    assert (await api.http.get("/api/v2/orphans")).json() == {"orphans": []}
    assert (await api.http.post("/api/v2/orphans", json={"grace_s": 0})).json() == {"orphans": []}


async def test_a_cursor_holds_retention_without_being_moved(api):
    await api.http.post(S, json={"name": "one"})
    await api.http.post(f"{S}/one/records", json={"records": [{"text": str(n)} for n in range(5)]})
    at = f"{S}/one/cursors/billing"
    problem(await api.http.put(at, json={"holds_retention": True}), 404, "no-such-cursor")
    problem(await api.http.put(at, json={}), 400, "bad-parameter")
    await api.http.put(at, json={"position": "seq:3"})
    held = (await api.http.put(at, json={"holds_retention": True})).json()
    assert (held["holds_retention"], held["records"]) == (True, 2)


async def test_whether_a_bookie_may_be_stopped_and_what_it_holds(api):
    await api.http.post("/api/v2/ledgers", json={"entries": [{"text": "x"}]})
    bookie = api.cluster.bookie_ids[0]
    found = (await api.http.get(f"/api/v2/bookies/{bookie}/can-stop")).json()
    assert (found["can_stop"], found["endangered"]) == (True, [])
    strict = await api.http.get(f"/api/v2/bookies/{bookie}/can-stop?copies=3")
    assert strict.json()["endangered_count"] == 1
    held = (await api.http.get(f"/api/v2/bookies/{bookie}/ledgers")).json()
    assert (held["ledger_count"], held["ledgers"][0]["state"]) == (1, "closed")
    for path in "can-stop", "ledgers", "gc/plan", "scrub", "background-io":
        answer = await api.http.get(f"/api/v2/bookies/10.9.9.9:1/{path}")
        problem(answer, 404, "no-such-bookie")
    plan = (await api.http.get("/api/v2/balance")).json()
    assert plan == {"moves": [], "move_count": 0, "size_bytes": 0}
    job = (await api.http.post("/api/v2/balance", json={})).json()
    assert (job["kind"], job["target"]) == ("balance", "all bookies")
    seen = (await api.http.get("/api/v2/activity?every_s=0.1")).json()
    assert [each["bookie_id"] for each in seen["bookies"]] == sorted(api.cluster.bookie_ids)


async def test_who_writes_a_ledger_of_a_stream_is_told(api):
    await api.http.post(S, json={"name": "one"})
    await api.http.post(f"{S}/one/records", content=b"x")
    (part,) = (await api.http.get(f"{S}/one")).json()["partitions"]
    ledger = (await api.http.get(f"/api/v2/ledgers/{part['segments'][0]['ledger_id']}")).json()
    assert ledger["stream"] == {"namespace": "/streams", "name": "one"}
    assert ledger["writer"]
    plain = (await api.http.post("/api/v2/ledgers", json={"entries": [{"text": "x"}]})).json()
    other = (await api.http.get(f"/api/v2/ledgers/{plain['ledger_id']}")).json()
    assert (other["stream"], other["writer"]) == (None, None)
