"""Ledgers as people look for them: filters, pages, and one ledger's picture.

Passwords never leave the metadata: what is shown says whether there is one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from quorumbook.admin.facts.bounds import Bounds
from quorumbook.admin.facts.cluster import all_ledgers
from quorumbook.admin.facts.words import at
from quorumbook.errors import MetadataFormatError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.danger import exposure
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.store import MetadataStore

STATES = ("open", "in-recovery", "closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFilter(Bounds):
    """Which ledgers are wanted; what is None or empty is not asked."""

    state: str | None = None
    bookie: BookieId | None = None
    #: Custom metadata: a name, and what it is; None: whatever it is.
    custom: Mapping[str, bytes | None] = field(default_factory=dict)
    #: Somewhere in the id or the custom metadata, as text.
    text: str = ""
    after: LedgerId | None = None

    def takes(self, metadata: LedgerMetadata) -> bool:
        """Tell whether a ledger is wanted."""
        if self.after is not None and metadata.ledger_id <= self.after:
            return False
        if self.state is not None and metadata.state.word != self.state:
            return False
        if self.bookie is not None and not any(
            self.bookie in each.ensemble for each in metadata.fragments
        ):
            return False
        if not self.hold(metadata.length, metadata.ctime_ms):
            return False
        return self._fits(metadata)

    def _fits(self, metadata: LedgerMetadata) -> bool:
        held = metadata.custom_metadata
        for name, value in self.custom.items():
            if name not in held or (value is not None and held[name] != value):
                return False
        if not self.text:
            return True
        words = [str(metadata.ledger_id)]
        words += [f"{name}={value.decode(errors='replace')}" for name, value in held.items()]
        return any(self.text.lower() in word.lower() for word in words)


@dataclass(slots=True)
class LedgerPage:
    """A part of the ledgers that are wanted."""

    ledgers: list[LedgerMetadata] = field(default_factory=list)
    #: Where the next page goes on; None: this is the last.
    next_after: LedgerId | None = None
    #: It ended early, for its time was over: ``next_after`` was looked at last.
    is_cut: bool = False
    #: An error for each that was passed and cannot be understood, so nobody knows if it fits.
    damaged: list[MetadataFormatError] = field(default_factory=list)


async def ledger_page(
    store: MetadataStore, wanted: LedgerFilter, limit: int, within_s: float | None = None
) -> LedgerPage:
    """Return the first of the ledgers that are wanted, ascending by id.

    Args:
        store: The cluster's metadata.
        wanted: Which ledgers.
        limit: At most so many.
        within_s: So long it looks for them; None: to the end.
    """
    page = LedgerPage()
    now_ns = store.env.clock.now_ns
    due_ns = None if within_s is None else now_ns() + int(within_s * 1e9)
    found = all_ledgers(store, page.damaged, after=wanted.after)
    async with contextlib.aclosing(found) as ledgers:
        async for metadata in ledgers:
            if wanted.takes(metadata):
                if len(page.ledgers) == limit:
                    page.next_after = page.ledgers[-1].ledger_id
                    break
                page.ledgers.append(metadata)
            if due_ns is not None and now_ns() >= due_ns:
                page.next_after, page.is_cut = metadata.ledger_id, True
                break
    return page


def ledger_row(metadata: LedgerMetadata) -> dict[str, object]:
    """Return what a list shows of a ledger."""
    ctime_ms = metadata.ctime_ms
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.word,
        # An open ledger's end is known to its bookies and its writer, not to the metadata.
        "entries": metadata.last_entry_id + 1 if metadata.is_closed else None,
        "bytes": metadata.length if metadata.is_closed else None,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum_size": metadata.write_quorum_size,
        "ack_quorum_size": metadata.ack_quorum_size,
        "created": None if ctime_ms is None or ctime_ms < 0 else at(ctime_ms),
        "custom_metadata": {
            name: value.decode(errors="backslashreplace")
            for name, value in metadata.custom_metadata.items()
        },
    }


def ledger_picture(
    metadata: LedgerMetadata, there: frozenset[BookieId], lacking: tuple[BookieId, ...] = ()
) -> dict[str, object]:
    """Return all that the metadata says of a ledger, and how many replicas are reachable.

    Args:
        metadata: The ledger's.
        there: Bookies that are registered.
        lacking: Bookies that are known to lack replicas of it.
    """
    replicas = {each.first_entry_id: each for each in exposure(metadata, there, lacking)}
    fragments = []
    for number, fragment in enumerate(metadata.fragments):
        exposed = replicas.get(fragment.first_entry_id)
        following = metadata.fragments[number + 1 : number + 2]
        is_last = not following
        last = following[0].first_entry_id - 1 if following else None
        if is_last and metadata.is_closed:
            last = metadata.last_entry_id
        fragments.append(
            {
                "first_entry_id": fragment.first_entry_id,
                "last_entry_id": last,
                "ensemble": list(fragment.ensemble),
                "down": [bookie for bookie in fragment.ensemble if bookie not in there],
                "replicas_reachable": None if exposed is None else exposed.copies,
            }
        )
    digest = metadata.digest_type
    return {
        **ledger_row(metadata),
        "digest": digest.name.lower() if digest else None,
        "has_password": bool(metadata.password),
        "format_version": metadata.format_version,
        "fragments": fragments,
    }
