"""Volume from somebody without a password: a real bookie with few descriptors goes on working."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import quorumbook
from quorumbook.protocol.v3 import client as v3

STRANGERS = 400
SOFT_LIMIT, HARD_LIMIT = 96, 256
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
async def bookie(
    directory: Path, settings: Sequence[str], *, has_uvloop: bool = True
) -> AsyncIterator[tuple[str, int, subprocess.Popen[bytes]]]:
    """Run a bookie that may open few files; yields its metadata URI, its port, and itself."""
    environment = dict(os.environ)
    if not has_uvloop:
        hiding = directory / "hiding"
        hiding.mkdir()
        (hiding / "uvloop.py").write_text("raise ImportError\n")
        environment["PYTHONPATH"] = f"{hiding}:{environment.get('PYTHONPATH', '')}"
    uri = f"sqlite:///{directory}/metadata.db"
    base = [sys.executable, "-m", "quorumbook"]
    subprocess.run([*base, "cluster", "init", "--metadata", uri], check=True, capture_output=True)
    words = [*base, "bookie", "run", "-o", "jsonl", "--metadata", uri, "--port", "0"]
    words += ["--data-dir", str(directory / "data"), "--stop-with-parent", "--set", "http.port=0"]
    for setting in (*SMALL_FILES, *settings):
        words += ["--set", setting]
    with (directory / "bookie.log").open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment,
            preexec_fn=few_descriptors,  # noqa: PLW1509 - nothing but a system call
        )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            yield uri, int(json.loads(line)["bookie_id"].rpartition(":")[2]), process
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
    async with bookie(tmp_path, settings) as (uri, port, _), contextlib.AsyncExitStack() as stack:
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


def burst(port: int, process: subprocess.Popen[bytes], stack: contextlib.ExitStack) -> None:
    """Open connections from many addresses, all of which the bookie finds at once."""
    process.send_signal(signal.SIGSTOP)
    for number in range(STRANGERS):
        stranger = stack.enter_context(socket.socket())
        stranger.setblocking(False)
        stranger.bind((f"127.0.1.{number % 200 + 1}", 0))
        stranger.connect_ex(("127.0.0.1", port))
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("has_uvloop", [True, False])
async def test_a_burst_of_connections_takes_no_descriptor_that_the_storage_needs(
    tmp_path: Path, has_uvloop: bool
) -> None:
    async with (
        bookie(tmp_path, [], has_uvloop=has_uvloop) as (uri, port, process),
        contextlib.AsyncExitStack() as stack,
    ):
        client = await stack.enter_async_context(quorumbook.connect(uri))
        writer = await client.create_ledger(**SOLO)
        for _ in range(30):
            await asyncio.gather(*[writer.append(bytes(100_000)) for _ in range(10)])
        # As many entry logs as may be are open.
        early = await stack.enter_async_context(client.open_ledger(writer.id, recover=False))
        assert len([entry async for entry in early.read(0, 280)]) == 281
        # As many as may be there, and none goes for a stranger: each has just asked something.
        for number in range(HARD_LIMIT // 2 - 10):
            host = f"127.0.0.{number % 5 + 2}"
            answers, asks = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
            stack.callback(asks.close)
            asks.write(v3.encode_bookie_info(1, 0))
            assert await answers.read(4)
        for _ in range(4):
            with contextlib.ExitStack() as strangers:
                burst(port, process, strangers)
                for _ in range(5):
                    await asyncio.gather(*[writer.append(bytes(100_000)) for _ in range(10)])
        await writer.close()
        async with quorumbook.connect(uri) as late, late.open_ledger(writer.id) as reader:
            assert len([entry async for entry in reader.read()]) == 500
    log = (tmp_path / "bookie.log").read_text()
    assert "connections refused or cut, the last of 127.0." in log
    assert log.count("refused or cut") < 50
    for word in ("out of system resource", "Too many open files", "Traceback"):
        assert word not in log
