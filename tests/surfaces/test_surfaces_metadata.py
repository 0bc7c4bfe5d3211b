"""``quorumbook metadata`` as an operator uses it: a cluster with its entries changes its store."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import time

import pytest

from doubles.etcd_server import EtcdServer, free_port
from doubles.moved_cluster import move_cluster
from doubles.zookeeper import fresh_root
from quorumbook.errors import MetadataError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.ids import LedgerIdGenerator
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.transfer import Summary, _walk
from quorumbook.metadata.uri import open_store
from quorumbook.testing import LocalCluster


async def summary_of(uri):
    store = await open_store(uri)
    try:
        summary = Summary()
        async for record in _walk(store, is_online=False):
            summary.add(record)
        return summary
    finally:
        await store.close()


async def make_ledgers(uri, count):
    """Make a cluster with ledgers that no bookie ever saw."""
    store = await open_store(uri, create=True)
    try:
        await init_cluster(store)
        manager, ids = LedgerManager(store), LedgerIdGenerator(store)
        for _ in range(count):
            await manager.create(
                LedgerMetadata(
                    ledger_id=await ids.next_id(),
                    ensemble_size=1,
                    write_quorum_size=1,
                    ack_quorum_size=1,
                    fragments=(Fragment(0, ("b:1",)),),
                    password=b"",
                )
            )
        await ids.close()
    finally:
        await store.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), "--unsafe-no-fsync")
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", "zookeeper", "etcd"])
def elsewhere(request, tmp_path):
    """The URI of an empty store, on each driver that outlives a process."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/to.db"
    server = request.getfixturevalue(request.param)
    root = f"{fresh_root()}/ledgers"
    return server.uri(root) if request.param == "etcd" else f"zk://{server.address}{root}"


async def test_a_cluster_that_moved_has_its_ledgers_and_goes_on(elsewhere):
    async with LocalCluster(bookies=3, processes=True) as cluster:
        payloads = [b"%d" % number * 100 for number in range(500)]
        async with cluster.connect() as bk:
            async with bk.create_ledger() as ledger:
                await ledger.append_batch_nowait(payloads)
            # Its writer is gone without a close, so it is recovered at the new place.
            unclosed = await bk.create_ledger()
            await unclosed.append(b"acknowledged")
            await unclosed.abort()
        await move_cluster(cluster, elsewhere)
        async with cluster.connect() as bk:
            async with bk.open_ledger(ledger.id) as reader:
                assert [entry.payload async for entry in reader.read()] == payloads
            async with bk.open_ledger(unclosed.id) as reader:
                assert [entry.payload async for entry in reader.read()] == [b"acknowledged"]
            async with bk.create_ledger() as new:
                await new.append(b"new")
            assert new.id > unclosed.id > ledger.id


def test_a_standalone_cluster_goes_to_zookeeper_with_its_entries(quorumbook, zookeeper, tmp_path):
    """From one host to a cluster, as the documents say it."""
    zk = f"zk://{zookeeper.address}{fresh_root()}/ledgers"
    words = ("standalone", "--bookies", "3", "--data-dir", "data", "--port", free_port())
    with quorumbook.running(*words, "-o", "json") as process:
        started = json.loads(read_object(process.stdout))
        local = started["metadata"]
        ledger_id = quorumbook(
            "ledger", "write", "--metadata", local, stdin=b"one\ntwo\n"
        ).text.strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    quorumbook("metadata", "copy", local, zk)
    with contextlib.ExitStack() as stack:
        for number, bookie_id in enumerate(started["bookies"], 1):
            bookie = stack.enter_context(
                quorumbook.running(
                    "bookie", "run", "--metadata", zk, "--port", bookie_id.rpartition(":")[2],
                    "--data-dir", f"{tmp_path}/data/bookie-{number}", "-o", "jsonl",
                )
            )  # fmt: skip
            line = bookie.stdout.readline()
            assert line, bookie.stderr.read()
            assert json.loads(line)["bookie_id"] == bookie_id
        assert quorumbook("ledger", "read", ledger_id, "--metadata", zk).out == b"one\ntwo\n"
        newer = quorumbook("ledger", "write", "--metadata", zk, stdin=b"three\n").text
        assert int(newer) > int(ledger_id)


def read_object(file):
    """Return the lines of the JSON object that a process prints when it is ready."""
    text = b""
    while not text.rstrip().endswith(b"\n}"):
        line = file.readline()
        assert line
        text += line
    return text


def test_the_commands_move_a_cluster_and_refuse_one_in_use(quorumbook, cluster, tmp_path):
    ledger_id = quorumbook("ledger", "write", stdin=b"kept\n").text.strip()
    uri = cluster.metadata_uri
    moved = f"sqlite:///{tmp_path}/moved.db"
    for words in (("copy", uri, moved), ("dump", uri, "dump.jsonl")):
        done = quorumbook("metadata", *words, code=5)
        assert done.err.count("\n") == 1
        assert "is registered; stop its bookies and writers, or say --online" in done.err
    assert os.listdir(tmp_path) == []
    for bookie_id in cluster.bookie_ids:
        cluster.stop(bookie_id)
    try:
        told = json.loads(quorumbook("metadata", "copy", uri, moved, "-o", "json").text)
        assert told["metadata"] == moved
        assert told["ledgers"] >= 1
        done = quorumbook("metadata", "copy", uri, moved, code=5)
        assert "not empty" in done.err
        quorumbook("metadata", "dump", moved, "dump.jsonl")
        assert stat.S_IMODE(os.stat(tmp_path / "dump.jsonl").st_mode) == 0o600
        done = quorumbook("metadata", "dump", moved, "dump.jsonl", code=5)
        assert "exists already" in done.err
        restored = f"sqlite:///{tmp_path}/restored.db"
        quorumbook("metadata", "restore", "dump.jsonl", restored)
        quorumbook("ledger", "ls", "--metadata", restored)
        listed = [
            quorumbook("ledger", "ls", "-o", "json", "--metadata", each).text
            for each in (uri, moved, restored)
        ]
        assert len(set(listed)) == 1
        assert ledger_id in {str(row["ledger_id"]) for row in json.loads(listed[0])}
    finally:
        for bookie_id in cluster.bookie_ids:
            cluster.restart(bookie_id)


async def test_a_dump_made_online_leaves_ids_out_when_it_is_restored(quorumbook, cluster, tmp_path):
    del cluster
    quorumbook("metadata", "dump", quorumbook.environment["QUORUMBOOK_METADATA"], "d", "--online")
    restored = f"sqlite:///{tmp_path}/restored.db"
    quorumbook("metadata", "restore", "d", restored)
    store = await open_store(restored)
    ids = LedgerIdGenerator(store)
    assert await ids.next_id() == 1 << 32
    await ids.close()
    await store.close()


def test_a_bad_dump_is_refused_in_one_line_and_makes_nothing(quorumbook, tmp_path):
    (tmp_path / "bad").write_bytes(b'{"format": "quorumbook metadata", "version": 1}\n')
    target = f"sqlite:///{tmp_path}/new.db"
    done = quorumbook("metadata", "restore", "bad", target, code=1)
    assert "bad is damaged at line 1: it is incomplete" in done.err
    assert done.err.count("\n") == 1
    quorumbook("metadata", "restore", "missing", target, code=1)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.faults
@pytest.mark.parametrize("part", [0.1, 0.4, 0.8])
async def test_a_copy_that_was_killed_is_done_by_saying_it_again(
    quorumbook, tmp_path, elsewhere, part
):
    source, target = f"sqlite:///{tmp_path}/from.db", elsewhere
    await make_ledgers(source, 1500)
    words = ("metadata", "copy", source, target, "--set", "metadata.session_timeout_s=0.5")
    with quorumbook.running(*words) as process:
        deadline = time.monotonic() + 60
        count = -1
        while count < part * 1500 and process.poll() is None:
            assert time.monotonic() < deadline
            count = await ledgers_of(target)
        process.send_signal(signal.SIGKILL)
        process.wait()
    # A machine that was busy elsewhere may have let it end before the kill.
    quorumbook(*words, code=5 if process.returncode == 0 else 0)
    assert (await summary_of(target)).is_same(await summary_of(source))


async def ledgers_of(uri):
    """Return how many of the ledgers with the lowest ids have arrived."""
    with contextlib.suppress(MetadataError):
        store = await open_store(uri)
        try:
            return len(await store.children(f"{store.ledgers_root}/00/0000"))
        finally:
            await store.close()
    return -1
