"""What a cluster does at the moment: two looks at it, and what happened between them.

Bookies count, so two looks make a rate.  Ledgers are counted by nobody: the last add confirmed of
each open one is asked for at both looks, of the newest ones if there are very many.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quorumbook.admin.activity.counts import BookieCounts, rate, read_counts
from quorumbook.admin.facts.bookies import BookieFacts, ask_all, known_bookies
from quorumbook.admin.facts.verdict import fullest
from quorumbook.client.client import BookKeeper
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.unwritten import STREAM_COMPONENT
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.store import MetadataStore

#: Open ledgers that are looked at; further ones are counted only.
_LEDGERS_MAX = 500
_ASKED_AT_ONCE = 32


@dataclass(slots=True)
class Look:
    """What was seen at one moment."""

    at_s: float
    bookies: tuple[BookieFacts, ...]
    counts: dict[BookieId, BookieCounts]
    #: The last add confirmed of each open ledger that could be asked.
    confirmed: dict[LedgerId, int]
    open_ledgers: dict[LedgerId, LedgerMetadata]


@dataclass(slots=True)
class Activity:
    """What happened between two looks."""

    bookies: list[dict[str, object]]
    ledgers: list[dict[str, object]]
    streams: list[dict[str, object]]
    open_ledgers: int
    unasked_ledgers: int

    def row(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {
            "bookies": self.bookies,
            "ledgers": self.ledgers,
            "streams": self.streams,
            "open_ledgers": self.open_ledgers,
            "unasked_ledgers": self.unasked_ledgers,
        }


class Eye:
    """Looks at one cluster again and again; its readers are closed with it, or by the client."""

    def __init__(self, bk: BookKeeper, store: MetadataStore) -> None:
        self._bk = bk
        self._store = store
        self._readers: dict[LedgerId, LedgerReader] = {}
        #: They stay so, and there are many: each is read once.
        self._closed: set[LedgerId] = set()

    async def look(self) -> Look:
        """Look once."""
        bookies = await ask_all((await known_bookies(self._store)).bookies, disks=True)
        open_ledgers = await self._open_ledgers()
        for ledger_id in self._readers.keys() - open_ledgers.keys():
            await self._readers.pop(ledger_id).close()
        confirmed = await self._confirmed(sorted(open_ledgers, reverse=True)[:_LEDGERS_MAX])
        counts = await _counts(bookies)
        return Look(time.monotonic(), bookies, counts, confirmed, open_ledgers)

    async def close(self) -> None:
        """Let go of what was opened."""
        for reader in self._readers.values():
            with contextlib.suppress(QuorumbookError):
                await reader.close()

    async def _open_ledgers(self) -> dict[LedgerId, LedgerMetadata]:
        there = [ledger_id async for ledger_id in self._bk.list_ledger_ids()]
        self._closed.intersection_update(there)
        found: dict[LedgerId, LedgerMetadata] = {}

        async def read(ledger_id: LedgerId) -> None:
            # One that was deleted meanwhile, or is damaged, is no writer's.
            with contextlib.suppress(NoSuchLedgerInMetadataError, MetadataFormatError):
                metadata = await self._bk.ledger_metadata(ledger_id)
                if metadata.is_closed:
                    self._closed.add(ledger_id)
                else:
                    found[ledger_id] = metadata

        await gather_bounded(read, [each for each in there if each not in self._closed])
        return dict(sorted(found.items()))

    async def _confirmed(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, int]:
        limit = asyncio.Semaphore(_ASKED_AT_ONCE)
        found: dict[LedgerId, int] = {}

        async def ask(ledger_id: LedgerId) -> None:
            async with limit:
                # Whose password is not ours, or whose bookies are away, is not looked at.
                with contextlib.suppress(QuorumbookError):
                    if ledger_id not in self._readers:
                        opening = self._bk.open_ledger(ledger_id, recover=False)
                        self._readers[ledger_id] = await opening
                    reader = self._readers[ledger_id]
                    found[ledger_id] = await reader.try_read_last_add_confirmed()

        await asyncio.gather(*map(ask, ledger_ids))
        return found


def activity(before: Look, after: Look, count: int) -> Activity:
    """Return what happened from one look to the next; of ledgers and streams the busiest."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    # A ledger that is new since then began at its start.
    grown = {
        ledger_id: (last - before.confirmed.get(ledger_id, -1)) / seconds
        for ledger_id, last in after.confirmed.items()
        if last > before.confirmed.get(ledger_id, -1)
    }
    ledgers: list[dict[str, object]] = []
    streams: dict[str, float] = {}
    for ledger_id, entries_per_s in sorted(grown.items(), key=lambda pair: -pair[1]):
        name = _stream_of(after.open_ledgers[ledger_id])
        ledgers.append(
            {
                "ledger_id": ledger_id,
                "entries_per_s": round(entries_per_s, 1),
                "last_entry_id": after.confirmed[ledger_id],
                "stream": name,
            }
        )
        if name:
            streams[name] = streams.get(name, 0.0) + entries_per_s
    busiest = sorted(streams.items(), key=lambda pair: -pair[1])[:count]
    return Activity(
        bookies=[_bookie_row(bookie, before, after, seconds) for bookie in after.bookies],
        ledgers=ledgers[:count],
        streams=[{"stream": name, "entries_per_s": round(rate, 1)} for name, rate in busiest],
        open_ledgers=len(after.open_ledgers),
        unasked_ledgers=len(after.open_ledgers) - len(after.confirmed),
    )


async def _counts(bookies: Sequence[BookieFacts]) -> dict[BookieId, BookieCounts]:
    async def one(bookie: BookieFacts) -> BookieCounts | None:
        with contextlib.suppress(OSError):
            return await asyncio.to_thread(read_counts, bookie.http)
        return None

    asked = [bookie for bookie in bookies if bookie.http]
    found = await asyncio.gather(*map(one, asked))
    return {
        bookie.bookie_id: counts
        for bookie, counts in zip(asked, found, strict=True)
        if counts is not None
    }


def _stream_of(metadata: LedgerMetadata) -> str:
    """Return the stream that a ledger says it belongs to, with its namespace; empty if none."""
    custom = metadata.custom_metadata
    if custom.get("component") != STREAM_COMPONENT:
        return ""
    parts = (custom.get("namespace", b""), custom.get("stream", b""))
    return "/".join(part.decode(errors="replace") for part in parts)


def _bookie_row(
    bookie: BookieFacts, before: Look, after: Look, seconds: float
) -> dict[str, object]:
    row: dict[str, object] = {"bookie_id": bookie.bookie_id, "state": bookie.state}
    then, now = before.counts.get(bookie.bookie_id), after.counts.get(bookie.bookie_id)
    if then is not None and now is not None:
        row |= {
            f"{name}_per_s": round(rate(getattr(then, name), getattr(now, name), seconds), 1)
            for name in ("adds", "reads", "written_bytes", "read_bytes")
        }
    if now is not None:
        row |= {name: getattr(now, name) for name in ("add_p50_ms", "add_p99_ms", "read_p99_ms")}
    disk = fullest(bookie)
    if disk is not None:
        row |= {"fullest_disk": disk[1], "used": disk[0]}
    syncs = [row["sync_ms_mean"] for row in bookie.directories if row.get("sync_ms_mean")]
    if syncs:
        row["sync_ms_mean"] = max(syncs)
    return row
