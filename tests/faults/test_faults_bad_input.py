"""What real bookies, and clients and commands on them, say to bad input: one clear error, soon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import quorumbook
from doubles.ports import free_ports
from doubles.warm_command import run_command
from quorumbook.errors import (
    ClusterNotInitializedError,
    ConfigError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    MetadataUnavailableError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    UnauthorizedError,
)
from quorumbook.ids import MAX_FRAME_SIZE_BYTES
from quorumbook.testing import LocalCluster

PATIENCE_S = 60
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}
URI = "sqlite:///m.db"
ONE = ("--ensemble-size", 1, "--write-quorum", 1, "--ack-quorum", 1)
LINES = b"".join(b"line %d\n" % number for number in range(3000))


# Clients ---------------------------------------------------------------------------------------


async def test_a_client_gets_a_typed_error_for_what_it_may_not_do() -> None:
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(password=b"secret")
        await ledger.append(b"kept")
        with pytest.raises(LocalProtocolError, match="split it"):
            await ledger.append(bytes(MAX_FRAME_SIZE_BYTES))
        await ledger.append(b"the writer goes on")
        with pytest.raises(UnauthorizedError):
            await bk.open_ledger(ledger.id, password=b"wrong")
        async with bk.open_ledger(ledger.id, password=b"secret") as reader:
            assert [e.payload async for e in reader.read()] == [b"kept", b"the writer goes on"]
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"too late")
        await ledger.abort()
        closed = await bk.create_ledger()
        await closed.close()
        with pytest.raises(LedgerClosedError):
            await closed.append(b"too late")
        for operation in (bk.open_ledger(999), bk.delete_ledger(999), bk.ledger_metadata(999)):
            with pytest.raises(NoSuchLedgerInMetadataError) as caught:
                await operation
            assert "999" in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("zk://127.0.0.1:1/ledgers", MetadataUnavailableError),
        ("etcd://127.0.0.1:1", ConfigError),
        ("sqlite:////nowhere/m.db", ClusterNotInitializedError),
        ("memory://nobody-made-this", ClusterNotInitializedError),
        ("nonsense", ConfigError),
    ],
)
async def test_a_client_of_metadata_that_nobody_serves_is_told_at_once(
    uri: str, kind: type[QuorumbookError]
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(kind):
            async with quorumbook.connect(uri):
                pass


@pytest.mark.faults
async def test_with_three_bookies_and_one_killed_adds_go_on_and_nothing_is_lost() -> None:
    async with LocalCluster(bookies=3, processes=True) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger()
        pending = [ledger.append_nowait(b"%d" % number) for number in range(500)]
        await cluster.kill(ledger.metadata.ensemble[0])
        pending += [ledger.append_nowait(b"%d" % number) for number in range(500, 1000)]
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*pending) == list(range(1000))
            assert await ledger.append(b"1000") == 1000
        await ledger.close()
        async with bk.open_ledger(ledger.id) as reader:
            payloads = [entry.payload async for entry in reader.read()]
        assert payloads == [b"%d" % number for number in range(1001)]


# Commands --------------------------------------------------------------------------------------


def _run(directory: Path, *words: object, stdin: bytes = b"") -> subprocess.CompletedProcess:
    there = {**ENVIRONMENT, "QUORUMBOOK_METADATA": URI}
    done = run_command(
        *words, stdin=stdin, environment=there, directory=directory, timeout_s=PATIENCE_S
    )
    assert b"Traceback" not in done.stderr
    return done


def _refused(directory: Path, *words: object, code: int) -> str:
    """Run a command that must end at once with one line; return the line."""
    done = _run(directory, *words)
    line = done.stderr.decode().splitlines()[-1]
    assert done.returncode == code, done
    assert line.startswith("quorumbook: ")
    return line


class OneBookie:
    """A bookie in a process, and a ledger of which it has the only copy."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.current = directory / "d" / "ledgers" / "current"
        self.words = ("bookie", "run", "--data-dir", "d", "--port", free_ports(1)[0], "-o", "jsonl")

    @contextlib.contextmanager
    def running(self, *, kill: bool = False):
        process = subprocess.Popen(
            [sys.executable, "-m", "quorumbook", *map(str, self.words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.directory,
            env={**ENVIRONMENT, "QUORUMBOOK_METADATA": URI},
        )  # fmt: skip
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read().decode()
            json.loads(line)
            yield process
            (process.kill if kill else process.terminate)()
            _, self.log = process.communicate(timeout=PATIENCE_S)
            assert b"Traceback" not in self.log
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def write(self, lines: bytes) -> str:
        done = _run(self.directory, "ledger", "write", *ONE, stdin=lines)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    @property
    def journal(self) -> Path:
        return max((self.directory / "d" / "journal" / "current").glob("*.txn"))

    def refused(self, code: int, words: tuple[object, ...] = ()) -> str:
        return _refused(self.directory, *(words or self.words), code=code)


@pytest.fixture
def one(tmp_path):
    """A cluster of one bookie that is not running."""
    assert _run(tmp_path, "cluster", "init").returncode == 0
    return OneBookie(tmp_path)


def flip(path: Path, position: int, count: int = 16) -> None:
    """Damage some bytes."""
    data = bytearray(path.read_bytes())
    for index in range(position, position + count):
        data[index] ^= 0x5A
    path.write_bytes(data)


@pytest.mark.faults
def test_a_journal_damaged_in_the_middle_is_refused_with_place_and_way_out(one):
    with one.running(kill=True):
        ledger_id = one.write(LINES)
        one.write(b"a second group\n")
    whole = one.journal.read_bytes()
    for position in (0, 2000):
        flip(one.journal, position)
        line = one.refused(1)
        assert one.journal.name in line
        assert "at byte" in line
        assert "start a new bookie" in line
        one.journal.write_bytes(whole)
    with one.running():
        assert _run(one.directory, "ledger", "read", ledger_id).stdout == LINES


@pytest.mark.faults
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_missing_journal_is_refused_with_the_way_out(one, is_killed):
    with one.running(kill=is_killed):
        one.write(LINES)
    one.journal.unlink()
    line = one.refused(1)
    assert "the journal is missing" in line
    assert "start a new bookie" in line


@pytest.mark.faults
def test_a_torn_end_of_the_journal_is_unknown_and_never_absent(one):
    with one.running(kill=True):
        ledger_id = one.write(LINES)
    data = one.journal.read_bytes().rstrip(b"\0")
    one.journal.write_bytes(data[: len(data) // 2])
    open_id = _run(one.directory, "ledger", "create", *ONE).stdout
    assert open_id == b""  # no bookie is there to hold it
    with one.running():
        done = _run(one.directory, "ledger", "read", ledger_id)
        assert LINES.startswith(done.stdout)
        assert done.returncode in (3, 4)
        assert done.stderr.count(b"\n") == 1
    assert b"is damaged at byte" in one.log


@pytest.mark.faults
@pytest.mark.parametrize("what", ["header", "middle", "lost"])
def test_a_damaged_index_is_rebuilt_and_said_so(one, what):
    with one.running():
        ledger_id = one.write(LINES)
    index = one.current / "index.sqlite"
    if what == "lost":
        index.unlink()
    else:
        flip(index, 0 if what == "header" else 4096, 8192)
    with one.running():
        assert _run(one.directory, "ledger", "read", ledger_id).stdout == LINES
    assert b"rebuilt from the entry logs" in one.log


@pytest.mark.faults
def test_a_damaged_entry_log_is_an_error_and_never_other_bytes(one):
    with one.running():
        ledger_id = one.write(LINES)
    log = max(one.current.glob("*.log"), key=lambda path: path.stat().st_size)
    flip(log, log.stat().st_size // 2)
    with one.running():
        done = _run(one.directory, "ledger", "read", ledger_id)
        assert done.returncode == 4
        assert LINES.startswith(done.stdout)
        assert done.stderr.count(b"\n") == 1
        assert b"quorumbook bookie ls" in done.stderr
    assert b"are damaged: entry log" in one.log


@pytest.mark.faults
@pytest.mark.parametrize("how", ["truncated", "garbage", "lost"])
def test_a_damaged_copy_of_the_ledger_states_costs_nothing(one, how):
    with one.running():
        ledger_id = one.write(LINES)
    states = one.current / "ledger-states"
    if how == "lost":
        states.unlink()
    else:
        states.write_bytes(states.read_bytes()[:10] if how == "truncated" else b"garbage" * 9)
    with one.running():
        assert _run(one.directory, "ledger", "read", ledger_id).stdout == LINES


@pytest.mark.faults
def test_a_mark_that_claims_too_much_loses_no_acknowledged_entry(one):
    with one.running():
        one.write(b"checkpointed\n")
    with one.running(kill=True):
        ledger_id = one.write(LINES)
    mark = one.current / "lastMark"
    journal_id, offset = struct.unpack(">qq", mark.read_bytes())
    newest = int(one.journal.stem, 16)
    data = one.directory / "d"
    killed = shutil.copytree(data, one.directory / "killed")
    for journals, size_bytes in ((0, 512), (0, 1_000_000), (1, 0), (100, 0)):
        shutil.rmtree(data)
        shutil.copytree(killed, data)
        ahead = max(journal_id, newest) + journals, offset + size_bytes
        mark.write_bytes(struct.pack(">qq", *ahead))
        for _ in range(2):
            with one.running():
                found = _run(one.directory, "ledger", "read", ledger_id).stdout
            assert found == LINES, ahead


@pytest.mark.faults
def test_a_mark_that_is_none_is_refused_with_what_to_do(one):
    with one.running(kill=True):
        ledger_id = one.write(LINES)
    mark = one.current / "lastMark"
    mark.write_bytes(b"abc")
    line = one.refused(1)
    assert "lastMark" in line
    assert "remove the file" in line
    mark.unlink()
    with one.running():
        assert _run(one.directory, "ledger", "read", ledger_id).stdout == LINES


@pytest.mark.faults
def test_a_damaged_cookie_is_refused_with_what_to_do(one):
    with one.running():
        ledger_id = one.write(LINES)
    cookie = one.current / "VERSION"
    flip(cookie, 3, 3)
    line = one.refused(5)
    assert str(Path("d") / "ledgers") in line
    assert "copy VERSION from" in line
    shutil.copy(one.directory / "d" / "journal" / "current" / "VERSION", cookie)
    with one.running():
        assert _run(one.directory, "ledger", "read", ledger_id).stdout == LINES


@pytest.mark.faults
def test_the_directory_of_another_cluster_is_refused_with_what_to_do(one):
    with one.running():
        one.write(LINES)
    other = "sqlite:///other.db"
    assert _run(one.directory, "cluster", "init", "--metadata", other).returncode == 0
    line = _refused(one.directory, *one.words, "--metadata", other, code=5)
    assert "the --metadata URI of cluster" in line
    with one.running():  # where it belongs it still starts
        pass


def test_a_cookie_that_does_not_fit_is_refused_with_the_options_that_do(one):
    with one.running():
        ledger_id = one.write(LINES)
    for another in (("--port", free_ports(1)[0]), ("--data-dir", "e")):
        words = (*one.words, *another)
        line = one.refused(code=5, words=words)
        fix = re.search("the same command with (.*) starts", line)
        one.words = (*words, *shlex.split(fix[1].replace(" and ", " ")))
        with one.running():
            assert _run(one.directory, "ledger", "read", ledger_id).stdout == LINES


@pytest.mark.parametrize(
    ("uri", "code", "fix"),
    [
        ("zk://127.0.0.1:1/ledgers", 4, "check --metadata"),
        ("sqlite:///none.db", 3, "quorumbook cluster init --metadata sqlite:///none.db"),
        ("sqlite:///garbage.db", 1, "check --metadata"),
        ("memory://nobody", 2, "use sqlite:///FILE"),
        ("nonsense", 2, "known are sqlite:///FILE"),
    ],
)
def test_a_metadata_uri_that_nobody_serves_is_one_line_with_the_fix(tmp_path, uri, code, fix):
    (tmp_path / "garbage.db").write_bytes(b"garbage" * 1000)
    reading = ("ledger", "ls")
    serving = ("bookie", "run", "--data-dir", "d", "--port", free_ports(1)[0])
    others = (
        ("ledger", "write", "/dev/null"),
        ("ledger", "read", "1"),
        ("bookie", "ls"),
        ("bench", "write", "--count", 1),
    )
    for words in (reading, serving, *(others if uri == "sqlite:///none.db" else ())):
        done = _run(tmp_path, *words, "--metadata", uri)
        assert done.returncode == code, (words, done)
        assert done.stderr.count(b"\n") == 1, (words, done)
        assert fix.encode() in done.stderr
    assert not (tmp_path / "d" / "ledgers").exists()


def test_a_port_that_is_taken_is_one_line_for_bookies_and_for_their_health(one):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("bookie", "run", "--data-dir", "d", "--port")
        assert "choose another" in _refused(one.directory, *words, port, code=2)
        line = _refused(
            one.directory, *words, free_ports(1)[0], "--set", f"http.port={port}", code=2
        )
        assert "http.port" in line


@pytest.mark.faults
def test_an_entry_beyond_the_limit_is_one_line(one):
    with one.running():
        done = _run(
            one.directory, "ledger", "write", *ONE, stdin=b"x" * (MAX_FRAME_SIZE_BYTES + 1) + b"\n"
        )
        assert done.returncode == 2
        assert b"split it" in done.stderr.splitlines()[-1]
