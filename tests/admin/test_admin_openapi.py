"""The API does what the command line does, and its document is right about it."""

from __future__ import annotations

import asyncio
import re
import shlex
from dataclasses import dataclass

import click
import httpx
import pytest

import quorumbook
from doubles.told_pipelines import told_orders
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.console.pages import PAGES
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer, all_endpoints
from quorumbook.cli.main import root
from quorumbook.client.context import client_store
from quorumbook.streams import Namespace
from quorumbook.streams.metadata.pipeline_nodes import tell
from quorumbook.testing import LocalCluster

S = "/api/v2/streams"


OURS = [each for each in all_endpoints() if not each.is_lenient]
#: Commands that another command's endpoint answers for.
ALSO = {
    "cluster health": "GET /api/v2/cluster",
    "ledger create": "POST /api/v2/ledgers",
    "ledger put": "POST /api/v2/ledgers",
    "ledger get": "GET /api/v2/ledgers/{id}/entries",
    "ledger tail": "GET /api/v2/ledgers/{id}/entries",
    "recovery auditor": "GET /api/v2/recovery",
    "recovery delay": "PUT /api/v2/recovery",
    "recovery enable": "PUT /api/v2/recovery",
    "stream segments": "GET /api/v2/streams/{name:path}",
}
#: Commands without an endpoint, by why they have none.
EXCEPTIONS = {
    "it starts a process": "standalone demo zookeeper-run bookie-run recovery-run admin-run "
    "console",
    "it looks at the machine that it is called on": "doctor support-bundle bench-*",
    "it is about files of a bookie that is stopped": "disk-* bookie-adopt bookie-give-back",
    "it runs on a cluster of Apache Spark, with the rights of who calls it": "spark-a* spark-c* "
    "spark-d* spark-export spark-fsck-meta spark-gc-orphans spark-ingest spark-lake-* "
    "spark-offload spark-pipeline-run spark-re* spark-t* spark-usage spark-xcluster",
    "it makes the cluster that a server needs": "cluster-init",
    "it writes or reads a file with ledgers' passwords, which no answer holds": "metadata-*",
    "it has a server ask an address that a client chooses; what a registry answers is given by "
    "PUT .../schema": "stream-schema-import",
    "it is about the command line itself": "shell cheat help context-add context-use context-rm "
    "completion",
    "it writes files that are in the package": "deploy-export",
}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """Return all commands that do something, by their words."""
    if not isinstance(command, click.Group):
        return {" ".join(path): command}
    context = click.Context(command)
    found: dict[str, click.Command] = {}
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found |= commands(child, (*path, name))
    return found


def is_excepted(words: str) -> bool:
    patterns = [each for texts in EXCEPTIONS.values() for each in texts.split()]
    name = words.replace(" ", "-")
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns
    )


def test_every_command_has_an_endpoint_or_a_reason_to_have_none():
    there = {f"{each.method} {each.path}" for each in OURS}
    assert set(ALSO.values()) <= there
    answered = [each.command.removeprefix("quorumbook ") for each in OURS if each.command]
    without = []
    for words in commands(root):
        is_answered = any(f"{each} ".startswith(f"{words} ") for each in answered)
        assert is_answered + (words in ALSO) + is_excepted(words) <= 1, words
        if not (is_answered or words in ALSO or is_excepted(words)):
            without.append(words)
    assert without == []


def test_no_exception_is_of_a_command_that_there_is_not():
    names = [words.replace(" ", "-") for words in commands(root)]
    for pattern in (each for texts in EXCEPTIONS.values() for each in texts.split()):
        assert any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for name in names
        ), pattern


def test_the_command_beside_an_endpoint_or_a_page_is_one_that_there_is():
    told = [each.command for each in OURS if each.command]
    told += [each.command for each in PAGES if not each.command.startswith("curl ")]
    for text in told:
        words = shlex.split(re.sub(r"\{\w+\}", "7", text))
        assert words.pop(0) == "quorumbook", text
        command: click.Command = root
        context = click.Context(root)
        while isinstance(command, click.Group):
            child = command.get_command(context, words.pop(0))
            assert child is not None, text
            command = child
        command.make_context(text, words, parent=context, resilient_parsing=True)
        options = {name for each in command.params for name in each.opts + each.secondary_opts}
        assert {word for word in words if word.startswith("--")} <= options, text


#: An example is sent before those that take away what it is about.
_VERBS = ("POST", "PUT", "GET", "DELETE")
_LAST = ("/drain", "{bookie}/recover", "/decommission")
#: Nothing is held on a new cluster, so that nothing can be approved of.
REFUSED = {"PUT /api/v2/bookies/{bookie}/gc/hold": "refused-by-bookie"}


@dataclass
class Whole:
    """A server on five bookies, one of them down, with all that the document's examples name."""

    cluster: LocalCluster
    http: httpx.AsyncClient
    #: The token that it sends.
    secret: str
    #: Who is down.
    lost: str


@pytest.fixture
async def whole(tmp_path):
    path = str(tmp_path / "tokens.json")
    secret, _ = TokenFile(path).add("root", Role.ADMIN, lifetime_s=None)
    async with LocalCluster(bookies=5, processes=True) as cluster:
        uri = cluster.metadata_uri
        service = Service(
            ServiceOptions(
                uri, connect=lambda: quorumbook.connect(uri), token_file=path, quorums=(2, 2, 2)
            )
        )
        server = AdminServer(AdminOptions(port=0, token_file=path, files=True), service)
        await server.start()
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
            try:
                await _make(http)
                async with Namespace.open(f"{uri}#/streams") as ns:
                    told = told_orders(is_over=True)
                    await tell(client_store(ns.client), ns.path, "orders", told)
                lost = cluster.bookie_ids[0]
                await cluster.stop(lost)
                yield Whole(cluster, http, secret, lost)
            finally:
                await server.stop()


async def _make(http):
    hello = {"entries": [{"text": "x"}]}
    for _ in range(3):
        assert (await http.post("/api/v2/ledgers", json=hello)).status_code == 201
    assert (await http.post("/api/v2/ledgers", json={"ledger_id": 7})).status_code == 201
    await http.post(S, json={"name": "orders/eu"})
    await http.post(S, json={"name": "jobs", "partitions": 2})
    records = {"records": [{"text": "a", "key": str(n)} for n in range(9)]}
    for name in "orders/eu", "jobs":
        assert (await http.post(f"{S}/{name}/records", json=records)).status_code == 200


async def test_every_example_of_the_document_is_answered_as_it_says(whole):
    document = (await whole.http.get("/api/v2/openapi.json")).json()
    wanted = [
        (verb.upper(), path, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    assert {path for _, path, _ in wanted if path.startswith("/webhdfs")} == {
        "/webhdfs/v1/{path}", "/webhdfs/token",
    }  # fmt: skip
    wanted.sort(key=lambda each: (each[1].endswith(_LAST), _VERBS.index(each[0])))
    for method, path, operation in wanted:
        answer = await _sent(whole, method, path, operation)
        if code := REFUSED.get(f"{method} {path}"):
            assert answer.json()["code"] == code
            continue
        assert str(answer.status_code) == next(iter(operation["responses"])), (path, answer.text)


async def test_the_document_has_files_where_the_server_has(api):
    document = (await api.http.get("/api/v2/openapi.json")).json()
    assert not [path for path in document["paths"] if path.startswith("/webhdfs")]


async def _sent(whole, method, path, operation):
    given = {"path": {}, "query": {}}
    for each in operation["parameters"]:
        if each["in"] == "path" or "example" in each:
            given[each["in"]][each["name"]] = each["example"]
    if "bookie" in given["path"]:
        is_lost = path.endswith(("/recover", "/decommission"))
        given["path"]["bookie"] = whole.lost if is_lost else whole.cluster.bookie_ids[1]
    if path.endswith("/decommission"):
        await _until_no_job_runs(whole.http)
    url = path.format_map(given["path"])
    content = operation.get("requestBody", {}).get("content", {})
    if "application/x-www-form-urlencoded" in content:
        return await whole.http.post(url, data={"client_secret": whole.secret})
    body = content.get("application/json", {})
    if path.endswith("/tail"):
        async with whole.http.stream(method, url, params=given["query"]) as answer:
            return answer
    if path.endswith("/ack"):
        await _take_all(whole.http, url.removesuffix("/ack") + "/records")
    return await whole.http.request(
        method, url, params=given["query"], json=body.get("example"), timeout=60
    )


async def _take_all(http, url):
    """Take records of a group until all are in hand, those included that the example took."""
    in_hand = 0
    while in_hand < 9:
        answer = await http.post(url, json={"member": "a", "wait_s": 5})
        in_hand = answer.json()["in_hand"]


async def _until_no_job_runs(http):
    while any(job["state"] == "running" for job in (await http.get("/api/v2/jobs")).json()["jobs"]):
        await asyncio.sleep(0.05)
