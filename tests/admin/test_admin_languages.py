"""Other languages: the examples of Go, JavaScript and the shell, as they are run by hand."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import httpx
import pytest

import quorumbook
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.testing import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "http"
LANGUAGES = {
    "shell": (("sh", "curl", "jq"), ("sh", "orders.sh")),
    "javascript": (("node",), ("node", "orders.mjs")),
    "go": (("go",), ("go", "run", "orders.go")),
}


async def _run(words: tuple[str, ...], url: str, token: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *words, url, cwd=EXAMPLES, env={**os.environ, "TOKEN": token},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.timeout(600)  # Go compiles its library where nobody has
async def test_each_language_appends_once_and_consumes_with_twenty_lines(tmp_path):
    path = str(tmp_path / "tokens.json")
    token, _ = TokenFile(path).add("shop", Role.OPERATOR, lifetime_s=None)
    async with LocalCluster(bookies=3) as cluster:
        uri = cluster.metadata_uri
        service = Service(
            ServiceOptions(uri, connect=lambda: quorumbook.connect(uri), token_file=path)
        )
        server = AdminServer(AdminOptions(port=0, token_file=path), service)
        await server.start()
        try:
            before = 0
            for language, (needed, words) in LANGUAGES.items():
                missing = [each for each in needed if shutil.which(each) is None]
                assert not (missing and "CI" in os.environ), missing
                if missing:
                    continue
                said = (await _run(words, server.url, token)).splitlines()
                assert said[0] == "duplicate: false", said
                while f'{{"from":"{language}"}}' not in said:
                    # A group takes what readers may see, which a record is a little later.
                    again = (await _run(words, server.url, token)).splitlines()
                    assert again[0] == "duplicate: true", again
                    said += again
                before += 1
                counts = [int(line.split()[1]) for line in said if line.startswith("acknow")]
                assert sum(counts) == before, said
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
                body = {"records": [{"text": "again"}]}
                params = {"partition": 0, "producer": "shell", "sequence": 0}
                answer = await http.post(
                    "/api/v2/streams/orders/records", params=params, json=body
                )  # fmt: skip
                assert answer.json()["appended"][0]["duplicate"] is True
        finally:
            await server.stop()
