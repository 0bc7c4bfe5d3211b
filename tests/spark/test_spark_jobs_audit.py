"""``quorumbook spark audit`` on a whole cluster; each kind of damage has its unit tests."""

from __future__ import annotations

import json

import pytest

from quorumbook.cli.main import main
from quorumbook.client.context import client_context
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v3 import client as v3
from quorumbook.testing import LocalCluster


def write(cluster, entries=200, **options):
    with cluster.connect() as client, client.create_ledger(**options) as ledger:
        for number in range(entries):
            ledger.append_nowait(b"entry %d" % number)
        return ledger.id


async def overwrite(client, ledger_id, entry_id, position, body):
    """Have one bookie hold other bytes."""
    metadata = await client.ledger_metadata(ledger_id)
    response = (
        await client_context(client)
        .bookies.control(metadata.ensemble[position])
        .request(
            "damage",
            lambda txn: v3.encode_add(
                txn, ledger_id, entry_id, master_key(b""), body, is_recovery=True
            ),
        )
    )
    assert int(response.status) == 0
    return metadata.ensemble[position]


@pytest.fixture(scope="module")
def own_cluster():
    """A cluster that may be damaged."""
    with LocalCluster(bookies=3) as running:
        yield running


def run(cluster, tmp_path, *words):
    report = tmp_path / "report.json"
    code = main(
        ["spark", "audit", "--metadata", cluster.metadata_uri, "--json-report", str(report),
         "--state-dir", str(tmp_path / "jobs"), *words]
    )  # fmt: skip
    return code, json.loads(report.read_text())


def test_an_audit_reads_all_copies_and_finds_the_damaged_ones(spark, own_cluster, tmp_path):
    cluster = own_cluster
    healthy = [write(cluster, ensemble_size=3, write_quorum_size=w) for w in (3, 2)]
    code, report = run(cluster, tmp_path, "--dry-run")
    assert (code, report["units"], report["done"]) == (0, 2, 0)
    code, report = run(cluster, tmp_path)
    assert code == 0
    assert report["entries"] == 400
    assert report["copies"] == 1000
    assert report["findings"] == 0

    seal = digester(DigestType.CRC32C, b"")
    forged = seal.seal(healthy[0], 30, 29, 9, b"forged")
    stale = seal.seal(healthy[0], 150, 20, 1390, b"entry 150")

    async def damage(client):
        async with client:
            flipped = seal.seal(healthy[1], 60, 59, 9, b"entry 60")[:-1] + b"?"
            return [
                await overwrite(client, healthy[0], 30, 0, forged),
                await overwrite(client, healthy[0], 150, 1, stale),
                await overwrite(client, healthy[1], 60, 0, flipped),
            ]

    import asyncio

    import quorumbook

    bookies = asyncio.run(damage(quorumbook.connect(cluster.metadata_uri)))
    out = tmp_path / "findings.jsonl"
    code, report = run(cluster, tmp_path, "--out", str(out), "--max-bookie-mbps", "50")
    assert code == 6
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = {(r["kind"], r["ledger_id"], r["first_entry_id"], r["bookie_id"]) for r in rows}
    assert found >= {
        ("differs", healthy[0], 30, bookies[0]),
        ("corrupt", healthy[1], 60, bookies[2]),
    }
    assert report["rows"] == rows
    assert {(r["first_entry_id"], r["bookie_id"]) for r in rows} == {
        (30, bookies[0]), (150, bookies[1]), (60, bookies[2]),
    }  # fmt: skip

    # What is done is not done again; what was found stays found.
    code, again = run(cluster, tmp_path, "--resume", report["job_id"])
    assert (code, again["resumed"], again["rows"]) == (6, 2, rows)
