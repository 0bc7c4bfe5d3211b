"""Real auditors and bookies, killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from doubles.clusters import local_cluster
from doubles.replicas import assert_fully_replicated, copies
from doubles.warm_command import run_command
from quorumbook.testing import LocalCluster


class AuditorProcess:
    """``quorumbook recovery run``, with a log one can read."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.name = name
        self.log_path = os.path.join(cluster.directory, f"{name}.log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quorumbook", "recovery", "run", "-o", "jsonl",
                 "--metadata", cluster.metadata_uri, "--set", f"recovery.name={name}",
                 "--set", "metadata.session_timeout_s=2"],
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert json.loads(self.process.stdout.readline())["name"] == name

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def log(self) -> str:
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()


def quorumbook(cluster, *words):
    done = run_command(*words, "--metadata", cluster.metadata_uri, "-o", "json")
    done.check_returncode()
    return json.loads(done.stdout)


cluster = local_cluster()


@pytest.fixture
def auditors_of():
    """Start auditors of a cluster, and kill them in the end."""
    with contextlib.ExitStack() as stack:

        def start(cluster, name):
            auditor = AuditorProcess(cluster, name)
            stack.callback(auditor.close)
            return auditor

        yield start


@pytest.fixture
def auditors(cluster, auditors_of):
    return partial(auditors_of, cluster)


def test_s71_another_auditor_takes_over_from_one_that_was_killed(cluster, auditors):
    with cluster.connect() as bk:
        writer = bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        writer.append(b"x")
        writer.close()
    first = auditors("first")
    while quorumbook(cluster, "recovery", "status")["auditor"] != "first":
        assert first.process.poll() is None
    second = auditors("second")
    first.close()
    while quorumbook(cluster, "recovery", "status")["auditor"] != "second":
        assert second.process.poll() is None
    lost = cluster.bookie_ids[0]
    cluster.stop(lost)
    while not (marked := quorumbook(cluster, "recovery", "underreplicated")):
        assert second.process.poll() is None
    assert [(row["ledger_id"], row["missing_on"]) for row in marked] == [(writer.id, [lost])]
    assert f"bookie {lost} is lost: 1 of 1 ledgers are marked" in second.log()


def test_s77_an_auditor_that_was_paused_beyond_its_session_acts_no_more_and_stands_again(
    cluster, auditors
):
    first = auditors("first")
    while quorumbook(cluster, "recovery", "status")["auditor"] != "first":
        assert first.process.poll() is None
    second = auditors("second")
    first.process.send_signal(signal.SIGSTOP)
    while quorumbook(cluster, "recovery", "status")["auditor"] != "second":
        assert second.process.poll() is None
    first.process.send_signal(signal.SIGCONT)
    while "first is not auditor any more" not in first.log():
        assert first.process.poll() is None
    assert quorumbook(cluster, "recovery", "status")["auditor"] == "second"
    second.close()
    while quorumbook(cluster, "recovery", "status")["auditor"] != "first":
        assert first.process.poll() is None


def flip_on_disk(cluster: LocalCluster, number: int, payload: bytes) -> None:
    """Change a byte of an entry in the entry log of a stopped bookie."""
    logs = Path(cluster.directory, f"bookie-{number}", "ledgers").rglob("*.log")
    found = [(log, at) for log in logs if (at := log.read_bytes().find(payload)) >= 0]
    assert found
    for log, at in found:
        with log.open("r+b") as file:
            file.seek(at)
            file.write(bytes([payload[0] ^ 1]))


async def test_s76_a_bit_that_flipped_on_one_bookie_is_found_and_mended(auditors_of):
    """What the peer never reads: an entry in the middle of a fragment."""
    payloads = [b"payload of entry %04d" % number for number in range(20)]
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as client:
        shape = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
        async with client.create_ledger(**shape) as writer:
            await writer.append_batch_nowait(payloads)
        victim = cluster.bookie_ids[1]
        await cluster.stop(victim)
        flip_on_disk(cluster, 2, payloads[7])
        await cluster.restart(victim)
        while victim not in (await client.bookies())[0]:
            await asyncio.sleep(0.01)
        damaged = await copies(client, writer.id)
        assert len(set(damaged[7].values())) == 2
        auditor = await asyncio.to_thread(auditors_of, cluster, "a1")
        while (await asyncio.to_thread(quorumbook, cluster, "recovery", "status"))[
            "auditor"
        ] is None:
            assert auditor.process.poll() is None
        await asyncio.to_thread(quorumbook, cluster, "recovery", "trigger", "--check", "ledgers")
        while len(set((await copies(client, writer.id))[7].values())) > 1:
            assert auditor.process.poll() is None
            await asyncio.sleep(0.05)
        await assert_fully_replicated(client, writer.id, payloads)
