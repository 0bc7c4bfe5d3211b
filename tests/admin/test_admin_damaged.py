"""A damaged node of the metadata costs pages and lists that one object."""

from __future__ import annotations

import html

import httpx
import pytest

from admin.conftest import URL
from quorumbook.admin.console.web import Console
from quorumbook.client.context import client_store
from quorumbook.errors import NoSuchNodeError
from quorumbook.metadata.nodes import create_with_parents

S = "/api/v2/streams"
MARK = "/ledgers/underreplication/ledgers/0000/0000/0000/0009/urL0000000009"
PART = "/streams/bad/p0/<default>"
NODES = {
    "a ledger": "/ledgers/00/0000/L0000",
    "a mark": MARK,
    "a cursor": f"{PART}/subscribers/c/cursor",
    "a segment": f"{PART}/ledgers/inprogress_000000000000000001",
    "the policy": "/streams/bad/p0",
    "partitions": "/streams/bad/<partitions>",
    "the highest transaction": f"{PART}/maxtxid",
}
#: What nothing of a stream can be said without.
WHOLLY = ("partitions", "the highest transaction")
#: Not about the damaged object alone, and the page of a stream of which a part is damaged.
LISTS = (
    "/ui", "/ui/bookies", "/ui/ledgers", "/ui/streams", "/ui/streams/good", "/ui/recovery",
    "/api/v2/cluster", "/api/v2/bookies", "/api/v2/ledgers", S, f"{S}/good",
    "/ui/streams/bad",
    "/api/v2/recovery", "/api/v2/recovery/underreplicated",
    "/api/v1/ledger/list", "/api/v1/bookie/list_bookies",
)  # fmt: skip


@pytest.mark.parametrize("what", [*NODES, "a cookie"])
async def test_a_damaged_node_costs_lists_and_pages_that_one_object(api, what):
    http = api.http
    for name in "bad", "good":
        await http.post(S, json={"name": name, "partitions": 1})
        await http.post(f"{S}/{name}/records", json={"records": [{"text": "x"}]})
        await http.put(
            f"{S}/{name}/cursors/c", params={"partition": 0}, json={"position": "earliest"}
        )
    store = client_store(await api.service.client())
    path = NODES.get(what) or f"/ledgers/cookies/{api.cluster.bookie_ids[0]}"
    try:
        await store.set(path, b"\xff")
    except NoSuchNodeError:
        await create_with_parents(store, path, b"\xff")
    api.service.forget_facts()
    transport = httpx.ASGITransport(
        api.app.starlette(Console(api.app).routes()), raise_app_exceptions=False
    )
    async with httpx.AsyncClient(transport=transport, base_url=URL) as pages:
        answers = {url: await pages.get(url) for url in LISTS}
        failed = {url: each.text[:500] for url, each in answers.items() if each.status_code != 200}
        page = answers["/ui/streams/bad"]
        if what in WHOLLY:
            assert failed.pop("/ui/streams/bad", "")
            assert path in html.unescape(page.text)
        if what == "the highest transaction":
            assert path in html.unescape(answers["/ui/streams"].text)
        assert failed == {}
        if what == "a segment":
            # Its only one: it is named, and what else is known is shown.
            (part,) = (await pages.get(f"{S}/bad")).json()["partitions"]
            assert (part["segments"], part["is_sealed"]) == ([], False)
            assert [path in sentence for sentence in part["damaged"]] == [True]
            assert path in html.unescape(page.text)
        if what == "a ledger":
            found = answers["/api/v2/ledgers"].json()
            assert (found["damaged_count"], len(found["damaged"])) == (1, 1)
            assert found["damaged"][0].startswith("ledger 0")
            assert found["damaged"][0] in html.unescape(answers["/ui/ledgers"].text)
        assert "good" in answers["/ui/streams"].text
        assert "good" in answers[S].text
        # What is about that stream alone shows what is whole, or names the node.
        for url in (f"{S}/bad", f"{S}/bad/cursors", f"{S}/bad/groups"):
            answer = await pages.get(url)
            assert answer.status_code == 200 or path in answer.json()["detail"], answer.text
