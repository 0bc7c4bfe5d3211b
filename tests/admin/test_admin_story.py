"""The whole story in a browser: a first record, a killed bookie, healing, drain, truncation.

Two people tell it: one with the role admin, and one who may only look.
"""

from __future__ import annotations

import contextlib

import pytest

from admin.test_admin_console import browser, console_on, needs_browser, wait_for
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.console.actions import BY_KEY
from quorumbook.testing import LocalCluster

pytestmark = needs_browser
JOBS = ("bookie-decommission",)
THREE = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


class Person:
    """Somebody in front of a browser."""

    def __init__(self, driver, url: str) -> None:
        self.driver = driver
        self._url = url

    def opens(self, path: str) -> None:
        self.driver.get(self._url + path)

    def reads(self, where: str = "main") -> str:
        from selenium.webdriver.common.by import By

        return self.driver.find_element(By.ID, where).text

    def sees(self, text: str, where: str = "main") -> None:
        wait_for(self.driver, lambda _: text in self.reads(where))

    def signs_in(self, token: str) -> None:
        from selenium.webdriver.common.by import By

        self.opens("/ui/login")
        self.driver.find_element(By.NAME, "token").send_keys(token)
        self.driver.find_element(By.CSS_SELECTOR, "main button").click()
        wait_for(self.driver, lambda d: d.title.startswith("Overview"))

    def does(self, key: str, **fields: str) -> None:
        """Open an action, fill its form in, and send it."""
        from selenium.webdriver.common.by import By

        forms = self.driver.find_elements(By.CSS_SELECTOR, f"form[action='/ui/do/{key}']")
        wanted = fields.get("confirm", "")
        # A page of several tokens has a form for each.
        form = next((f for f in forms if wanted in f.get_attribute("textContent")), forms[0])
        form.find_element(By.XPATH, "./ancestor::details/summary").click()
        for name, value in fields.items():
            form.find_element(By.NAME, name).send_keys(value)
        form.find_element(By.TAG_NAME, "button").click()

    def offered(self) -> set[str]:
        """Return the actions of the page."""
        from selenium.webdriver.common.by import By

        forms = self.driver.find_elements(By.CSS_SELECTOR, "main form[action^='/ui/do/']")
        return {form.get_attribute("action").rpartition("/")[2] for form in forms}


@contextlib.contextmanager
def served(tmp_path):
    """A console with tokens, on five bookies that are processes, and two who look at it."""
    path = str(tmp_path / "tokens.json")
    tokens = {role.word: TokenFile(path).add(role.word, role, lifetime_s=None)[0] for role in Role}
    with (
        LocalCluster(5, processes=True) as cluster,
        console_on(cluster, path) as running,
        browser() as first,
        browser("phone", "dark") as second,
    ):
        admin, viewer = Person(first, running.url), Person(second, running.url)
        admin.signs_in(tokens["admin"])
        viewer.signs_in(tokens["viewer"])
        with running.http() as http:
            http.headers["Authorization"] = f"Bearer {tokens['admin']}"
            yield cluster, admin, viewer, http


def ensemble_of(http) -> list[str]:
    """Return the bookies that the stream's first segment is on."""
    (part,) = http.get("/api/v2/streams/orders").json()["partitions"]
    ledger = part["segments"][0]["ledger_id"]
    return http.get(f"/api/v2/ledgers/{ledger}").json()["fragments"][0]["ensemble"]


def test_from_the_first_record_to_a_viewer_who_may_not(tmp_path):
    with served(tmp_path) as (cluster, admin, viewer, http):
        # The first record, and the live tail of somebody who may only look.
        admin.opens("/ui/streams")
        admin.does("stream-create", name="orders")
        admin.sees("orders")
        viewer.opens("/ui/tail/orders")
        viewer.sees("following", "told")
        records = {"records": [{"text": f"order {n}"} for n in range(20)]}
        assert http.post("/api/v2/streams/orders/records", json=records).status_code == 200
        viewer.sees("order 19", "tail")
        # A bookie is killed; the overview tells both, and its page heals what it held.
        lost = ensemble_of(http)[0]
        admin.opens("/ui")
        viewer.opens("/ui")
        cluster.kill(lost)
        admin.sees(f"down: {lost}", "live")
        viewer.sees(f"down: {lost}", "live")
        admin.opens(f"/ui/bookies/{lost}")
        admin.does("bookie-recover", confirm=lost)
        admin.sees("Recover: begun")
        admin.sees("done", "live")
        assert lost not in ensemble_of(http)
        # Another one is drained.
        drained = ensemble_of(http)[0]
        admin.opens(f"/ui/bookies/{drained}")
        admin.does("bookie-drain", confirm=drained)
        admin.sees("Drain: begun")
        wait_for(admin.driver, lambda _: drained not in ensemble_of(http))
        viewer.opens("/ui/bookies")
        viewer.sees("read-only")
        # The stream is cut, after what has to be typed was typed.
        admin.opens("/ui/streams/orders")
        admin.does("stream-truncate", before="seq:5", confirm="orders")
        admin.sees("Truncate: done")
        # Who may only look is offered nothing, and is refused what is sent all the same.
        viewer.opens("/ui/streams/orders")
        assert viewer.offered() == set()
        viewer.opens(f"/ui/bookies/{drained}")
        assert viewer.offered() == set()
        viewer.opens("/ui/tokens")
        viewer.sees("admin")
        assert http.get("/api/v2/audit").json()["changes"]
        _do_all_others(admin, http, cluster, lost, drained)


def _do_all_others(admin, http, cluster, lost, drained):
    """Carry out each action that the story has no place for."""
    done = {"stream-create", "bookie-recover", "bookie-drain", "stream-truncate", "job-cancel"}
    spare = {"name": "spare", "role": "viewer"}
    assert http.post("/api/v2/tokens", json=spare).status_code == 201
    # There is no auditor here, which would set it, and is asked by its being set again.
    assert http.put("/api/v2/recovery", json={"lost_bookie_delay_s": 60}).status_code == 200
    for _ in range(2):
        made = http.post("/api/v2/ledgers", json={"entries": [{"text": "x"}]})
        assert made.status_code == 201, made.text
    ledger, other = made.json()["ledger_id"], made.json()["ledger_id"] - 1
    alive = next(each for each in cluster.bookie_ids if each not in (lost, drained))
    stream, bookie = "/ui/streams/orders", f"/ui/bookies/{alive}"
    for path, key, fields in (
        (bookie, "read-only-on", {"reason": "a test", "confirm": alive}),
        (bookie, "read-only-off", {"confirm": alive}),
        (bookie, "collect", {"confirm": alive}),
        (f"/ui/bookies/{lost}", "bookie-decommission", {"confirm": lost}),
        (f"/ui/ledgers/{other}", "ledger-recover", {"confirm": str(other)}),
        (f"/ui/ledgers/{ledger}", "ledger-delete", {"confirm": str(ledger)}),
        (stream, "stream-policy", {"policy": "retain_time_s=7d", "confirm": "orders"}),
        (stream, "cursor-reset", {"cursor": "c", "position": "latest", "confirm": "orders"}),
        ("/ui/recovery", "recovery-off", {}),
        ("/ui/recovery", "recovery-on", {}),
        ("/ui/recovery", "audit-now", {}),
        ("/ui/tokens", "token-revoke", {"confirm": "spare"}),
        (stream, "stream-delete", {"confirm": "orders"}),
    ):
        admin.opens(path)
        admin.does(key, **fields)
        admin.sees(f"{BY_KEY[key].label}: {'begun' if key in JOBS else 'done'}")
        done.add(key)
    assert done == BY_KEY.keys()


@pytest.mark.parametrize("size", ["phone"])
def test_slow_operations_of_bookies_that_serve_http_are_seen(tmp_path, size):
    with LocalCluster(3, processes=True) as cluster, console_on(cluster) as running:
        with (
            cluster.connect() as client,
            client.create_ledger(**THREE) as ledger,
            browser(size) as driver,
        ):
            person = Person(driver, running.url)
            bookie = cluster.bookie_ids[0]

            def sees_slow_ones(_driver) -> bool:
                # A fast bookie needs less than the millisecond from which on it keeps an add.
                ledger.append_batch([b"x" * 1_000_000] * 20)
                person.opens(f"/ui/slow?bookie={bookie}")
                return "Where the time went" in person.reads()

            wait_for(driver, sees_slow_ones)
            person.opens(f"/ui/bookies/{bookie}")
            person.sees("Journal")
            person.sees("Configuration that differs from the default")
            person.sees("bookie.port")
