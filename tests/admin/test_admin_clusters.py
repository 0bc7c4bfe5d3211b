"""One server, two clusters: paths, pages, and what a role at one of them is at the other."""

from __future__ import annotations

import contextlib

import httpx
import pytest

import quorumbook
from admin.conftest import problem
from quorumbook.admin.access.roles import Grant, Role, Who
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.testing import LocalCluster

B = "/clusters/b"


@pytest.fixture
async def two(tmp_path):
    """A server of the clusters a and b, and tokens by name."""
    path = str(tmp_path / "tokens.json")
    file = TokenFile(path)
    secrets = {
        name: file.add(name, role, lifetime_s=None, clusters=clusters)[0]
        for name, role, clusters in (
            ("everywhere", Role.ADMIN, ()),
            ("only-a", Role.ADMIN, ("a",)),
            ("only-b", Role.OPERATOR, ("b",)),
        )
    }

    def service(name, cluster, base):
        uri = cluster.metadata_uri
        return Service(
            ServiceOptions(
                uri, connect=lambda: quorumbook.connect(uri), token_file=path,
                quorums=(1, 1, 1), cluster=name, base=base,
            )
        )  # fmt: skip

    async with LocalCluster(bookies=1) as a, LocalCluster(bookies=1) as b:
        server = AdminServer(
            AdminOptions(port=0, token_file=path), service("a", a, ""), [service("b", b, B)]
        )
        await server.start()
        try:
            yield server.url, secrets
        finally:
            await server.stop()


@contextlib.asynccontextmanager
async def by(two, name):
    url, secrets = two
    headers = {"Authorization": f"Bearer {secrets[name]}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
        yield http


async def test_each_cluster_has_its_paths_and_its_own_ledgers(two):
    async with by(two, "everywhere") as http:
        made = await http.post(f"{B}/api/v2/ledgers", json={"entries": [{"text": "of b"}]})
        assert made.status_code == 201, made.text
        assert (await http.get(f"{B}/api/v2/ledgers")).json()["ledgers"] != []
        assert (await http.get("/api/v2/ledgers")).json()["ledgers"] == []
        found = (await http.get(f"{B}/api/v2/clusters")).json()["clusters"]
        assert [(each["name"], each["path"], each["is_here"]) for each in found] == [
            ("a", "/", False), ("b", B, True),
        ]  # fmt: skip
        assert {each["status"] for each in found} <= {"ok", "warning", "critical"}
        changes = (await http.get(f"{B}/api/v2/audit")).json()["changes"]
        assert [each["what"] for each in changes] == [f"POST {B}/api/v2/ledgers"]
        assert (await http.get("/api/v2/audit")).json()["changes"] == []
        problem(await http.get("/clusters/c/api/v2/ledgers"), 404, "no-such-path")


async def test_a_role_at_one_cluster_is_none_at_the_other(two):
    async with by(two, "only-b") as http:
        assert (await http.get(f"{B}/api/v2/cluster")).status_code == 200
        problem(await http.get("/api/v2/cluster"), 403, "cluster")
        problem(await http.post("/api/v2/streams", json={"name": "s"}), 403, "cluster")
        problem(await http.delete(f"{B}/api/v2/ledgers/0"), 403, "role")
        (seen,) = (await http.get(f"{B}/api/v2/clusters")).json()["clusters"]
        assert seen["name"] == "b"
    async with by(two, "only-a") as http:
        problem(await http.get(f"{B}/api/v2/cluster"), 403, "cluster")
        problem(await http.get(f"{B}/ui/samples"), 403, "cluster")


async def test_pages_stay_at_their_cluster_and_lead_to_the_other(two):
    url, secrets = two
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        answer = await http.get(f"{B}/ui/streams")
        assert answer.status_code == 303
        login = answer.headers["location"]
        assert login == "/ui/login?next=%2Fclusters%2Fb%2Fui%2Fstreams"
        answer = await http.post(login, data={"token": secrets["only-b"]})
        assert answer.headers["location"] == f"{B}/ui/streams"
        page = (await http.get(f"{B}/ui/streams")).text
        assert f'href="{B}/ui/ledgers"' in page
        assert 'href="/ui/ledgers"' not in page
        assert f'href="{B}/api/v2/streams"' in page
        csrf = page.split('name="csrf" value="')[1].split('"')[0]
        form = {"csrf": csrf, "name": "orders", "namespace": "/streams"}
        answer = await http.post(f"{B}/ui/do/stream-create", data=form)
        assert answer.headers["location"].startswith(f"{B}/ui/streams?")
        assert "/ui/streams/orders" in (await http.get(f"{B}/ui/streams")).text
        answer = await http.post("/ui/do/stream-create", data=form)
        assert answer.status_code == 403
        refused = await http.get("/ui")
        assert (refused.status_code, "only-b may do nothing at a" in refused.text) == (403, True)
        # Also who may see nothing of the first cluster gets out there.
        answer = await http.post("/ui/logout", data={"csrf": csrf})
        assert answer.headers["location"] == "/ui/login"
        assert (await http.get(f"{B}/ui")).status_code == 303
    async with by(two, "everywhere") as http:
        for base in "", B:
            page = (await http.get(f"{base}/ui/clusters")).text
            assert 'href="/ui"' in page
            assert f'href="{B}/ui"' in page


FOREIGN = ("//evil.example", "/clusters/../evil/ui", "/clusters//ui", "/clusters/b/../../evil",
           "https://evil.example/ui")  # fmt: skip


@pytest.mark.parametrize("wanted", FOREIGN)
async def test_a_sign_in_leads_to_a_page_of_ours(two, wanted):
    url, secrets = two
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        answer = await http.post(
            "/ui/login", params={"next": wanted}, data={"token": secrets["everywhere"]}
        )
        assert answer.headers["location"] == "/ui"


def test_the_role_of_a_grant_holds_where_it_was_given():
    grants = [Grant.of("viewer"), Grant.of("admin@prod"), Grant.of("operator@/orders@test")]
    who = Who.by("ada", "oidc", grants)
    assert who.at("else").role is Role.VIEWER
    assert (who.at("prod").role, who.at("prod").namespaces) == (Role.ADMIN, ())
    assert (who.at("test").role, who.at("test").namespaces) == (Role.OPERATOR, ("/orders",))
    assert Who.by("x", "token", [Grant.of("admin@prod")]).at("") is None
