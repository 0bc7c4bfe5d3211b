"""Health and metrics over HTTP."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from bookie_harness import RawClient, ask_http, cluster, real_bookie, v2_adds

from doubles.waiting import until
from quorumbook.bookie.http.server import OWN_PATHS
from quorumbook.bookie.options import HttpOptions
from quorumbook.config import OPTIONS
from quorumbook.errors import (
    MetadataUnavailableError,
    StorageError,
)
from quorumbook.metadata.memory import memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.v2 import packets as v2


def expire(store: MetadataStore) -> None:
    """End the store's session, as a lease that ran out does."""
    memory_tree(store.uri.removeprefix("memory://")).end_session(store.session_id)


# Health and metrics


async def test_what_is_said_of_a_metric_names_the_samples_below_it(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.http_port is not None
        page = (await ask_http(bookie.http_port, "GET /metrics HTTP/1.1\r\n\r\n"))[1]
    assert "# TYPE bookie_WRITE_BYTES counter\n" in page
    name = ""
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
        elif not line.startswith("#"):
            sample = re.split(r"[ {]", line)[0]
            assert sample in {name, f"{name}_count", f"{name}_sum"}, line


async def test_health_and_metrics_are_served_on_loopback(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        port = bookie.http_port
        assert port is not None
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, range(10)))
        await client.add_codes(10)
        await client.ask(v2.encode_read(1, 0))
        assert await ask_http(port, "GET /heartbeat HTTP/1.1\r\n\r\n") == (200, "OK\n")
        assert (await ask_http(port, "GET /is_ready HTTP/1.1\r\n\r\n"))[0] == 200
        status, text = await ask_http(port, "GET /metrics HTTP/1.1\r\nHost: localhost:1\r\n\r\n")
        assert status == 200
        lines = text.splitlines()
        assert 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"} 10.0' in lines
        assert 'bookkeeper_server_READ_ENTRY_count{success="true"} 1.0' in lines
        assert "bookie_SERVER_STATUS 1.0" in lines
        assert any(line.startswith("bookie_WRITE_BYTES ") for line in lines)
        assert any(line.startswith("bookie_ledger_dir_usage{path=") for line in lines)
        status, text = await ask_http(port, "GET /nothing HTTP/1.1\r\n\r\n")
        assert status == 404
        assert (await ask_http(port, "DELETE /metrics HTTP/1.1\r\n\r\n"))[0] == 405
        assert (await ask_http(port, "rubbish\r\n\r\n"))[0] == 400
        assert (await ask_http(port, "G" * 9000))[0] == 400
        assert await ask_http(port, "HEAD /heartbeat HTTP/1.1\r\n\r\n") == (200, "")
        bookie.disks.storage_full(StorageError("no space left"))
        await until(lambda: bookie.metrics.server_status == 0)
        text = (await ask_http(port, "GET /metrics HTTP/1.1\r\n\r\n"))[1]
        assert "bookie_SERVER_STATUS 0.0" in text.splitlines()


async def test_s100_http_is_for_this_machine_unless_told_and_neither_shows_nor_takes_settings(
    tmp_path: Path,
) -> None:
    (host,) = [option.default for option in OPTIONS if option.key == "http.host"]
    assert host == "127.0.0.1"
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.http_port is not None
        for page in (
            "config/server_config",
            "ledger/delete?ledger_id=1",
            "ledger/read?ledger_id=1",
        ):
            for method in ("GET", "PUT", "DELETE"):
                request = f"{method} /api/v1/{page} HTTP/1.1\r\n\r\n"
                assert (await ask_http(bookie.http_port, request))[0] in (404, 405), request


async def test_s101_no_path_of_a_request_becomes_that_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.http_port is not None
        for path in (
            str(tmp_path / "secret"), "/../secret", "/metrics/../../secret", "/%2e%2e/secret",
            "/api/v1/bookie/gc/../../../secret", "//secret", "/metrics\0/../secret",
        ):  # fmt: skip
            status, text = await ask_http(bookie.http_port, f"GET {path} HTTP/1.1\r\n\r\n")
            assert (status in (400, 404), "canary" in text) == (True, False), path


async def test_who_asks_for_what_there_is_not_is_told_of_every_page_that_there_is(
    tmp_path: Path,
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        status, text = await ask_http(bookie.http_port, "GET /nonsense HTTP/1.1\r\n\r\n")
        assert status == 404
        named = text.removeprefix("there are ").strip().split(", ")
        looked_at = {path for path in named if not path.startswith("PUT ")}
        assert len(named) == len(set(named))
        assert looked_at == {*OWN_PATHS, *(
            page.removeprefix("GET ") for page in bookie.pages if page.startswith("GET ")
        )}  # fmt: skip
        assert {path.removeprefix("PUT ") for path in named} == {*OWN_PATHS, *(
            page.partition(" ")[2] for page in bookie.pages
        )}  # fmt: skip
        for path in looked_at:
            request = f"{path} HTTP/1.1\r\n\r\n"
            assert (await ask_http(bookie.http_port, f"GET {request}"))[0] == 200, path
            # Headers alone.
            assert await ask_http(bookie.http_port, f"HEAD {request}") == (200, ""), path
        for path in set(named) - looked_at:
            for method in ("GET", "HEAD"):
                request = f"{method} {path.removeprefix('PUT ')} HTTP/1.1\r\n\r\n"
                # There is something, only not to be looked at.
                assert (await ask_http(bookie.http_port, request))[0] == 405, path
        for method in ("PUT", "HEAD", "DELETE"):
            request = f"{method} /api/v1/bookie/gc/nonsense HTTP/1.1\r\n\r\n"
            assert (await ask_http(bookie.http_port, request))[0] == 404


async def test_connections_over_the_limit_of_http_are_cut_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        port = bookie.http_port
        assert port is not None
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        for reader, _ in silent[:3]:
            text = (await ask_http(port, "GET /metrics HTTP/1.1\r\n\r\n"))[1]
            # The oldest has gone for this request.
            assert await reader.read() == b""
            silent.append(await asyncio.open_connection("127.0.0.1", port))
        assert "http_connections_cut 3.0" in text.splitlines()
        for _, writer in silent:
            writer.close()
    said = [line for line in caplog.messages if "to the HTTP port cut" in line]
    assert len(said) == 1  # one line in ten seconds
    assert said[0].startswith("1 connections to the HTTP port cut, the last of 127.0.0.1:")


async def test_a_bookie_that_cannot_be_found_is_not_ready(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        port = bookie.http_port
        assert port is not None

        async def refuse(*_: object, **__: object) -> int:
            raise MetadataUnavailableError("the store is away")

        store.renew_session = refuse  # type: ignore[method-assign]
        expire(store)
        await until(lambda: bookie.metrics.server_status == -1)
        assert (await ask_http(port, "GET /is_ready HTTP/1.1\r\n\r\n"))[0] == 503
        assert (await ask_http(port, "GET /heartbeat HTTP/1.1\r\n\r\n"))[0] == 200
        del store.renew_session  # type: ignore[attr-defined]
        await until(lambda: bookie.is_ready)
        assert (await ask_http(port, "GET /is_ready HTTP/1.1\r\n\r\n"))[0] == 200


async def test_metrics_families_have_each_name_once(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        lines = bookie.render_metrics().decode().splitlines()
        names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        for name in ("bookie_journal_JOURNAL_SYNC", "bookie_write_cache_size", "bookie_flush"):
            assert name in names
        assert len(names) == len(set(names))
        assert bookie.http_port is None
