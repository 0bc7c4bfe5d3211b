"""The start of the command line is cheap: what a command does not need is not imported."""

from __future__ import annotations

import os
import subprocess
import sys

from quorumbook.cli.lines import groups_of_lines

HEAVY = ("google.protobuf", "rich", "uvloop", "sqlite3", "asyncio", "quorumbook.client")


def _imported(words):
    code = f"import sys; from quorumbook.cli.main import main; main({words!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_imports_no_command():
    assert _imported(["--help"]).isdisjoint(HEAVY)
    assert not any(name.startswith("quorumbook.cli.l") for name in _imported(["--help"]))


def test_showing_the_configuration_needs_neither_client_nor_protobuf():
    imported = _imported(["config", "show"])
    assert imported.isdisjoint({"google.protobuf", "rich", "uvloop", "quorumbook.client.client"})


def test_a_thread_that_computes_does_not_keep_the_interpreter_from_the_loop():
    code = (
        "import sys; from quorumbook.cli.call import Call\n"
        "async def main(): print(sys.getswitchinterval() <= 0.0005)\n"
        "Call.run(object.__new__(Call), main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


async def test_lines_of_several_files_follow_each_other(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    (tmp_path / "b").write_bytes(b"three\r\n\nlast")
    paths = [os.fspath(tmp_path / name) for name in ("a", "b")]
    lines = [line async for group in groups_of_lines(paths) for line in group]
    assert lines == [b"one", b"two", b"three\r", b"", b"last"]


async def test_a_line_longer_than_a_chunk_stays_whole(tmp_path):
    long = b"x" * 700_000
    (tmp_path / "a").write_bytes(long + b"\nshort\n")
    lines = [line async for group in groups_of_lines([str(tmp_path / "a")]) for line in group]
    assert lines == [long, b"short"]
