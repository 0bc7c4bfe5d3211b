"""Canaries instead of secrets, looked for in the command lines of the processes that we start.

Whoever has a login on a machine can read them; a process's environment only its owner can.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from quorumbook.cli import bench
from quorumbook.cli.call import Call
from quorumbook.cli.cluster.supervisor import BookieProcess, RecoveryProcess
from quorumbook.cli.demo import commands as demo
from quorumbook.config import load
from quorumbook.config.schema import OPTIONS
from quorumbook.options import Kind, Option

SECRET, PLACE = "canary-of-a-secret", "canary-of-a-place"


class _Caught(BaseException):
    """A process would have been started."""


def _call() -> Call:
    return Call(
        config_file=None,
        overrides=[f"client.auth_settings={SECRET}"],
        is_verbose=True,
        metadata=f"sqlite:////{PLACE}/metadata.db",
    )


def _child(kind: type[Any]) -> Callable[[Call, str], Awaitable[Any]]:
    async def start(call: Call, directory: str) -> None:
        await kind("child", call.environment(), directory, call.forwarded()).start()

    return start


STARTS: dict[str, Callable[[Call, str], Awaitable[Any]]] = {
    "a bookie": _child(BookieProcess),
    "auto-recovery": _child(RecoveryProcess),
    # What a command starts, without the command.
    "the writer of bench tail": lambda call, _: bench._tail(
        call, entry_size=1, count=1, in_flight=1, rate=1
    ),
    # What a command starts, without the command.
    "the reader of demo": lambda call, _: demo._read_elsewhere(call, demo.Story(ledger_id=1)),
}


@pytest.mark.parametrize("what", STARTS)
async def test_what_a_process_starts_has_no_secret_in_its_command_line(
    what: str, monkeypatch: Any, tmp_path: Path
) -> None:
    started: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    async def catch(*words: str, **options: Any) -> None:
        started.append((words, options))
        raise _Caught

    monkeypatch.setattr(asyncio, "create_subprocess_exec", catch)
    call = _call()
    with pytest.raises(_Caught):
        await STARTS[what](call, str(tmp_path))
    [(words, options)] = started
    for secret in (SECRET, PLACE):
        assert secret not in "\0".join(words)
    # It is told all the same.
    told = load(environment=options["env"])
    assert told.text("client.auth_settings") == SECRET
    assert told.text("metadata.uri") == call.metadata_uri


def test_what_spark_is_started_with_has_no_secret_in_its_command_line(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    # Both are Spark's and Java's in name only: the first keeps its words, and ends.
    for name, script in (
        ("spark-submit", f'printf \'%s\\0\' "$0" "$@" > {tmp_path}/words; exit 1'),
        ("java", "echo 'openjdk version \"17.0.1\"' >&2"),
    ):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("QUORUMBOOK_", "PYSPARK_"))},
        "SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path),
    }  # fmt: skip
    uri = f"sqlite:///{tmp_path}/{PLACE}.db"
    words = ["spark", "register", "a", "--metadata", uri, "--set", f"client.auth_settings={SECRET}"]
    done = subprocess.run(
        [sys.executable, "-m", "quorumbook", *words], cwd=tmp_path, env=environment,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    started = (tmp_path / "words").read_text().split("\0")
    assert "spark.sql.session.timeZone=UTC" in started, done.stderr
    for secret in (SECRET, PLACE):
        assert secret not in "\0".join(started)


def _other(option: Option) -> str:
    """Return a value that is not the option's default, as people write it."""
    if option.choices:
        return str(option.choices[-1])
    match option.kind:
        case Kind.SWITCH:
            return str(not option.default).lower()
        case Kind.LIST:
            return "a, b"
        case Kind.LABELS:
            return "a=b, c=d"
        case Kind.TEXT | Kind.PLUG_IN | Kind.PROGRAM:
            return "some text, with = and \N{EURO SIGN}"
    low = option.minimum if option.minimum is not None else 1
    value = low + 1 if low == option.default else low
    return f"{value:.12g}"


def test_a_child_gets_every_option_by_its_environment() -> None:
    for option in OPTIONS:
        overrides = {option.key: _other(option)}
        if option.key == "tls.require":
            overrides["tls.enabled"] = "true"
        elif option.key.endswith(("ensemble_size", "quorum_size")):
            sizes = {"ensemble_size": 3, "write_quorum_size": 2, "ack_quorum_size": 1}
            overrides = {f"client.{name}": str(size) for name, size in sizes.items()}
        given = load(environment={}, overrides=[f"{k}={v}" for k, v in overrides.items()])
        told = load(environment=given.variables("--set"))
        assert {s.option.key: s.value for s in told} == {s.option.key: s.value for s in given}
        assert {s.option.key for s in told if not s.is_default} == {*overrides}


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        pytest.skip("needs /proc to find child processes")
    return [int(child) for child in children]


def test_no_command_line_of_a_standalone_cluster_has_what_was_set(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}
    words = ["standalone", "--ephemeral", "--bookies", "1", "-o", "json",
             "--set", f"client.auth_settings={SECRET}"]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "quorumbook", *words], cwd=tmp_path, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            uri = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")["metadata"]
            children = _family(process.pid)
            assert len(children) == 3  # a bookie, auto-recovery, the console
            for child in children:
                line = Path(f"/proc/{child}/cmdline").read_text()
                assert SECRET not in line
                assert uri not in line
                # Only its owner can read this.
                assert SECRET in Path(f"/proc/{child}/environ").read_text()
                assert Path(f"/proc/{child}/environ").stat().st_mode & 0o077 == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
