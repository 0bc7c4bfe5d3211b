"""The examples do what they say, run as a user runs them; what they kill are processes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.zookeeper import made_root
from quorumbook.testing import LocalCluster

# Many processes one after the other: on a machine that is busy they take their time.
pytestmark = pytest.mark.timeout(300)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["sqlite", "zookeeper"])
def metadata_uri(request: pytest.FixtureRequest) -> Iterator[str]:
    uri = None
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        root = asyncio.run(made_root(server))
        uri = f"zk://{server.address}/ledgers?chroot={root}"
    with LocalCluster(bookies=3, metadata_uri=uri) as cluster:
        yield cluster.metadata_uri


def run(name: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_copies_of_a_sqlite_database_are_identical_whoever_is_killed(metadata_uri: str) -> None:
    lines = run("sqlite_replication.py", "demo", "--metadata", metadata_uri, "--transactions", "75")
    digests = {re.fullmatch(r"\S+ +75 transactions, (\w{16})", line)[1] for line in lines[:3]}
    assert len(digests) == 1
    assert lines[3:] == ["all copies are identical after 6 kills with SIGKILL"]


def test_the_standby_of_a_namenode_takes_over_all_that_was_acknowledged(metadata_uri: str) -> None:
    lines = run("namenode.py", "demo", "--metadata", metadata_uri, "--rounds", "2")
    assert re.fullmatch(
        r"the active node was killed with SIGKILL; the standby was active in \d+ ms", lines[0]
    )
    assert re.fullmatch(r"the active node is alive; the standby was active in \d+ ms", lines[1])
    assert re.fullmatch(
        r"the node that was active is refused: (LocalProtocolError|WriterFencedError)", lines[2]
    )
    assert re.fullmatch(r"24[3-5] edits, all nodes know the same", lines[3])
    assert re.fullmatch(r"takeover: \d+ to \d+ ms from the decision to the first edit", lines[4])


def test_a_statement_that_sqlite_refuses_is_appended_nowhere(tmp_path: Path) -> None:
    with LocalCluster(bookies=3) as cluster:
        words = [str(EXAMPLES / "sqlite_replication.py"), "write", cluster.metadata_uri]
        statements = ["create table t (a integer primary key)", "insert into t values (1)"]
        statements += ["insert into t values (1)", "no sql", "insert into t values (2)"]
        done = subprocess.run(
            [sys.executable, *words, str(tmp_path / "w.db")], input="\n".join(statements),
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
            "writing 0", "committed 0", "committed 1", "refused UNIQUE constraint failed",
            'refused near "no"', "committed 2",
        ]  # fmt: skip
