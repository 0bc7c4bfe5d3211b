"""A bookie that strangers can use says so at its start, in one line that names what to set."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bookie_harness import cluster, options_in, running

from quorumbook.bookie.connections.exposure import exposure
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env, TlsOptions
from quorumbook.env.machine import RealNetwork

LOOPBACK = ("127.0.0.1", "127.3.2.1", "::1")
BEYOND = ("0.0.0.0", "::", "192.168.1.7", "fe80::1%eth0", "2001:db8::1")
OFFERED = TlsOptions(certificate_file="c", key_file="k", ca_file="a")
DEMANDED = dataclasses.replace(OFFERED, require=True)
MUTUAL = dataclasses.replace(DEMANDED, client_authentication=True)
#: What is set, and the options that a warning names.
CASES: list[tuple[TlsOptions | None, str, set[str]]] = [
    (None, "", {"tls.enabled", "tls.require", "tls.certificate_file", "tls.key_file",
                "bookie.auth_plugin", "tls.client_authentication"}),
    (None, "shared-secret",
     {"tls.enabled", "tls.require", "tls.certificate_file", "tls.key_file"}),
    (OFFERED, "", {"tls.require", "bookie.auth_plugin", "tls.client_authentication"}),
    (OFFERED, "shared-secret", {"tls.require"}),
    (dataclasses.replace(OFFERED, client_authentication=True), "",
     {"tls.require", "bookie.auth_plugin", "tls.client_authentication"}),
    (DEMANDED, "", {"bookie.auth_plugin", "tls.client_authentication"}),
    (DEMANDED, "shared-secret", set()),
    (MUTUAL, "", set()),
    (MUTUAL, "certificate-role", set()),
]  # fmt: skip


@pytest.mark.parametrize(("tls", "plugin", "named"), CASES)
def test_what_is_missing_is_named_and_nothing_else(
    tls: TlsOptions | None, plugin: str, named: set[str], tmp_path: Path
) -> None:
    options = options_in(tmp_path, tls=tls, auth_plugin=plugin)
    for address in BEYOND:
        warning = exposure(options, [*LOOPBACK, address]) or ""
        words = warning.replace(",", " ").replace(";", " ").replace("(", " ").replace(")", " ")
        assert {w for w in words.split() if w.startswith(("tls.", "bookie."))} == named
        assert (address in warning) is bool(named)
        assert "\n" not in warning
        assert "127.0.0.1" not in warning
    assert exposure(options, LOOPBACK) is None


class Pretending(RealNetwork):
    """Listens on loopback, and says that it is another address."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Server:
        server = await super().listen(host, port, factory)
        own_port = server.sockets[0].getsockname()[1]
        socket = SimpleNamespace(getsockname=lambda: (self.address, own_port))
        pretended: Any = SimpleNamespace(sockets=[socket], close=server.close)
        return pretended


@pytest.mark.parametrize(("address", "count"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
async def test_a_bookie_that_strangers_can_use_says_so_once_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str, count: int
) -> None:
    async with cluster() as store:
        bookie = Bookie(Env(network=Pretending(address)), options_in(tmp_path), store)
        async with running(bookie):
            said = [r for r in caplog.records if "without TLS" in r.getMessage()]
            assert [(r.levelname, r.name) for r in said] == [
                ("WARNING", "quorumbook.bookie")
            ] * count
