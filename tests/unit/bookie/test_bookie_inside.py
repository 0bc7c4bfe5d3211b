"""What a bookie tells of its inside over HTTP: state, space, marks, files, numbers, options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bookie_harness import ask_http, cluster, real_bookie

import quorumbook
from doubles.waiting import until
from quorumbook.bookie.options import HttpOptions
from quorumbook.bookie.pages import GUARDED
from quorumbook.bookie.server import Bookie

ROOT = "/api/v1/bookie"


async def get(bookie: Bookie, path: str) -> Any:
    assert bookie.http_port is not None
    status, text = await ask_http(bookie.http_port, f"GET {ROOT}/{path} HTTP/1.1\r\n\r\n")
    assert status == 200, text
    return json.loads(text)


async def test_what_a_bookie_is_made_of_under_the_peers_names(tmp_path: Path) -> None:
    async with cluster("inside") as store:
        how: dict[str, Any] = {"bookie_id": "b", "http": HttpOptions()}
        async with real_bookie(tmp_path, store, **how) as bookie:
            async with quorumbook.connect("memory://inside") as bk:
                async with bk.create_ledger(
                    ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
                ) as writer:
                    await writer.append(b"x" * 100)
            await bookie.storage.flush()
            space = await get(bookie, "info")
            assert 0 < space["freeSpace"] < space["totalSpace"]
            files = await get(bookie, "list_disk_file")
            assert files["index files"] == "index.sqlite\t"
            (journal,) = files["journal files"].split()
            (mark,) = (await get(bookie, "last_log_mark")).items()
            assert mark[0].endswith(f"({journal})")
            assert mark[1].startswith("Pos - ")
            (log,) = (await get(bookie, "list_disk_file?file_type=entrylog")).values()
            assert log.strip().endswith(".log")
            numbers = await get(bookie, "storage")
            assert numbers["journal_groups@0"] >= 1
            assert numbers["write_cache_bytes"] == 0
            running = {
                "running": True, "readOnly": False, "shuttingDown": False,
                "availableForHighPriorityWrites": True,
            }  # fmt: skip
            assert await get(bookie, "state") == running
            await bookie.operators_word.set("a test")
            assert (await get(bookie, "state"))["readOnly"] is True
            port = bookie.http_port or 0
            for request, status in (("PUT", "info"), 405), (("GET", "state/other"), 404):
                line = f"{request[0]} /api/v1/bookie/{request[1]} HTTP/1.1\r\n\r\n"
                assert (await ask_http(port, line))[0] == status


async def test_s100_options_that_differ_are_told_and_where_secrets_are_is_not(
    tmp_path: Path,
) -> None:
    token = tmp_path / "canary"
    token.write_text("t" * 40)
    token.chmod(0o600)
    http = HttpOptions(token_file=str(token), names=("balancer",))
    async with cluster() as store, real_bookie(tmp_path, store, http=http) as bookie:
        await until(lambda: bookie.is_ready)
        rows = (await get(bookie, "options"))["options"]
        found = {row["option"]: row["value"] for row in rows}
        assert found["http.names"] == "balancer"
        assert found["storage.write_cache_size_bytes"] == str(4 << 20)
        assert "http.token_file" not in found
        assert "canary" not in json.dumps(rows)
        assert all(row["value"] != row["default"] and row["help"] for row in rows)
    assert {f"{ROOT}/options", f"{ROOT}/slow"} <= set(GUARDED)
