"""Every path of Apache BookKeeper's HTTP API, asked of a real bookie and of ours side by side.

One cluster has a Java bookie with its HTTP server and one of ours; our admin service answers for
the same cluster, so what is about the cluster must be the same answer, and what is about one
bookie the same keys with values of the same types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest

import quorumbook
from admin.conftest import problem, served
from interop.peer_java import free_port
from quorumbook.admin.server import all_endpoints

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]
HTTP = {
    "httpServerEnabled": True,
    "httpServerHost": "127.0.0.1",
    "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
    "autoRecoveryDaemonEnabled": True,
}
#: The same answer; the same keys and types; the same keys' types, where keys are names of things.
SAME, SHAPE, VALUES = "same", "shape", "values"


class Case(NamedTuple):
    """One request, and how far both answers agree."""

    request: str
    how: str
    body: Mapping[str, Any] | None = None
    #: It is about one bookie.
    of_bookie: bool = False


CASES = (
    Case("GET config/server_config", VALUES, of_bookie=True),
    Case("GET ledger/list", SAME),
    Case("GET ledger/metadata?ledger_id={closed}", SAME),
    Case("GET ledger/read?ledger_id={closed}", SAME),
    Case("GET ledger/read?ledger_id={closed}&page=1", SAME),
    Case("GET ledger/read?ledger_id={closed}&start_entry_id=1&end_entry_id=1", SAME),
    Case("GET bookie/list_bookies", SAME),
    Case("GET bookie/list_bookies?type=rw&print_hostnames=true", SAME),
    Case("GET bookie/list_bookies?type=ro", SAME),
    Case("GET bookie/list_bookie_info", VALUES),
    Case("GET bookie/cluster_info", SAME),
    Case("GET bookie/info", SHAPE, of_bookie=True),
    Case("GET bookie/last_log_mark", VALUES, of_bookie=True),
    Case("GET bookie/list_disk_file", SHAPE, of_bookie=True),
    Case("GET bookie/list_disk_file?file_type=journal", SHAPE, of_bookie=True),
    Case("GET bookie/list_disk_file?file_type=entrylog", SHAPE, of_bookie=True),
    Case("GET bookie/list_disk_file?file_type=index", SHAPE, of_bookie=True),
    Case("GET bookie/gc", SHAPE, of_bookie=True),
    Case("PUT bookie/gc", VALUES, of_bookie=True),
    Case("PUT bookie/gc", VALUES, {"forceMajor": True, "forceMinor": True}, of_bookie=True),
    Case("GET bookie/gc_details", SHAPE, of_bookie=True),
    Case("PUT bookie/gc/suspend_compaction", VALUES, {"suspendMajor": True, "suspendMinor": True},
         of_bookie=True),
    Case("GET bookie/gc/suspend_compaction", SAME, of_bookie=True),
    Case("PUT bookie/gc/resume_compaction", VALUES, {"resumeMajor": True, "resumeMinor": True},
         of_bookie=True),
    Case("GET bookie/gc/suspend_compaction", SAME, of_bookie=True),
    Case("GET bookie/entry_location_compact", VALUES, of_bookie=True),
    Case("GET bookie/state", SAME, of_bookie=True),
    Case("GET bookie/state/readonly", SAME, of_bookie=True),
    Case("PUT bookie/state/readonly", SAME, {"readOnly": True}, of_bookie=True),
    Case("GET bookie/state", SAME, of_bookie=True),
    Case("GET bookie/state/readonly", SAME, of_bookie=True),
    Case("PUT bookie/state/readonly", SAME, {"readOnly": False}, of_bookie=True),
    Case("GET bookie/sanity", SAME, of_bookie=True),
    Case("GET bookie/is_ready", SAME, of_bookie=True),
    Case("PUT autorecovery/status?enabled=false", SAME),
    Case("GET autorecovery/status", SAME),
    Case("PUT autorecovery/status?enabled=true", SAME),
    Case("PUT autorecovery/lost_bookie_recovery_delay", SAME, {"delay_seconds": 7}),
    Case("GET autorecovery/lost_bookie_recovery_delay", SAME),
    Case("PUT autorecovery/trigger_audit", SAME),
    Case("GET autorecovery/who_is_auditor", SAME),
    Case("PUT autorecovery/bookie", SAME, {"bookie_src": ["{lost}"]}),
    Case("PUT autorecovery/decommission", SAME, {"bookie_src": "{lost}"}),
    # Of a ledger of each one's own, since it is gone after that.
    Case("DELETE ledger/delete?ledger_id={deleted}", VALUES),
)  # fmt: skip
#: What a Java bookie does or pretends to do, and ours says that it does not.
REFUSED = {
    "PUT config/server_config": "options-are-fixed",
    "PUT bookie/expand_storage": "restart-needed",
    "PUT bookie/entry_location_compact": "nothing-to-compact",
}
#: Both answer 404 while nothing is under-replicated, ours with a problem object.
EMPTY = "GET autorecovery/list_under_replicated_ledger"


def test_every_endpoint_is_compared():
    compared = {case.request.partition("?")[0] for case in CASES} | REFUSED.keys() | {EMPTY}
    ours = {
        f"{each.method} {each.path.removeprefix('/api/v1/')}"
        for each in all_endpoints()
        if each.is_lenient
    }
    assert compared == ours
    assert len(ours) > 30


def shape_of(value: object, *, names_too: bool) -> object:
    """Return a value's keys and types; types alone where keys are names of things."""
    if isinstance(value, dict):
        if names_too:
            return {name: shape_of(each, names_too=True) for name, each in value.items()}
        return "object of " + ", ".join(sorted({type(each).__name__ for each in value.values()}))
    if isinstance(value, list):
        return [shape_of(each, names_too=names_too) for each in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else (
        type(value).__name__
    )  # fmt: skip


def content(answer: httpx.Response) -> object:
    """Return an answer's JSON, or its text; passwords are the one thing that ours leaves out."""
    try:
        found = json.loads(answer.text)
    except ValueError:
        return answer.text
    for row in found.values() if isinstance(found, dict) else ():
        if isinstance(row, dict):
            row.pop("password", None)
            row.pop("hasPassword", None)
    return found


async def _both(case: Case, java: httpx.AsyncClient, ours: Any, names: dict[str, str]) -> str:
    """Ask both; return where they differ, empty where they agree as far as the case says."""
    method, path = case.request.split(" ")
    path = f"/api/v1/{path}"
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    body = None
    if case.body is not None:
        body = json.dumps(case.body).replace("{lost}", names["lost"])
    mine_path = path.replace("{deleted}", names["second"])
    if case.of_bookie:
        mine_path += f"{'&' if '?' in path else '?'}bookie={names['own']}"
    # Ours first: a Java bookie answers the same whether there is something left to do or not.
    mine = await ours.request(method, mine_path, content=body)
    while "running" in (await ours.get("/api/v2/jobs")).text:
        await asyncio.sleep(0.1)
    theirs = await java.request(method, path.replace("{deleted}", names["first"]), content=body)
    left, right = content(theirs), content(mine)
    if case.how != SAME:
        left = shape_of(left, names_too=case.how == SHAPE)
        right = shape_of(right, names_too=case.how == SHAPE)
    if (theirs.status_code, left) == (mine.status_code, right):
        return ""
    return f"{theirs.status_code} {left!r} and {mine.status_code} {right!r}"


async def test_each_answer_is_that_of_a_java_bookie(new_cluster):
    cluster = await new_cluster()
    port = free_port()
    await cluster.start_java(httpServerPort=port, **HTTP)
    own = await cluster.start_own()
    sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    async with quorumbook.connect(cluster.uri) as bk:
        # Text: of other bytes the peer makes what JSON cannot hold.
        ids = []
        for _ in range(3):
            async with bk.create_ledger(**sizes, custom_metadata={"app": b"http"}) as ledger:
                await ledger.append(b"hello")
                await ledger.append(b"again")
            ids.append(str(ledger.id))
    lost = await cluster.start_own()  # now, so that no ledger's only replica is there
    names = dict(zip(("closed", "first", "second"), ids, strict=True), own=own, lost=lost)
    await cluster.kill(lost)
    async with (
        served(SimpleNamespace(metadata_uri=cluster.uri)) as admin,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as java,
    ):
        while (await java.get("/api/v1/autorecovery/who_is_auditor")).status_code != 200:
            await asyncio.sleep(0.1)
        while lost in (await java.get("/api/v1/bookie/list_bookies")).text:
            await asyncio.sleep(0.1)
        differ = {}
        for case in CASES:
            if said := await _both(case, java, admin.http, names):
                differ[case.request] = said
        assert differ == {}
        assert (await java.get("/" + "api/v1/" + EMPTY.split()[1])).status_code == 404
        answer = await admin.http.get("/api/v1/" + EMPTY.split()[1])
        problem(answer, 404, "none-under-replicated")
        for request, code in REFUSED.items():
            method, path = request.split()
            asked = await admin.http.request(method, f"/api/v1/{path}?bookie={own}")
            problem(asked, 409, code)
