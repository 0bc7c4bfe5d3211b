"""The cluster that users' tests are written with."""

from __future__ import annotations

import os

import pytest

from quorumbook.errors import QuorumbookError
from quorumbook.testing import LocalCluster


async def test_a_cluster_runs_on_the_loop_of_the_test():
    async with LocalCluster(bookies=3) as cluster:
        assert len(cluster.bookie_ids) == 3
        async with cluster.connect() as bk:
            async with bk.create_ledger() as ledger:
                await ledger.append(b"x")
            async with bk.open_ledger(ledger.id) as reader:
                assert [entry.payload async for entry in reader.read()] == [b"x"]
        directory = cluster.directory
        assert os.path.exists(directory)
    assert not os.path.exists(directory)


def test_a_cluster_runs_beside_a_program_without_a_loop():
    with LocalCluster(bookies=1) as cluster, cluster.connect() as bk:
        shape = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
        with bk.create_ledger(**shape) as ledger:
            ledger.append(b"x")
        with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload for entry in reader.read()] == [b"x"]
        new = cluster.add()
        assert cluster.bookie_ids[-1] == new


async def test_a_stopped_bookie_comes_back_with_its_data():
    shape = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    async with LocalCluster(bookies=1) as cluster, cluster.connect() as bk:
        async with bk.create_ledger(**shape) as ledger:
            await ledger.append(b"x")
        only = cluster.bookie_ids[0]
        await cluster.restart(only)
        assert cluster.bookie_ids == [only]
        async with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"x"]


async def test_only_processes_can_be_killed():
    async with LocalCluster(bookies=1) as cluster:
        with pytest.raises(QuorumbookError, match="processes=True"):
            await cluster.kill(cluster.bookie_ids[0])


async def test_a_killed_process_comes_back_with_what_it_acknowledged(tmp_path):
    shape = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    async with LocalCluster(bookies=1, processes=True, data_dir=str(tmp_path)) as cluster:
        only = cluster.bookie_ids[0]
        async with cluster.connect() as bk:
            async with bk.create_ledger(**shape) as ledger:
                await ledger.append(b"x")
            await cluster.kill(only)
            await cluster.restart(only)
            async with bk.open_ledger(ledger.id) as reader:
                assert [entry.payload async for entry in reader.read()] == [b"x"]
    assert (tmp_path / "metadata.db").exists()  # a directory that was given is kept


async def test_a_cluster_that_cannot_start_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(QuorumbookError):
        async with LocalCluster(bookies=1, storage={"write_cache_size_bytes": -1}):
            pass
    assert list(tmp_path.iterdir()) == []
