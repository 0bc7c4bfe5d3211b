"""``bookie run --processes``: several bookies of one machine, as a service runs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from doubles.ports import free_ports
from doubles.waiting import until
from quorumbook import sync

SHAPE = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}


def wait(condition, what):
    asyncio.run(until(condition, what))


class Service:
    """One machine's bookies."""

    def __init__(self, directory, *words: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}
        self.log_path = directory / f"log-{len(list(directory.glob('log-*')))}"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quorumbook", "bookie", "run", "-o", "json", *words,
                 "--metadata", f"sqlite:///{directory}/metadata.db"],
                stdout=subprocess.PIPE, stderr=log, env=environment, cwd=directory,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def rows(self) -> list[dict[str, str]]:
        """Return what it says when all serve."""
        text = b""
        while not text.endswith(b"]\n"):
            line = self.process.stdout.readline()
            assert line, self.log
            text += line
        return json.loads(text)

    def children(self) -> list[int]:
        return _children(self.process.pid)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def service(directory, *words: str):
    one = Service(directory, *words)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.stop()
        one.process.stdout.close()


def _children(pid):
    path = f"/proc/{pid}/task/{pid}/children"
    if not os.path.exists(path):
        pytest.skip("needs /proc to find child processes")
    with open(path) as file:
        return [int(child) for child in file.read().split()]


@pytest.fixture
def directory(tmp_path):
    uri = f"sqlite:///{tmp_path}/metadata.db"
    words = [sys.executable, "-m", "quorumbook", "cluster", "init", "--metadata", uri]
    subprocess.run(words, check=True, capture_output=True)
    return tmp_path


def test_bookies_of_a_machine_serve_are_started_again_and_stop_together(directory) -> None:
    first, second = free_ports(2)[0], free_ports(2)[0]
    a_words = ("--processes", "2", "--port", str(first), "--data-dir", "a", "--set",
               "http.enabled=true", "--set", "http.port=0")  # fmt: skip
    b_words = ("--processes", "2", "--port", str(second), "--data-dir", "b", "--set",
               "bookie.machine=b", "--log-format", "json")  # fmt: skip
    with service(directory, *a_words) as a, service(directory, *b_words) as b:
        rows = a.rows()
        assert [row["bookie_id"] for row in rows] == [f"127.0.0.1:{first + i}" for i in (0, 1)]
        for row in rows:
            with urllib.request.urlopen(f"{row['http']}/metrics") as answer:
                assert b"bookie_" in answer.read()
        b_ids = {row["bookie_id"] for row in b.rows()}
        with sync.BookKeeper(f"sqlite:///{directory}/metadata.db") as client:
            kept = []
            for _ in range(12):
                with client.create_ledger(**SHAPE) as ledger:
                    assert len(b_ids & set(ledger.metadata.ensemble)) == 1
                    ledger.append(b"kept")
                    kept.append(ledger.id)
            assert sorted(os.listdir(directory / "a" / "journal")) == ["1", "2"]

            victim = a.children()[0]
            os.kill(victim, signal.SIGKILL)
            wait(lambda: "was killed by signal 9" in a.log, "the end is told")
            wait(lambda: "is there again" in a.log, "it is started again")
            assert len(a.children()) == 2
            for ledger_id in kept:
                with client.open_ledger(ledger_id) as reader:
                    assert [entry.payload for entry in reader.read()] == [b"kept"]
        pids = a.children() + b.children()
        assert (a.stop(), b.stop()) == (0, 0)
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        assert " INFO bookie-2 quorumbook." in a.log
        assert {json.loads(line).get("process") for line in b.log.splitlines()} == {
            "bookie-1", "bookie-2"
        }  # fmt: skip


def test_a_bookie_that_cannot_start_ends_all_with_its_exit_code(directory) -> None:
    first = free_ports(2)[0]
    with service(directory, "--port", str(first + 1), "--data-dir", "alone") as alone:
        assert alone.process.stdout.readline(), alone.log
        with service(directory, "--port", str(first), "--data-dir", "a", "--processes", "2") as a:
            code = a.process.wait(60)
            assert "bookie 2 did not start: exit code" in a.log
            assert "in use" in a.log
        with service(directory, "--port", str(first + 1), "--data-dir", "c") as c:
            assert c.process.wait(60) == code
    with service(directory, "--port", str(first), "--data-dir", "alone", "--processes", "2") as a:
        assert a.process.wait(60) != 0
        assert "holds one bookie that ran without --processes" in a.log


def test_bookies_end_with_a_service_that_was_killed(directory) -> None:
    first = free_ports(2)[0]
    with service(directory, "--port", str(first), "--data-dir", "a", "--processes", "2") as a:
        a.rows()
        pids = a.children()
        a.process.kill()
        a.process.wait()
        wait(lambda: not any(os.path.exists(f"/proc/{p}") for p in pids), "they are gone")


def _get(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


def test_an_admin_service_beside_a_bookie_is_started_again_and_ends_with_it(directory) -> None:
    port, admin = free_ports(2)
    words = ("--port", str(port), "--data-dir", "a", "-o", "jsonl", "--set",
             "admin.in_bookie=true", "--set", f"admin.port={admin}")  # fmt: skip
    with service(directory, *words) as a:
        row = json.loads(a.process.stdout.readline())
        assert row["console"] == f"http://127.0.0.1:{admin}"
        cluster = f"{row['console']}/api/v2/cluster"
        assert [each["bookie_id"] for each in _get(cluster)["bookies"]] == [row["bookie_id"]]
        (beside,) = a.children()
        os.kill(beside, signal.SIGKILL)
        wait(lambda: "admin was killed by signal 9" in a.log, "the end is told")
        wait(lambda: _get(cluster) is not None, "it is started again")
        (beside,) = a.children()
        assert a.stop() == 0
        assert not os.path.exists(f"/proc/{beside}")


def test_a_bookie_serves_although_its_admin_service_cannot_start(directory) -> None:
    port = free_ports(1)[0]
    words = ("--port", str(port), "--data-dir", "a", "-o", "jsonl", "--set",
             "admin.in_bookie=true", "--set", "admin.host=0.0.0.0")  # fmt: skip
    with service(directory, *words) as a:
        row = json.loads(a.process.stdout.readline())
        assert "console" not in row
        assert "the bookie serves without it" in a.log
        assert "admin.token_file" in a.log
        assert a.stop() == 0
