"""Ledgers read copy by copy: the planner and tasks as Spark runs them, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from spark_helpers import let_go, read_tasks, write_ledger

import quorumbook
from quorumbook.client.context import client_context
from quorumbook.errors import ConfigError, DigestMismatchError, NoSuchLedgerError
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.ledger.transitions import moved_metadata
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v3 import client as v3
from quorumbook.spark.options import Use
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.testing import LocalCluster


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    """A cluster that may be damaged."""
    with LocalCluster(bookies=4) as running:
        yield running
        let_go(running)


def read(cluster, path, columns=None, **options):
    return [row for task in read_tasks(cluster, path, columns, **options) for row in task]


def metadata_of(cluster, ledger_id):
    with cluster.connect() as client:
        return client.ledger_metadata(ledger_id)


def bookies_of(metadata, entry_id):
    ensemble = metadata.fragment_of(entry_id).ensemble
    at = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
    return [ensemble[position] for position in at]


def overwrite(cluster, ledger_id, entry_id, bookie_id, body):
    """Have one bookie hold other bytes of an entry."""

    async def work():
        async with quorumbook.connect(cluster.metadata_uri) as client:
            response = (
                await client_context(client)
                .bookies.control(bookie_id)
                .request(
                    "damage",
                    lambda txn: v3.encode_add(
                        txn, ledger_id, entry_id, master_key(b""), body, is_recovery=True
                    ),
                )
            )
            assert int(response.status) == 0

    asyncio.run(work())


PAYLOADS = [b"%d" % n * (n % 7 * 50) for n in range(100)]


@pytest.fixture(scope="module", params=[(3, 3), (4, 2), (1, 1)], ids=str)
def ledger(request, own_cluster):
    ensemble, quorum = request.param
    return metadata_of(
        own_cluster,
        write_ledger(
            own_cluster, PAYLOADS, ensemble_size=ensemble, write_quorum_size=quorum,
            ack_quorum_size=quorum,
        ),
    )  # fmt: skip


def test_every_copy_is_read_by_its_place(own_cluster, ledger):
    path = f"ledger:{ledger.ledger_id}"
    for place in range(ledger.write_quorum_size):
        rows = read(own_cluster, path, replica=place, maxBatchRows=7, minPartitions=3)
        assert [row["value"] for row in rows] == PAYLOADS
        assert [row["entry_id"] for row in rows] == list(range(100))
        assert [row["_replica"] for row in rows] == [
            bookies_of(ledger, n)[place] for n in range(100)
        ]
    assert read(own_cluster, path, replica=ledger.write_quorum_size) == []


def test_what_one_bookie_should_hold_is_read_from_it(own_cluster, ledger):
    path = f"ledger:{ledger.ledger_id}"
    for bookie_id in own_cluster.bookie_ids:
        rows = read(own_cluster, path, replica=bookie_id)
        expected = [n for n in range(100) if bookie_id in bookies_of(ledger, n)]
        assert [row["entry_id"] for row in rows] == expected
        assert [row["value"] for row in rows] == [PAYLOADS[n] for n in expected]
        assert {row["_replica"] for row in rows} <= {bookie_id}


def test_a_damaged_copy_is_seen_where_any_other_hides_it(own_cluster):
    ledger_id = write_ledger(own_cluster, PAYLOADS[:10], ensemble_size=3, write_quorum_size=2)
    metadata = metadata_of(own_cluster, ledger_id)
    victim, healthy = bookies_of(metadata, 4)
    path = f"ledger:{ledger_id}"
    sealed = digester(DigestType.CRC32C, b"").seal(ledger_id, 4, 3, 0, b"other")
    overwrite(own_cluster, ledger_id, 4, victim, sealed[:-1] + b"X")
    assert [row["value"] for row in read(own_cluster, path)] == PAYLOADS[:10]
    with pytest.raises(DigestMismatchError):
        read(own_cluster, path, replica=victim)
    rows = {r["entry_id"]: r for r in read(own_cluster, path, replica=victim, onCorrupt="null")}
    assert (rows[4]["value"], rows[4]["_replica"]) == (None, victim)
    assert "4" in rows[4]["_error"]
    assert [n for n, row in rows.items() if row["_error"]] == [4]
    skipped = read(own_cluster, path, ["entry_id"], replica=victim, onCorrupt="skip")
    assert [row["entry_id"] for row in skipped] == [n for n in rows if n != 4]
    mended = {row["entry_id"]: row["value"] for row in read(own_cluster, path, replica=healthy)}
    assert mended[4] == PAYLOADS[4]


def test_a_missing_copy_is_an_error_or_a_row_of_nulls(own_cluster):
    ledger_id = write_ledger(own_cluster, PAYLOADS[:10], ensemble_size=3)
    (bookie_id,) = {*own_cluster.bookie_ids} - {*metadata_of(own_cluster, ledger_id).ensemble}

    async def move():
        """Have the metadata name a bookie that never got anything."""
        async with quorumbook.connect(own_cluster.metadata_uri) as client:
            found, version = await client_context(client).ledgers.read(ledger_id)
            (fragment,) = found.fragments
            moves = {fragment.ensemble[0]: bookie_id}
            moved = moved_metadata(found, fragment, found.last_entry_id, moves)
            await client_context(client).ledgers.write(moved, version)

    asyncio.run(move())
    path = f"ledger:{ledger_id}"
    with pytest.raises(NoSuchLedgerError):
        read(own_cluster, path, replica=bookie_id)
    rows = read(own_cluster, path, replica=bookie_id, onCorrupt="null")
    assert [row["entry_id"] for row in rows] == list(range(10))
    assert all(row["_error"] and row["value"] is None for row in rows)


def test_a_copy_that_nobody_can_have_is_refused_before_any_task(own_cluster):
    uri = {"metadataServiceUri": own_cluster.metadata_uri}
    with pytest.raises(ConfigError, match="replica is for ledgers"):
        ReadOptions.of({**uri, "path": "stream:s", "replica": "0"})
    with pytest.raises(ConfigError, match="for read, not for readStream"):
        ReadOptions.of({**uri, "path": "ledger:1", "replica": "0"}, Use.READ_STREAM)
    ledger_id = write_ledger(own_cluster, [b"x"])
    with pytest.raises(ConfigError, match=r"no bookie nowhere:1; there are .*:"):
        read(own_cluster, f"ledger:{ledger_id}", replica="nowhere:1")
