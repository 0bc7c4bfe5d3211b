"""``standalone``, ``bookie run`` and ``demo`` as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

from quorumbook.cli import flights
from quorumbook.cli.ports import free_ports

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}


def _start(directory, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "quorumbook", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=directory,
    )  # fmt: skip


def _run(directory, *words, stdin=b""):
    done = subprocess.run(
        [sys.executable, "-m", "quorumbook", *map(str, words)],
        input=stdin, capture_output=True, env=ENVIRONMENT, cwd=directory, check=False, timeout=100,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr
    return done


@contextlib.contextmanager
def _standalone(directory, *words):
    """Run a standalone cluster; at the end it must stop cleanly."""
    with _start(directory, "standalone", "-o", "json", *words) as process:
        try:
            text = b""
            while not text.rstrip().endswith(b"\n}"):
                line = process.stdout.readline()
                assert line, process.stderr.read().decode()
                text += line
            yield process, json.loads(text)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            if process.poll() is None:
                process.kill()


def _wait(condition, what):
    deadline = time.monotonic() + 60
    while not (result := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return result


def _children(pid):
    path = f"/proc/{pid}/task/{pid}/children"
    if not os.path.exists(path):
        pytest.skip("needs /proc to find child processes")
    with open(path) as file:
        return [int(child) for child in file.read().split()]


def _is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_standalone_keeps_its_data_and_its_bookies_over_a_restart(tmp_path):
    port = free_ports(1)[0]
    with _standalone(tmp_path, "--bookies", 3, "--port", port) as (_, facts):
        ids = facts["bookies"]
        assert len(ids) == 3
        # The default metadata URI is where standalone puts its metadata.
        ledger_id = _run(tmp_path, "ledger", "write", stdin=b"kept\n").stdout.strip().decode()
    with _standalone(tmp_path) as (_, facts):
        assert facts["bookies"] == ids
        assert _run(tmp_path, "ledger", "read", ledger_id).stdout == b"kept\n"


def test_a_bookie_that_dies_is_started_again(tmp_path):
    with _standalone(tmp_path, "--ephemeral") as (process, facts):
        children = _children(process.pid)
        assert len(children) == 3
        os.kill(children[0], signal.SIGKILL)

        def serves_again():
            now = _children(process.pid)
            return len(now) == 3 and children[0] not in now

        _wait(serves_again, "the bookie was not started again")
        uri = facts["metadata"]

        def can_write():
            done = _run(tmp_path, "ledger", "write", "--metadata", uri, stdin=b"x\n")
            return done.returncode == 0

        _wait(can_write, "the cluster takes no ledger")


def test_no_bookie_outlives_a_killed_supervisor(tmp_path):
    with _start(tmp_path, "standalone", "--ephemeral", "-o", "json") as process:
        _wait(lambda: len(_children(process.pid)) == 3, "three children")
        process.stdout.readline()
        children = _children(process.pid)
        process.kill()
        process.wait(60)
        _wait(lambda: all(_is_gone(child) for child in children), "children that live on")


def test_ephemeral_leaves_nothing_behind(tmp_path):
    with _standalone(tmp_path, "--ephemeral") as (_, facts):
        directory = facts["directory"]
        assert os.path.exists(directory)
    assert not os.path.exists(directory)
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_line_with_the_way_out(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = _run(tmp_path, "standalone", "--port", port)
        assert done.returncode == 2
        assert done.stderr.count(b"\n") == 1
        assert b"--port" in done.stderr
        _run(tmp_path, "cluster", "init", "--metadata", "sqlite:///m.db")
        words = ("--metadata", "sqlite:///m.db", "--data-dir", "d", "--port", port)
        done = _run(tmp_path, "bookie", "run", *words)
        assert done.returncode != 0
        assert str(port).encode() in done.stderr


def test_a_start_that_failed_for_its_ports_is_repeated_with_others(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert _run(tmp_path, "standalone", "--port", taken.getsockname()[1]).returncode == 2
    port = free_ports(1)[0]
    with _standalone(tmp_path, "--bookies", 1, "--port", port) as (_, facts):
        assert facts["bookies"] == [f"127.0.0.1:{port}"]


def test_a_second_standalone_on_a_directory_is_told_where_the_first_is(tmp_path):
    port = free_ports(1)[0]
    with _standalone(tmp_path, "--bookies", 1, "--port", port) as (_, facts):
        done = _run(tmp_path, "standalone")
        assert done.returncode == 5
        assert done.stderr.count(b"\n") == 1
        assert facts["metadata"].encode() in done.stderr
        assert b"--data-dir" in done.stderr


def test_a_damaged_list_of_ports_is_refused(tmp_path):
    (tmp_path / "quorumbook-data").mkdir()
    (tmp_path / "quorumbook-data" / "standalone.json").write_text("{]")
    done = _run(tmp_path, "standalone")
    assert done.returncode == 2
    assert b"standalone.json is damaged" in done.stderr


def test_bookie_run_without_a_cluster_names_the_command_that_makes_one(tmp_path):
    words = ("--metadata", "sqlite:///none.db", "--data-dir", "d", "--port", 0)
    done = _run(tmp_path, "bookie", "run", *words)
    assert done.returncode == 3
    assert b"quorumbook cluster init" in done.stderr


def test_a_second_bookie_on_a_directory_is_refused(tmp_path):
    _run(tmp_path, "cluster", "init", "--metadata", "sqlite:///m.db")
    words = ("bookie", "run", "--metadata", "sqlite:///m.db", "--data-dir", "d", "-o", "jsonl")
    ports = free_ports(2)
    with _start(tmp_path, *words, "--port", ports[0]) as first:
        try:
            assert json.loads(first.stdout.readline())["bookie_id"].endswith(str(ports[0]))
            done = _run(tmp_path, *words, "--port", ports[0], "--set", "http.enabled=false")
            assert done.returncode != 0
            first.terminate()
            first.communicate(timeout=60)
            assert first.returncode == 0
        finally:
            if first.poll() is None:
                first.kill()
    # The directory belongs to the bookie on its port; another identity is refused.
    done = _run(tmp_path, *words, "--port", ports[1])
    assert done.returncode == 5
    assert b"cookie" in done.stderr.lower()


@pytest.mark.timeout(300)
def test_the_demo_gets_every_event_back(tmp_path):
    try:
        flights.path()
    except Exception:
        pytest.skip("the demo's events are missing; pip install 'quorumbook[demo]'")
    done = _run(tmp_path, "demo", "-o", "json")
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    assert story["is_same"] is True
    assert story["events"] == story["acknowledged"] == story["events_read"] == flights.COUNT
    assert story["sha256_written"] == story["sha256_read"]
    assert len(story["fragments"]) == 2
    assert story["killed_bookie"] in story["fragments"][0]["ensemble"]
    assert story["killed_bookie"] not in story["fragments"][1]["ensemble"]


@pytest.fixture
def few_flights(tmp_path, monkeypatch):
    """A demo of 3000 events, below ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    events = [b'{"flight": %d}' % number for number in range(3000)]
    monkeypatch.setattr(flights, "path", lambda: "events")
    monkeypatch.setattr(flights, "events", lambda _: iter(events))
    monkeypatch.setattr(flights, "COUNT", len(events))


@pytest.mark.usefixtures("few_flights")
def test_a_demo_that_is_kept_goes_on_and_says_how_to_look_at_it_and_stop_it(tmp_path, capfd):
    from quorumbook.cli.main import main

    assert main(["demo", "--keep"]) == 0
    told = capfd.readouterr().out
    pids = [int(pid) for pid in told.partition("stop it with: kill ")[2].split()]
    assert len(pids) == 3
    try:
        look = shlex.split(re.search("^  quorumbook (.*)$", told, re.MULTILINE)[1])
        shown = _run(tmp_path, *look, "-o", "json")
        assert json.loads(shown.stdout)["entries"] == 3000
        read = _run(tmp_path, "ledger", "read", *look[2:])
        assert len(read.stdout.splitlines()) == 3000
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
    while json.loads(_run(tmp_path, "bookie", "ls", *look[-2:], "-o", "json").stdout):
        time.sleep(0.1)


@pytest.mark.usefixtures("few_flights")
def test_the_demo_fails_when_something_else_came_back(monkeypatch, capfd):
    from quorumbook.cli import demo
    from quorumbook.cli.main import main

    assert main(["demo"]) == 0
    assert "What was read is what was written" in capfd.readouterr().out

    read = demo._read_elsewhere

    async def read_with_one_bit_flipped(call, story):
        await read(call, story)
        story.sha256_read = f"{int(story.sha256_read, 16) ^ 1:064x}"

    monkeypatch.setattr(demo, "_read_elsewhere", read_with_one_bit_flipped)
    assert main(["demo"]) == 1
    captured = capfd.readouterr()
    assert "What was read is what was written" not in captured.out
    assert "3000 came back" in captured.err
