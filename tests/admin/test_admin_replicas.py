"""Each replica of an entry, as its bookie gives it."""

from __future__ import annotations

import dataclasses

from quorumbook.client.context import client_store
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import DigestType


async def change(client, ledger_id, **fields):
    """Have the metadata say something else of a ledger."""
    manager = LedgerManager(client_store(client))
    metadata, version = await manager.read(ledger_id)
    await manager.write(dataclasses.replace(metadata, **fields), version)


async def states(api, ledger_id, entry_id=0):
    answer = await api.http.get(f"/api/v2/ledgers/{ledger_id}/entries/{entry_id}/replicas")
    assert answer.status_code == 200, answer.text
    return {row["bookie"]: row for row in answer.json()["replicas"]}


async def test_replicas_of_an_entry_are_good_damaged_or_missing(api):
    shape = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}
    async with api.cluster.connect() as client:
        async with client.create_ledger(**shape) as ledger:
            await ledger.append_batch([b"zero", b"one"])
        (fragment,) = ledger.metadata.fragments
        (third,) = set(api.cluster.bookie_ids) - set(fragment.ensemble)
        rows = await states(api, ledger.id)
        assert {each: row["state"] for each, row in rows.items()} == dict.fromkeys(
            fragment.ensemble, "good"
        )
        (digest,) = {row["digest"] for row in rows.values()}
        assert len(digest) == 2 * (4 if ledger.metadata.digest_type == DigestType.CRC32C else 8)

        moved = dataclasses.replace(fragment, ensemble=(fragment.ensemble[0], third))
        await change(client, ledger.id, fragments=(moved,))
        rows = await states(api, ledger.id, 1)
        assert rows[fragment.ensemble[0]]["state"] == "good"
        assert rows[third]["state"] == "missing"
        assert str(ledger.id) in rows[third]["why"]

        await change(client, ledger.id, digest_type=DigestType.HMAC)
        rows = await states(api, ledger.id)
        assert [row["state"] for row in rows.values()] == ["damaged", "missing"]
        await change(client, ledger.id, digest_type=ledger.metadata.digest_type)

        await api.cluster.stop(third)
        rows = await states(api, ledger.id)
        assert [row["state"] for row in rows.values()] == ["good", "unknown"]


async def test_a_mac_is_not_shown(api):
    options = {"password": b"open sesame", "digest_type": DigestType.HMAC}
    async with api.cluster.connect() as client:
        async with client.create_ledger(ensemble_size=3, **options) as ledger:
            await ledger.append(b"for their eyes")
    rows = await states(api, ledger.id)
    assert {(row["state"], row["digest"]) for row in rows.values()} == {("good", None)}
    assert "for their eyes" not in str(rows)


async def test_an_entry_that_is_not_there_is_one_sentence(api):
    async with api.cluster.connect() as client, client.create_ledger() as ledger:
        await ledger.append(b"one")
    for ledger_id, entry_id, status in ((ledger.id, 1, 404), (999, 0, 404), (ledger.id, "x", 400)):
        answer = await api.http.get(f"/api/v2/ledgers/{ledger_id}/entries/{entry_id}/replicas")
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
