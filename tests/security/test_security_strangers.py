"""Volume from somebody without a password: a real bookie with few descriptors goes on working."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import quorumbook

STRANGERS = 400
SOFT_LIMIT, HARD_LIMIT = 96, 300
SOLO = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
#: With these, 40 MB take dozens of journals and entry logs.
SMALL_FILES = (
    "storage.journal_file_size_bytes=1M",
    "storage.entry_log_size_bytes=1M",
    "storage.write_cache_size_bytes=2M",
)


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, HARD_LIMIT))


@contextlib.asynccontextmanager
async def bookie(directory: Path, settings: Sequence[str]) -> AsyncIterator[tuple[str, int]]:
    """Run a bookie that may open few files; yields its metadata URI and port."""
    uri = f"sqlite:///{directory}/metadata.db"
    base = [sys.executable, "-m", "quorumbook"]
    subprocess.run([*base, "cluster", "init", "--metadata", uri], check=True, capture_output=True)
    words = [*base, "bookie", "run", "-o", "jsonl", "--metadata", uri, "--port", "0"]
    words += ["--data-dir", str(directory / "data"), "--stop-with-parent", "--set", "http.port=0"]
    for setting in (*SMALL_FILES, *settings):
        words += ["--set", setting]
    with (directory / "bookie.log").open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            preexec_fn=few_descriptors,  # noqa: PLW1509 - nothing but a system call
        )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            yield uri, int(json.loads(line)["bookie_id"].rpartition(":")[2])
            assert process.poll() is None, "the bookie has ended"
        finally:
            process.kill()


@pytest.mark.parametrize("is_authenticated", [False, True])
async def test_idle_strangers_take_no_descriptor_that_the_storage_needs(
    tmp_path: Path, is_authenticated: bool
) -> None:
    settings, options = [], {}
    if is_authenticated:
        secret = tmp_path / "secret"
        secret.write_text("writer:" + "s" * 20 + "\n")
        secret.chmod(0o600)
        settings = ["bookie.auth_plugin=shared-secret", f"bookie.auth_settings={secret}"]
        options = {"auth_plugin": "shared-secret", "auth_settings": str(secret)}
    async with bookie(tmp_path, settings) as (uri, port), contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(quorumbook.connect(uri, **options))
        writer = await client.create_ledger(**SOLO)
        await writer.append(b"before")
        for _ in range(STRANGERS):
            _, stranger = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(stranger.close)
        for _ in range(40):
            await asyncio.gather(*[writer.append(bytes(100_000)) for _ in range(10)])
        await writer.close()
        # Who comes now finds a place as well, and every entry log can be opened.
        async with (
            quorumbook.connect(uri, **options) as late,
            late.open_ledger(writer.id) as reader,
        ):
            assert len([entry async for entry in reader.read()]) == 401
    log = (tmp_path / "bookie.log").read_text()
    assert "connections refused or cut, the last of 127.0.0.1" in log
    assert log.count("refused or cut") < 50


def burst(port: int, stack: contextlib.ExitStack) -> int:
    """Open connections all at once, without waiting for any; return how many were begun."""
    for _ in range(STRANGERS):
        stranger = stack.enter_context(socket.socket())
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
    return STRANGERS


async def test_a_burst_of_connections_takes_no_descriptor_that_the_storage_needs(
    tmp_path: Path,
) -> None:
    async with bookie(tmp_path, []) as (uri, port), contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(quorumbook.connect(uri))
        writer = await client.create_ledger(**SOLO)
        await writer.append(b"before")
        for _ in range(4):
            # All of them wait to be accepted when the bookie's loop looks next.
            bursts = stack.enter_context(contextlib.ExitStack())
            assert burst(port, bursts) > HARD_LIMIT
            for _ in range(10):
                await asyncio.gather(*[writer.append(bytes(100_000)) for _ in range(10)])
            bursts.close()
        await writer.close()
        async with quorumbook.connect(uri) as late, late.open_ledger(writer.id) as reader:
            assert len([entry async for entry in reader.read()]) == 401
    log = (tmp_path / "bookie.log").read_text()
    assert "connections refused or cut, the last of 127.0.0.1" in log
    assert log.count("refused or cut") < 50
    for word in ("Too many open files", "Traceback"):
        assert word not in log
