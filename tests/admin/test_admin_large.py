"""Pages of large clusters: known counts with their age, searches and lists that end in time."""

from __future__ import annotations

import asyncio

import pytest

from admin.test_admin_console import console_on, secret_of
from quorumbook.admin.console.samples import Samples
from quorumbook.admin.facts.bookies import BookieFacts
from quorumbook.testing import LocalCluster


@pytest.fixture(scope="module")
def console():
    """A console on three bookies, with a ledger and three streams."""
    with LocalCluster(bookies=3) as cluster, console_on(cluster) as running, running.http() as http:
        with cluster.connect() as client, client.create_ledger() as ledger:
            ledger.append(b"x")
        streams = "/api/v2/streams"
        http.post(streams, json={"name": "orders/eu"})
        http.post(streams, json={"name": "jobs", "partitions": 2})
        http.post(f"{streams}/orders/eu/records", json={"records": [{"text": "1"}]})
        yield running


def test_a_search_that_takes_long_shows_how_far_it_has_come(console, monkeypatch):
    monkeypatch.setattr("quorumbook.admin.endpoints.ledgers._SEARCH_S", 0.0)
    with console.http() as http:
        page = http.get("/ui/ledgers?text=nowhere").text
        assert "The ledgers up to 0 were looked at; 0 ledgers of them fit." in page
        assert "No ledger" not in page
        assert '<a href="?text=nowhere&amp;after=0">Search on</a>' in page
        # A program waits for all that it wants.
        found = http.get("/api/v2/ledgers?text=nowhere").json()
        assert (found["ledgers"], found["next_after"]) == ([], None)


def test_pages_show_old_counts_with_their_age_until_an_action_is_done(console, monkeypatch):
    with console.http() as http:
        before = http.get("/api/v2/cluster?fresh=true").json()
        with console.cluster.connect() as client, client.create_ledger() as ledger:
            ledger.append(b"x")
        monkeypatch.setattr("quorumbook.admin.http.known_facts.SURVEY_S", 3600.0)
        monkeypatch.setattr("quorumbook.admin.console.pages.SURVEY_S", -1.0)
        for path in ("/ui", "/ui/bookies"):
            assert "; they are being counted again" in http.get(path).text, path
        as_json = {"Accept": "application/json"}
        shown = http.get("/ui", headers=as_json).json()["cluster"]
        counted = {key: shown[key] for key in ("ledgers", "ledgers_at_ms")}
        assert counted == {key: before[key] for key in counted}
        form = {"csrf": secret_of(http.get(f"/ui/ledgers/{ledger.id}").text), "id": str(ledger.id)}
        answer = http.post("/ui/do/ledger-delete", data={**form, "confirm": str(ledger.id)})
        assert answer.status_code == 303
        shown = http.get("/ui", headers=as_json).json()["cluster"]
        assert shown["ledgers_at_ms"] > before["ledgers_at_ms"]


def test_the_streams_page_says_how_large_and_old_each_is_as_far_as_time_allows(
    console, monkeypatch
):
    monkeypatch.setattr("quorumbook.admin.endpoints.streams._FACTS_S", 60.0)
    with console.http() as http:
        listed = http.get("/ui/streams", headers={"Accept": "application/json"}).json()
        row = next(row for row in listed["rows"] if row["name"] == "orders/eu")
        assert {key: row[key] for key in ("segments", "sealed")} == {"segments": 1, "sealed": False}
        long = http.get("/api/v2/streams?long=true").json()
        assert long["facts"] == listed["facts"]
        assert "facts" not in http.get("/api/v2/streams").json()
        assert "could not be read" not in http.get("/ui/streams").text
        monkeypatch.setattr("quorumbook.admin.endpoints.streams._FACTS_S", 0.0)
        page = http.get("/ui/streams").text
        assert "3 streams could not be read in time" in page
        assert ">orders/eu</a>" in page


def test_the_chart_says_which_bookies_it_lacks():
    async def silent() -> tuple[BookieFacts, ...]:
        up = BookieFacts("a:1", "writable"), BookieFacts("b:1", "read-only")
        return (*up, BookieFacts("c:1", "down"))

    async def taken() -> dict[str, object]:
        samples = Samples(silent)
        try:
            while not (found := samples.recent())["bookies_up"]:
                await asyncio.sleep(0.01)
        finally:
            await samples.close()
        return found

    found = asyncio.run(taken())
    assert (found["bookies_up"], found["bookies_read"]) == (2, 0)
