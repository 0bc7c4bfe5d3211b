"""Every bookie that anything knows of: writable, read-only, or down.

A registered bookie has a session at the metadata store.  One that is down has none any more, but
its cookie is there, or ledgers name it; ``bookie recover`` and ``decommission`` end that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quorumbook.admin.facts.bookie_http import READ_ONLY_PATH, http_in, look
from quorumbook.errors import ConnectFailedError, MetadataFormatError, NoSuchBookieError
from quorumbook.ids import BookieId
from quorumbook.ledger.placement.labels import labels_of_properties, show_labels
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.bookies.racks import RackTable, location_in, row_of
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.store import MetadataStore

WRITABLE, READ_ONLY, DOWN = "writable", "read-only", "down"
_DIRECTORIES_PATH = "/api/v1/bookie/directories"
_ASK_TIMEOUT_S = 5.0
_ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """One bookie as the metadata knows it, and as it answers itself."""

    bookie_id: BookieId
    #: ``writable``, ``read-only`` or ``down``.
    state: str
    address: str = ""
    #: Where it serves HTTP; empty if nowhere.
    http: str = ""
    rack: str = ""
    labels: str = ""
    has_cookie: bool = False
    #: How many ledgers name it; None if nobody counted.
    ledgers: int | None = None
    #: Why it is read-only or down.
    reasons: tuple[str, ...] = ()
    #: Its directories as ``/api/v1/bookie/directories`` answers.
    directories: tuple[Mapping[str, Any], ...] = ()
    #: Why it could not be asked; empty if it was, or has no HTTP.
    error: str = ""

    def row(self) -> dict[str, object]:
        """Return what is known, and nothing else."""
        row: dict[str, object] = {"bookie_id": self.bookie_id, "state": self.state}
        for name in ("rack", "address", "http", "labels"):
            if value := getattr(self, name):
                row[name] = value
        if self.ledgers is not None:
            row["ledgers"] = self.ledgers
        if self.reasons or self.error:
            row["reasons"] = [*self.reasons, *([self.error] if self.error else [])]
        return row


@dataclass(frozen=True, slots=True)
class BookiesInMetadata:
    """What the metadata says of all bookies."""

    bookies: tuple[BookieFacts, ...]
    #: Nodes that could not be understood, in words.
    damaged: tuple[str, ...] = field(default=())


async def known_bookies(
    store: MetadataStore, named: Mapping[BookieId, int] | None = None
) -> BookiesInMetadata:
    """Return all bookies: the writable first, then the read-only, then those that are down.

    Args:
        store: The cluster's metadata.
        named: How many ledgers name each bookie; None if nobody counted.

    Raises:
        ClusterNotInitializedError: There is no cluster.
    """
    registration = BookieRegistration(store)
    writable, read_only = await registration.bookies()
    racks = await RackTable(store).read()
    cookies = frozenset(await CookieStore(store).list())
    down = (cookies | frozenset(named or ())) - writable - read_only
    found: list[BookieFacts] = []
    damaged: list[str] = []
    # One that changes its state is in both places for a moment; it is shown once.
    groups = ((WRITABLE, writable), (READ_ONLY, read_only - writable), (DOWN, down))
    for state, bookie_ids in groups:
        for bookie_id in sorted(bookie_ids):
            facts = BookieFacts(
                bookie_id,
                state,
                rack=location_in(racks, bookie_id) or "",
                has_cookie=bookie_id in cookies,
                ledgers=None if named is None else named.get(bookie_id, 0),
            )
            if state == DOWN:
                found.append(replace(facts, reasons=(_why_down(facts),)))
                continue
            try:
                info = await registration.service_info(bookie_id)
            except MetadataFormatError as error:
                damaged.append(str(error))
                info = None
            if info is not None:
                host, port = info.address(bookie_id)
                facts = replace(
                    facts,
                    address=f"{host}:{port}",
                    http=http_in(info, bookie_id) or "",
                    labels=show_labels(labels_of_properties(info.properties)),
                )
            found.append(facts)
    await registration.close()
    return BookiesInMetadata(tuple(found), tuple(damaged))


def _why_down(facts: BookieFacts) -> str:
    known = ["its cookie"] if facts.has_cookie else []
    if facts.ledgers:
        known.append(f"{facts.ledgers:,} ledger{'s' if facts.ledgers != 1 else ''}")
    return f"not registered; known by {' and '.join(known)}"


async def http_of(store: MetadataStore, bookie_id: BookieId) -> str:
    """Return where a registered bookie serves HTTP.

    Raises:
        NoSuchBookieError: it is not registered and has no cookie, so its id is probably mistyped.
        ConnectFailedError: it is not registered now, or serves none.
    """
    info = await BookieRegistration(store).service_info(bookie_id)
    if info is None:
        if bookie_id not in await CookieStore(store).list():
            raise NoSuchBookieError(
                f"nothing is known of a bookie {bookie_id}: it is not registered and has no "
                "cookie; `quorumbook bookie ls` shows which bookies are there",
                bookie_id=bookie_id,
            )
        raise ConnectFailedError(f"bookie {bookie_id} is not registered", bookie_id=bookie_id)
    address = http_in(info, bookie_id)
    if address is None:
        raise ConnectFailedError(
            f"bookie {bookie_id} serves no HTTP; `--set http.enabled=true` has it do so",
            bookie_id=bookie_id,
        )
    return address


async def ask_all(bookies: tuple[BookieFacts, ...], *, disks: bool) -> tuple[BookieFacts, ...]:
    """Ask the bookies that serve HTTP why they are read-only, and for their directories.

    One that does not answer keeps the reason in ``error``.
    """
    limit = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def one(facts: BookieFacts) -> BookieFacts:
        if not facts.http:
            return facts
        async with limit:
            return await asyncio.to_thread(_asked, facts, disks)

    return tuple(await asyncio.gather(*map(one, bookies)))


def _asked(facts: BookieFacts, disks: bool) -> BookieFacts:
    try:
        if facts.state == READ_ONLY:
            found = look(facts.http, READ_ONLY_PATH, timeout_s=_ASK_TIMEOUT_S)
            if isinstance(found, dict) and isinstance(found.get("reasons"), list):
                # A bookie of the peer keeps no reasons.
                facts = replace(facts, reasons=tuple(map(str, found["reasons"])))
        if disks:
            rows = look(facts.http, _DIRECTORIES_PATH, timeout_s=_ASK_TIMEOUT_S)
            if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
                facts = replace(facts, directories=tuple(rows))
    except ConnectFailedError as error:
        return replace(facts, error=str(error))
    return facts


async def rack_rows(store: MetadataStore) -> list[dict[str, object]]:
    """Return where each bookie stands, and then the rows of the table that are for none of them."""
    writable, read_only = await BookieRegistration(store).bookies()
    table = await RackTable(store).read()
    rows: list[dict[str, object]] = []
    used = set()
    for bookie_id in sorted(writable | read_only):
        name = row_of(table, bookie_id)
        row: dict[str, object] = {"bookie_id": bookie_id}
        if name is not None:
            used.add(name)
            row |= {"location": table[name], "row": name}
        rows.append(row)
    return rows + [
        {"location": location, "row": name}
        for name, location in sorted(table.items())
        if name not in used
    ]
