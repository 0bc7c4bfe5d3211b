"""An ensemble change whose answer from the metadata store is lost, beside a recovery."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import QUIET

from doubles.inside import append_state_of
from doubles.mock_bookie import SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client import context
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataFateUnknownError,
    MetadataUnavailableError,
)
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.requests import AddRun, Request


def lose_adds(request: Request) -> str | None:
    return SILENCE if isinstance(request, AddRun) and not request.is_recovery else None


async def two_to_replace(cluster: MockCluster, bk: BookKeeper) -> LedgerWriter:
    """Leave a writer whose next append has two bookies replaced, and hears of no other."""
    ledger = await bk.create_ledger(ensemble_size=4, write_quorum_size=4, ack_quorum_size=2)
    members = cluster.members(ledger)
    for bookie in members[:2]:
        bookie.hold_adds()
    assert await ledger.append(b"zero") == 0
    await until(lambda: all(bookie.count(AddRun) for bookie in members[:2]))
    for bookie in members[:2]:
        bookie.drop_connections()
    await until(lambda: len(append_state_of(ledger).failed) == 2)
    for bookie in members:
        bookie.release_adds()
        bookie.on_request = lose_adds
    return ledger


@pytest.mark.parametrize("lost", [MetadataUnavailableError, MetadataFateUnknownError])
@pytest.mark.parametrize(
    ("recovery", "is_written"),
    [
        ("before", False),
        ("marks before", False),
        *((moment, done) for moment in ("after", "marks after", "later") for done in (False, True)),
    ],
)
async def test_r03_r04_what_is_acknowledged_around_a_lost_answer_is_in_the_closed_ledger(
    recovery: str,
    is_written: bool,
    lost: type[MetadataUnavailableError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context, "_METADATA_RETRY_S", 0.001)
    async with (
        mock_cluster(6) as cluster,
        cluster.connect(**QUIET) as bk,
        cluster.connect(**QUIET) as rival,
    ):
        ledger = await two_to_replace(cluster, bk)
        write = client_context(bk).ledgers.write

        async def recover() -> None:
            if recovery.startswith("marks"):
                metadata, version = await client_context(rival).ledgers.read(ledger.id)
                await client_context(rival).ledgers.write(metadata.in_recovery(), version)
            else:
                await (await rival.open_ledger(ledger.id)).close()

        async def lose_the_answer(metadata: LedgerMetadata, version: int, **options: bool) -> int:
            monkeypatch.setattr(client_context(bk).ledgers, "write", write)
            if recovery.endswith("before"):
                await recover()
            if is_written:
                await write(metadata, version, **options)
            if recovery.endswith("after"):
                await recover()
            raise lost("the answer was lost")

        monkeypatch.setattr(client_context(bk).ledgers, "write", lose_the_answer)
        futures = [ledger.append_nowait(b"%d" % i) for i in range(1, 4)]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        async with rival.open_ledger(ledger.id) as reader:
            kept = [entry.payload async for entry in reader.read()]
        acknowledged = [outcome for outcome in outcomes if isinstance(outcome, int)]
        assert set(acknowledged) <= set(range(len(kept))), "acknowledged and lost"
        assert kept[0] == b"zero"
        if recovery == "later":
            assert acknowledged == [1, 2, 3]
        else:
            for outcome in outcomes:
                assert isinstance(outcome, LedgerFencedError | LedgerClosedError), outcome
        await ledger.abort()
