"""One cluster, and the HTTP API on it, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

import quorumbook
from quorumbook.admin.access.gate import Gate
from quorumbook.admin.access.roles import Role
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.http.app import App
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.server import all_endpoints
from quorumbook.testing import LocalCluster

URL = "http://127.0.0.1:8085"


@dataclass
class Served:
    """A server without a network, and the cluster behind it."""

    cluster: LocalCluster
    service: Service
    gate: Gate
    app: App
    http: httpx.AsyncClient

    def with_token(self, token: str) -> httpx.AsyncClient:
        return client_of(self.app, {"Authorization": f"Bearer {token}"})


def client_of(app: App, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app.starlette(), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=URL, headers=headers, timeout=60)


@contextlib.asynccontextmanager
async def served(cluster: LocalCluster, token_file: str = "") -> AsyncIterator[Served]:
    uri = cluster.metadata_uri
    service = Service(
        ServiceOptions(
            metadata_uri=uri, connect=lambda: quorumbook.connect(uri), token_file=token_file
        )
    )
    gate = Gate(service.tokens)
    app = App(service, gate, all_endpoints())
    async with client_of(app) as http:
        try:
            yield Served(cluster, service, gate, app, http)
        finally:
            await service.close()


@pytest.fixture
async def api():
    """A server on loopback without tokens, on three bookies."""
    async with LocalCluster(bookies=3) as cluster, served(cluster) as running:
        yield running


@pytest.fixture
async def guarded(tmp_path):
    """A server with a token of each role, by the role's name."""
    path = str(tmp_path / "tokens.json")
    secrets = {role.word: TokenFile(path).add(role.word, role, lifetime_s=None)[0] for role in Role}
    async with LocalCluster(bookies=1) as cluster, served(cluster, path) as running:
        yield running, secrets


def problem(answer: httpx.Response, status: int, code: str) -> str:
    """Return the detail of a problem that must be of this kind."""
    assert (answer.status_code, answer.headers["content-type"]) == (
        status, "application/problem+json",
    ), answer.text  # fmt: skip
    found = answer.json()
    assert found.keys() == {"type", "title", "status", "detail", "code"}
    assert (found["code"], found["status"]) == (code, status), found
    assert found["type"] == f"urn:quorumbook:{code}"
    return found["detail"]
