"""The console in a real browser: every page, every action, wrong roles, pages without scripts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

import quorumbook
from doubles.browsers import browser, needs_browser
from doubles.told_pipelines import told_orders
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.console.actions import ACTIONS
from quorumbook.admin.console.pages import PAGES
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.client.context import client_store
from quorumbook.protocol.digest import DigestType
from quorumbook.streams.metadata.pipeline_nodes import tell
from quorumbook.testing import LocalCluster


@dataclass
class Running:
    """A console on a cluster, on a loop of its own."""

    cluster: LocalCluster
    url: str
    loop: asyncio.AbstractEventLoop
    service: Service
    tokens: dict[str, str] = field(default_factory=dict)

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def tell(self, told: dict[str, Any]) -> None:
        """Tell what a pipeline would."""

        async def work() -> None:
            namespace = await self.service.streams.namespace("/streams")
            await tell(client_store(namespace.client), namespace.path, told["name"], told)

        self.do(work())

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, follow_redirects=False)


@contextlib.contextmanager
def console_on(cluster: LocalCluster, token_file: str = "") -> Iterator[Running]:
    uri = cluster.metadata_uri
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    service = Service(
        ServiceOptions(uri, connect=lambda: quorumbook.connect(uri), token_file=token_file)
    )
    server = AdminServer(AdminOptions(port=0, token_file=token_file), service)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    try:
        yield Running(cluster, server.url, loop, service)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@pytest.fixture(scope="module")
def console():
    """A console on three bookies, with ledgers and streams."""
    with LocalCluster(bookies=3) as cluster, console_on(cluster) as running, running.http() as http:
        with cluster.connect() as client:
            options = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
            with client.create_ledger(
                custom_metadata={"team": b"<b>blue</b>"}, **options
            ) as ledger:
                ledger.append(b'{"flight": 1}')
                ledger.append(b"\x00\xff binary")
                ledger.append(b"<script>alert(1)</script>")
        streams = "/api/v2/streams"
        http.post(streams, json={"name": "orders/eu"})
        http.post(streams, json={"name": "jobs", "partitions": 2})
        batch = {"records": [{"text": f"<i>{n}</i>", "key": str(n)} for n in range(20)]}
        http.post(f"{streams}/orders/eu/records", json=batch)
        http.put(f"{streams}/orders/eu/cursors/billing", json={"position": "seq:3"})
        http.post(f"{streams}/jobs/groups/g/records", json={"member": "m", "wait_s": 0})
        running.tell(told_orders())
        yield running


def wait_for(driver, condition):
    """Wait for a condition; what a page replaced meanwhile is looked for again.

    Chromium has no error class of its own for a node that went between two of its calls.
    """
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 60, ignored_exceptions=(WebDriverException,)).until(condition)


def addresses(running: Running) -> list[str]:
    """Return an address of every page."""
    names = {"bookie": running.cluster.bookie_ids[0], "id": 0, "name:path": "orders/eu", "entry": 1}
    found = []
    for page in PAGES:
        path = page.path
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", str(value))
        found.append(path)
    return found


AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
ASK_AXE = """
const done = arguments[0];
document.querySelectorAll('details').forEach(each => { each.open = true; });
axe.run(document, {resultTypes: ['violations']}).then(
  found => done(found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => each.id + ': ' + each.nodes.map(node => node.html).join(' '))),
  error => done([String(error)]));
"""


def serious_findings(driver) -> list[str]:
    """Return what axe finds in a page, with all its forms open, that keeps somebody out."""
    driver.execute_script(AXE)
    return driver.execute_async_script(ASK_AXE)


# Without a browser --------------------------------------------------------------------------


def test_every_page_answers_html_and_json_and_runs_no_strange_script(console):
    with console.http() as http:
        for path in addresses(console):
            page = http.get(path)
            assert page.status_code == 200, (path, page.text)
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
            for written in ("<script>alert", "<b>blue", "<i>1"):
                assert written not in page.text, path
            assert "The command for this" in page.text
            assert 'lang="en"' in page.text
            data = http.get(path, headers={"Accept": "application/json"})
            assert data.headers["content-type"] == "application/json", path
            data.json()
            twin = page.text.partition('<a href="/api')[2].partition('"')[0]
            assert http.get(f"/api{twin}".replace("&amp;", "&")).status_code == 200, (path, twin)


def test_commands_in_sentences_are_set_as_such(console):
    with console.http() as http:
        page = http.get("/ui").text
        assert "<code>quorumbook recovery run</code>" in page
        assert "`" not in page


def test_pages_have_units_and_their_twins_the_raw_values(console):
    with console.http() as http:
        page = http.get("/ui/streams/orders/eu").text
        twin = http.get("/ui/streams/orders/eu", headers={"Accept": "application/json"}).json()
        assert "<dd>256 MiB</dd>" in page
        for path in ("/ui/ledgers", "/ui/ledgers/0"):
            assert '<time datetime="20' in http.get(path).text, path
        bookie = http.get(f"/ui/bookies/{console.cluster.bookie_ids[0]}").text
        assert "\N{EN DASH} ms" not in bookie
        assert "<dd>2 h</dd>" in page
        policy = twin["stream"]["policy"]
        assert (policy["roll_bytes"], policy["roll_interval_s"]) == (256 << 20, 7200)


def test_the_page_of_pipelines_shows_the_graph_and_all_numbers(console):
    console.tell(told_orders())
    with console.http() as http:
        page = http.get("/ui/pipelines").text
        (twin,) = http.get("/api/v2/pipelines").json()["pipelines"]
        assert {**twin, "told_at_ms": 0} == {**told_orders(), "told_at_ms": 0}
        graph = page.partition('<svg class="graph"')[2].partition("</svg>")[0]
        for box in ("orders/eu", "clean", "orders/bad", "orders/clean", "jobs", "archive"):
            assert f"<title>{box}</title>" in graph
        for kind in ("running", "waiting", "letters", "stream", "files"):
            assert f'<g class="{kind}">' in graph
        for words in (
            "1,000/s",
            "1,204 commits, 7 behind (3 s)",
            "waiting, 2 restarts",
            ">2</text>",
        ):
            assert words in graph, words
        row = page.partition("<td>clean</td>")[2].partition("</tr>")[0]
        for words in ("1,000/s", "4,000/s", "1.5 s", "7 entries", "70 KB", "1,204", "120,400",
                      "120,398", ">2<", ">12<", "1,192"):  # fmt: skip
            assert words in row, words
        for name, entries in (("orders/eu", 7), ("jobs/p1", 30), ("jobs/p0", 10)):
            behind = page.partition(f">{name}</a></td>")[2].partition("</tr>")[0]
            assert f">{entries}</td>" in behind
        assert "[QUORUMBOOK_DATA_LOSS] ledger 7 is &lt;gone&gt;" in page
        assert 'hx-get="/ui/pipelines?namespace=/streams"' in page
        assert "spark pipeline rm" not in page
        assert "No pipeline was run in /other" in http.get("/ui/pipelines?namespace=/other").text


def test_a_pipeline_that_does_not_tell_any_more_is_silent_unless_it_ended(console):
    for is_over, state in ((False, "silent"), (True, "ended")):
        console.tell({**told_orders(is_over=is_over), "told_every_s": -1})
        with console.http() as http:
            (twin,) = http.get("/api/v2/pipelines").json()["pipelines"]
            assert twin["state"] == state
            page = http.get("/ui/pipelines").text
            assert f'<span class="state {state}">{state}</span>' in page
            assert "spark pipeline rm" in page


def test_an_entrys_page_shows_replicas_and_no_content_behind_a_password(console):
    options = {"password": b"open sesame", "digest_type": DigestType.HMAC}
    with console.cluster.connect() as client, client.create_ledger(**options) as ledger:
        ledger.append(b"for their eyes")
    with console.http() as http:
        page = http.get(f"/ui/ledgers/{ledger.id}/entries/0")
        assert page.status_code == 200
        assert page.text.count("verified") == 3
        assert "for their eyes" not in page.text
        assert "sesame" not in page.text
        shown = http.get("/ui/ledgers/0/entries/0?view=hex").text
        assert "7b 22 66 6c" in shown
        assert shown.count('class="state good"') == 2


def test_bad_addresses_of_pages_are_one_sentence(console):
    with console.http() as http:
        for path, status in (("/ui/nope", 404), ("/ui/ledgers/x", 400), ("/ui/ledgers/99999", 404),
                             ("/ui/bookies/nobody", 404), ("/ui/streams/nobody", 404),
                             ("/ui/metadata?path=..", 400), ("/ui/metadata?path=/nope", 404),
                             ("/ui/ledgers?state=x", 400), ("/ui/ledgers?no=1", 400),
                             ("/ui/static/%2e%2e/web.py", 404),
                             ("/ui/static/web.py", 404)):  # fmt: skip
            page = http.get(path)
            assert page.status_code == status, path
            assert "Traceback" not in page.text
        problem = http.get("/ui/ledgers/x", headers={"Accept": "application/json"})
        assert problem.json()["code"] == "bad-parameter"


def test_a_form_without_the_secret_of_its_session_changes_nothing(console):
    own = {"Origin": console.url}
    with console.http() as http:
        for headers in (own, {"Origin": "http://evil.example"}, {}):
            for csrf in ("", "wrong"):
                answer = http.post(
                    "/ui/do/recovery-off", data={"csrf": csrf, "enabled": "false"}, headers=headers
                )
                if headers or http.cookies:
                    assert answer.status_code == 403, (headers, csrf)
            http.get("/ui")  # from here on there is a session, and its cookie
        assert http.get("/api/v2/recovery").json()["enabled"] is True
        cookie = http.get("/ui", headers={"Cookie": ""}).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        # Of this server alone: a browser shares cookies between the ports of a host.
        assert cookie.startswith(f"quorumbook_session_{console.url.rpartition(':')[2]}=")


def secret_of(page: str) -> str:
    return page.partition('name="csrf" value="')[2].partition('"')[0]


def test_an_action_takes_its_confirmation(console):
    with console.http() as http:
        form = {"csrf": secret_of(http.get("/ui/ledgers/0").text), "id": "0"}
        for confirm in ("", "1", "00"):
            answer = http.post("/ui/do/ledger-delete", data={**form, "confirm": confirm})
            assert answer.status_code == 400
            assert "to confirm, type 0 exactly" in answer.text
        assert http.get("/api/v2/ledgers/0").status_code == 200
        assert http.post("/ui/do/nothing", data=form).status_code == 404
        changes = http.get("/api/v2/audit").json()["changes"]
        assert changes[0]["outcome"] == "not-confirmed"


#: They are about no bookie, ledger, stream or token; cancelling a job loses nothing.
UNNAMED = {"stream-create", "recovery-on", "recovery-off", "audit-now", "job-cancel"}


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.key)
def test_no_action_is_forged_or_goes_unconfirmed(console, action):
    bookie = console.cluster.bookie_ids[0]
    names = {"bookie": bookie, "id": "0", "name": "orders/eu", "cursor": "billing"}
    fields = {each.name: each.value or "seq:1" for each in action.inputs}
    with console.http() as http:
        csrf = secret_of(http.get("/ui/ledgers/0").text)
        before = len(http.get("/api/v2/audit?limit=1000").json()["changes"])
        form = {**fields, **names}
        confirmed = {"confirm": form.get(action.confirm, "")}
        for secret in {}, {"csrf": ""}, {"csrf": csrf[:-1]}, {"csrf": "x" * 100}:
            answer = http.post(f"/ui/do/{action.key}", data={**form, **confirmed, **secret})
            assert answer.status_code == 403, (secret, answer.text)
        assert (action.key in UNNAMED) == (not action.confirm)
        if action.confirm:
            for typed in {}, {"confirm": ""}, {"confirm": f"{form[action.confirm]}x"}:
                data = {**form, "csrf": csrf, **typed}
                answer = http.post(f"/ui/do/{action.key}", data=data)
                assert answer.status_code == 400, (typed, answer.text)
        changes = http.get("/api/v2/audit?limit=1000").json()["changes"]
        assert {each["outcome"] for each in changes[: len(changes) - before]} <= {
            "csrf", "not-confirmed", "not-authenticated",
        }  # fmt: skip


def test_roles_decide_what_a_page_offers_and_does(tmp_path):
    path = str(tmp_path / "tokens.json")
    made = {r.word: TokenFile(path).add(r.word, r, lifetime_s=None)[0] for r in Role}
    with LocalCluster(bookies=1) as cluster, console_on(cluster, path) as running:
        bookie = cluster.bookie_ids[0]
        with running.http() as http:
            asked = http.get(f"/ui/bookies/{bookie}")
            assert asked.status_code == 303
            assert asked.headers[
                "location"
            ] == f"/ui/login?next=%2Fui%2Fbookies%2F{bookie}".replace(":", "%3A")
            refused = http.post("/ui/login", data={"token": "wrong"})
            assert refused.status_code == 401
            away = http.post("/ui/login?next=//evil.example", data={"token": made["viewer"]})
            assert away.headers["location"] == "/ui"
            assert made["viewer"] not in str(away.headers)
            page = http.get(f"/ui/bookies/{bookie}").text
            assert "Drain" not in page
            form = {"csrf": secret_of(page), "bookie": bookie, "confirm": bookie}
            assert http.post("/ui/do/bookie-drain", data=form).status_code == 403
            assert http.get("/ui/tokens").status_code == 403
            assert http.post("/ui/logout", data={"csrf": form["csrf"]}).status_code == 303
            assert http.get("/ui").status_code == 303
        with running.http() as http:
            http.post("/ui/login", data={"token": made["operator"]})
            page = http.get(f"/ui/bookies/{bookie}").text
            assert "Drain" in page
            assert "Decommission" not in page
            TokenFile(path).revoke("operator")
            assert http.get("/ui").status_code == 303


# In a browser -------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize(("size", "theme"), [("desktop", "light"), ("phone", "dark")])
def test_every_page_fits_its_window_keeps_nobody_out_and_logs_no_error(console, size, theme):
    barriers = {}
    with browser(size, theme) as driver:
        for path in addresses(console):
            driver.get(console.url + path)
            wide, window = driver.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth]"
            )
            assert wide <= window, path
            assert driver.get_log("browser") == [], path
            unnamed = driver.execute_script(
                "return [...document.querySelectorAll('input:not([type=hidden]),select')]"
                ".filter(e => !e.labels.length && !e.ariaLabel).length"
                " + [...document.querySelectorAll('button,a')]"
                ".filter(e => !e.textContent.trim() && !e.ariaLabel).length"
            )
            assert unnamed == 0, path
            background = driver.execute_script(
                "return getComputedStyle(document.body).backgroundColor"
            )
            assert (background == "rgb(18, 22, 27)") is (theme == "dark"), path
            if found := serious_findings(driver):
                barriers[path] = found
        assert barriers == {}


@needs_browser
def test_a_record_arrives_in_the_live_tail_and_keys_lead_on(console):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    with browser() as driver, console.http() as http:
        driver.get(f"{console.url}/ui/tail/orders/eu")
        wait_for(driver, lambda d: d.find_element(By.ID, "told").text == "following")
        http.post("/api/v2/streams/orders/eu/records", content=b"hello console")
        wait_for(driver, lambda d: "hello console" in d.find_element(By.ID, "tail").text)
        driver.find_element(By.ID, "pause").click()
        http.post("/api/v2/streams/orders/eu/records", content=b"while paused")
        wait_for(driver, lambda d: "paused" in d.find_element(By.ID, "told").text)
        assert "while paused" not in driver.find_element(By.ID, "tail").text
        body = driver.find_element(By.TAG_NAME, "body")
        body.send_keys("g")
        body.send_keys("l")
        wait_for(driver, lambda d: d.title.startswith("Ledgers"))
        driver.find_element(By.TAG_NAME, "body").send_keys("/")
        assert driver.switch_to.active_element.get_attribute("name") == "text"
        driver.switch_to.active_element.send_keys("blue", Keys.ENTER)
        wait_for(driver, lambda d: "text=blue" in d.current_url)
        assert "<b>blue</b>" in driver.find_element(By.TAG_NAME, "table").text


@needs_browser
def test_a_bookie_dies_is_recovered_by_the_page_and_the_overview_tells(tmp_path):
    from selenium.webdriver.common.by import By

    with LocalCluster(bookies=3) as cluster, console_on(cluster) as running, browser() as driver:
        options = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
        with cluster.connect() as client, client.create_ledger(**options) as ledger:
            ledger.append(b"x")
        with running.http() as http:
            lost = http.get("/api/v2/ledgers/0").json()["fragments"][0]["ensemble"][0]
        driver.get(f"{running.url}/ui")
        cluster.stop(lost)
        wait_for(driver, lambda d: f"down: {lost}" in d.find_element(By.ID, "live").text)
        driver.get(f"{running.url}/ui/bookies/{lost}")
        summaries = driver.find_elements(By.TAG_NAME, "summary")
        next(each for each in summaries if each.text == "Recover").click()
        form = driver.find_element(By.CSS_SELECTOR, "form[action='/ui/do/bookie-recover']")
        form.find_element(By.NAME, "confirm").send_keys(lost)
        form.find_element(By.TAG_NAME, "button").click()
        wait_for(driver, lambda d: "Recover: begun" in d.find_element(By.ID, "main").text)
        wait_for(driver, lambda d: "done" in d.find_element(By.ID, "live").text)
        driver.get(f"{running.url}/ui/ledgers/0")
        assert lost not in driver.find_element(By.ID, "main").text


@needs_browser
def test_pages_work_without_scripts(console):
    from selenium.webdriver.common.by import By

    with browser(scripts=False) as driver:
        driver.get(f"{console.url}/ui")
        driver.find_element(By.LINK_TEXT, "Ledgers").click()
        driver.find_element(By.LINK_TEXT, "0").click()
        driver.find_element(By.LINK_TEXT, "look at them").click()
        shown = driver.find_element(By.TAG_NAME, "table").text
        assert '"flight": 1' in shown
        assert "000000  00 ff" in shown
        driver.get(f"{console.url}/ui/tail/orders/eu?from=earliest")
        assert "<i>7</i>" in driver.find_element(By.TAG_NAME, "table").text
        driver.get(f"{console.url}/ui/streams")
        driver.find_element(By.CSS_SELECTOR, "details.action summary").click()
        driver.find_element(By.NAME, "name").send_keys("made-here")
        driver.find_element(By.CSS_SELECTOR, "details.action button").click()
        wait_for(driver, lambda d: "made-here" in d.find_element(By.TAG_NAME, "table").text)
