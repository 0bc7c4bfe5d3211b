"""What tests of distributed appends do again and again."""

from __future__ import annotations

from quorumbook.client.client import BookKeeper
from quorumbook.streams import Namespace
from quorumbook.streams.transactions import (
    Application,
    AttemptResult,
    DraftOptions,
    Identity,
    Place,
)

OPTIONS = DraftOptions()


async def application(ns: Namespace, run: str = "r1", query: str = "q", **place) -> Application:
    app = Application(Place(ns.client, ns, **place), "app", Identity(query, run))
    await app.prepare()
    return app


async def write(
    app: Application,
    batch: int,
    partition: int,
    rows: dict[str, list[bytes]],
    *,
    attempt: int = 0,
    options: DraftOptions = OPTIONS,
    txids: list[int] | None = None,
) -> AttemptResult:
    writer = app.attempt(batch, partition, attempt, options, 1000)
    for stream, payloads in rows.items():
        await writer.append(stream, payloads, txids)
    return await writer.finish()


async def payloads(ns: Namespace, name: str) -> list[bytes]:
    async with ns.stream(name).reader(tail=False) as reader:
        return [record.payload async for record in reader]


async def ledger_ids(client: BookKeeper) -> set[int]:
    return {ledger_id async for ledger_id in client.list_ledger_ids()}


async def referenced(ns: Namespace, *names: str) -> set[int]:
    found = set()
    for name in names:
        segments = await ns.stream(name).segments()
        found |= {segment.metadata.ledger_id for segment in segments}
    return found
