"""``standalone`` and ``bookie run`` as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from doubles.ports import free_ports
from doubles.warm_command import run_command

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}


def _start(directory, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "quorumbook", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=directory,
    )  # fmt: skip


def _run(directory, *words, stdin=b""):
    done = run_command(*words, stdin=stdin, environment=ENVIRONMENT, directory=directory)
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
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (0, b"")
            assert b"stopping ..." in err
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


def _words(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")


def _is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_standalone_keeps_its_data_and_its_bookies_over_a_restart(tmp_path):
    port = free_ports(3)[0]
    with _standalone(tmp_path, "--bookies", 3, "--port", port) as (_, facts):
        ids = facts["bookies"]
        assert len(ids) == 3
        # The default metadata URI is where standalone puts its metadata.
        ledger_id = _run(tmp_path, "ledger", "write", stdin=b"kept\n").stdout.strip().decode()
    with _standalone(tmp_path) as (_, facts):
        assert facts["bookies"] == ids
        assert _run(tmp_path, "ledger", "read", ledger_id).stdout == b"kept\n"


@pytest.mark.parametrize("is_known", [True, False], ids=["a context", "no context any more"])
def test_a_context_does_not_lead_a_standalone_cluster_elsewhere(tmp_path, monkeypatch, is_known):
    monkeypatch.setitem(ENVIRONMENT, "XDG_CONFIG_HOME", str(tmp_path / "home"))
    prod = f"sqlite:///{tmp_path}/prod.db"
    ls = ("bookie", "ls", "-o", "json", "--metadata")
    if is_known:
        (tmp_path / "prod.toml").write_text("tls.enabled = true\ntls.certificate_file = '/none'\n")
        assert _run(tmp_path, "cluster", "init", "--metadata", prod).returncode == 0
        words = ("context", "add", "prod", "--metadata", prod, "--config", "prod.toml")
        assert _run(tmp_path, *words).returncode == 0
    with monkeypatch.context() as patched:
        patched.setitem(ENVIRONMENT, "QUORUMBOOK_CONTEXT", "prod")
        with _standalone(tmp_path, "--ephemeral") as (_, facts):
            found = json.loads(_run(tmp_path, *ls, facts["metadata"]).stdout)
            assert sorted(row["bookie_id"] for row in found) == sorted(facts["bookies"])
    if is_known:
        assert json.loads(_run(tmp_path, *ls, prod).stdout) == []


def test_a_bookie_that_dies_is_started_again(tmp_path):
    with _standalone(tmp_path, "--ephemeral") as (process, facts):
        children = _children(process.pid)
        assert len(children) == 5
        for kind in (b"bookie", b"recovery", b"admin"):
            killed = next(child for child in _children(process.pid) if kind in _words(child))
            os.kill(killed, signal.SIGKILL)

            def is_there_again(killed=killed):
                now = _children(process.pid)
                return len(now) == 5 and killed not in now

            _wait(is_there_again, f"{kind} was not started again")
        uri = facts["metadata"]

        def can_write():
            done = _run(tmp_path, "ledger", "write", "--metadata", uri, stdin=b"x\n")
            return done.returncode == 0

        _wait(can_write, "the cluster takes no ledger")


def test_a_standalone_cluster_has_an_auditor(tmp_path):
    with _standalone(tmp_path, "--ephemeral") as (_, facts):
        words = ("recovery", "auditor", "-o", "raw", "--metadata", facts["metadata"])
        _wait(lambda: _run(tmp_path, *words).returncode == 0, "nobody is auditor")


def test_no_bookie_outlives_a_killed_supervisor(tmp_path):
    with _start(tmp_path, "standalone", "--ephemeral", "-o", "json") as process:
        try:
            _wait(lambda: len(_children(process.pid)) == 5, "five children")
            process.stdout.readline()
            children = _children(process.pid)
        finally:
            process.kill()
        process.wait(60)
        _wait(lambda: all(_is_gone(child) for child in children), "children that live on")


def test_a_console_whose_port_is_taken_as_it_starts_takes_another(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with _standalone(
            tmp_path, "--bookies", 1, "--set", f"admin.port={port}", "--port", free_ports(1)[0]
        ) as (_, facts):
            assert facts["console"].startswith("http://127.0.0.1:")
            assert not facts["console"].endswith(f":{port}")


def test_what_is_said_to_people_is_not_in_the_output(tmp_path):
    with _start(tmp_path, "standalone", "--ephemeral", "--bookies", 1) as process:
        try:
            for line in process.stderr:
                if b"Ctrl-C stops them" in line:
                    break
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, b"")


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
        assert list(tmp_path.iterdir()) == []
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
