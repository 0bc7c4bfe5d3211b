"""Creating ledgers: given ids, and ensembles where bookies are few."""

from __future__ import annotations

import pytest

from doubles.mock_bookie import mock_cluster
from quorumbook.errors import LedgerExistsError, LocalProtocolError, NotEnoughBookiesError

#: On both sides of where the peer's layout changes, and the last one there is.
IDS = [0, 2**31 - 2, 2**31 - 1, 2**31, 2**40 + 7, 2**63 - 1]


async def test_a_given_id_may_have_63_bits_and_is_taken_once() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        for ledger_id in IDS:
            async with bk.create_ledger(ledger_id=ledger_id, explicit_entry_ids=True) as made:
                assert made.id == ledger_id
                await made.append_at(0, b"%d" % ledger_id)
            with pytest.raises(LedgerExistsError) as refused:
                await bk.create_ledger(ledger_id=ledger_id)
            assert refused.value.code == -20
            async with bk.open_ledger(ledger_id) as reader:
                assert (await reader.read_entry(0)).payload == b"%d" % ledger_id
        assert [ledger_id async for ledger_id in bk.list_ledger_ids()] == IDS
        for ledger_id in IDS:
            await bk.delete_ledger(ledger_id)
        assert [ledger_id async for ledger_id in bk.list_ledger_ids()] == []


@pytest.mark.parametrize("ledger_id", [-1, 2**63, 2**64])
async def test_an_id_that_no_layout_holds_is_refused(ledger_id: int) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        with pytest.raises(LocalProtocolError, match="ledger id"):
            await bk.create_ledger(ledger_id=ledger_id)


async def test_opportunistic_striping_spreads_over_the_bookies_there_are() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        with pytest.raises(NotEnoughBookiesError):
            await bk.create_ledger(ensemble_size=6, write_quorum_size=3)
        async with bk.create_ledger(
            ensemble_size=6, write_quorum_size=3, opportunistic_striping=True
        ) as ledger:
            assert ledger.metadata.ensemble_size == 4
            assert set(ledger.metadata.ensemble) == {b.bookie_id for b in cluster.bookies}
            assert ledger.metadata.write_quorum_size == 3
            for i in range(8):
                assert await ledger.append(b"x") == i
        async with bk.open_ledger(ledger.id) as reader:
            assert len([entry async for entry in reader.read()]) == 8
        # Never below the write quorum, and what fits is not shrunk.
        with pytest.raises(NotEnoughBookiesError):
            await bk.create_ledger(
                ensemble_size=6, write_quorum_size=5, opportunistic_striping=True
            )
        async with bk.create_ledger(
            ensemble_size=4, write_quorum_size=2, opportunistic_striping=True
        ) as whole:
            assert whole.metadata.ensemble_size == 4
