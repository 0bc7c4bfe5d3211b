"""Auto-recovery as processes, as an operator runs them."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import pytest


def record(process):
    """Return what a process says when it is ready."""
    return json.loads(process.stdout.readline())


def ask(http, path, method="GET", body=None):
    request = urllib.request.Request(f"{http}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def numbers(http):
    """Return all metrics without labels."""
    lines = ask(http, "/metrics")[1].splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line[0] not in "#"}


def wait_until(condition, *processes):
    while not condition():
        for process in processes:
            assert process.poll() is None, process.stderr.read()


@pytest.fixture
def recovery(quorumbook):
    def ask_it(*words):
        return json.loads(quorumbook("recovery", *words, "-o", "json").text)

    return ask_it


def test_a_process_of_its_own_is_auditor_until_it_is_stopped(quorumbook, recovery):
    with quorumbook.running("recovery", "run", "-o", "jsonl", "--set", "recovery.name=a1") as run:
        said = record(run)
        assert said["name"] == "a1"
        wait_until(lambda: recovery("status")["auditor"] == "a1", run)
        http = said["http"]
        wait_until(lambda: ask(http, "/is_ready") == (200, "OK\n"), run)
        found = numbers(http)
        assert found["replication_auditor_IS_AUDITOR"] == 1
        assert "replication_replication_worker_NUM_ENTRIES_WRITTEN" in found
        assert "background_io_rate_bytes" in found
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 0
    assert recovery("status")["auditor"] is None


def test_the_peers_pages_are_there(quorumbook, recovery):
    root = "/api/v1/autorecovery"
    with quorumbook.running("recovery", "run", "-o", "jsonl", "--set", "recovery.name=a2") as run:
        http = record(run)["http"]

        def page(path, method="GET", body=None):
            status, answer = ask(http, root + path, method, body)
            return status, json.loads(answer)

        wait_until(lambda: page("/who_is_auditor") == (200, {"auditor": "a2"}), run)
        delay = "/lost_bookie_recovery_delay"
        wait_until(lambda: page(delay)[1]["delay_seconds"] is not None, run)
        assert page("/status") == (200, {"enabled": True})
        assert page("/status?enabled=false", "PUT") == (200, {"enabled": False})
        assert recovery("status")["enabled"] is False
        assert page("/trigger_audit", "PUT")[0] == 503
        assert page("/status?enabled=true", "PUT") == (200, {"enabled": True})
        assert page("/status?enabled=maybe", "PUT")[0] == 400
        assert page("/trigger_audit", "PUT") == (200, {"triggered": True})
        assert page(f"{delay}?seconds=5", "PUT") == (200, {"delay_seconds": 5})
        assert page(delay) == (200, {"delay_seconds": 5})
        assert page(delay, "PUT", b'{"delay_seconds": 6}') == (200, {"delay_seconds": 6})
        assert page(f"{delay}?seconds=99999999999", "PUT")[0] == 400
        assert page(f"{delay}?seconds=soon", "PUT")[0] == 400
        assert recovery("delay", "0") == {"lost_bookie_delay_s": 0}
        assert page("/list_under_replicated_ledger") == (200, [])
        assert ask(http, f"{root}/trigger_audit")[0] == 405
        for path in (root, f"{root}/nothing"):
            status, text = ask(http, path)
            assert status == 404
            named = text.removeprefix("there are ").strip().split(", ")
            assert {f"{root}/status", f"PUT {root}/trigger_audit", "/is_ready"} < set(named)
        for path in named:
            if not path.startswith("PUT "):
                assert ask(http, path)[0] == 200, path
                assert ask(http, path, "HEAD") == (200, ""), path


def test_a_bookie_runs_auto_recovery_beside_it_if_told_so(quorumbook, recovery, tmp_path):
    words = ("bookie", "run", "--data-dir", tmp_path / "b", "--port", 0, "-o", "jsonl")
    with quorumbook.running(*words, "--set", "recovery.in_bookie=true") as run:
        said = record(run)
        wait_until(lambda: recovery("status")["auditor"] == said["bookie_id"], run)
        found = numbers(said["http"])
        assert found["replication_auditor_IS_AUDITOR"] == 1
        assert found["bookie_SERVER_STATUS"] == 1
        status, body = ask(said["http"], "/api/v1/autorecovery/who_is_auditor")
        assert (status, json.loads(body)) == (200, {"auditor": said["bookie_id"]})
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 0
    assert recovery("status")["auditor"] is None  # bookies run none unless told so
