"""Creates ledgers: checks their shape, chooses bookies, takes an id, writes the metadata.

Nothing is sent to bookies: a ledger begins there with its first entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from quorumbook.client.bookies import Bookies
from quorumbook.client.context import Context
from quorumbook.env import logger
from quorumbook.errors import LedgerExistsError, LocalProtocolError, NotEnoughBookiesError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.labels import CUSTOM_KEY, show_labels
from quorumbook.ledger.placement.policy import Shape
from quorumbook.protocol.digest import DigestType

_log = logger("client")
_LEDGER_IDS = range(1 << 63)


class NewLedgers(Protocol):
    """What is needed of ``metadata.ledgers.LedgerManager``."""

    async def create(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """Record a ledger; return its metadata as written, and their version."""
        ...


class LedgerIds(Protocol):
    """What is needed of ``metadata.ids.LedgerIdGenerator``."""

    async def next_id(self) -> LedgerId:
        """Return an id that nobody has had."""
        ...


async def create(
    context: Context,
    ledgers: NewLedgers,
    ids: LedgerIds,
    shape: Shape,
    *,
    ledger_id: LedgerId | None,
    password: bytes,
    digest_type: DigestType,
    custom_metadata: Mapping[str, bytes],
    bookie_labels: Mapping[str, str],
    may_shrink: bool,
) -> tuple[LedgerMetadata, int]:
    """Create a ledger and return its metadata and their version.

    Args:
        context: The client's.
        ledgers: Where it is recorded.
        ids: Where ids come from.
        shape: How it is spread.
        ledger_id: The id to take; None: a new one.
        password: Who writes or recovers it must know it.
        digest_type: How entries are protected.
        custom_metadata: Stored with it.
        bookie_labels: What its bookies must carry.
        may_shrink: Where bookies are few, a smaller ensemble will do, down to the write quorum.

    Raises:
        LocalProtocolError: the shape or the id is impossible.
        NotEnoughBookiesError: too few bookies take writes, or too few of those with the labels.
        LedgerExistsError: there is a ledger of the given id.
    """
    shape.check()
    if ledger_id is not None and ledger_id not in _LEDGER_IDS:
        raise LocalProtocolError(f"a ledger id is 0 to 2**63 - 1, not {ledger_id}")
    custom = dict(custom_metadata)
    if bookie_labels:
        custom[CUSTOM_KEY] = show_labels(bookie_labels).encode()
    ensemble = await _new_ensemble(context.bookies, shape, custom, may_shrink=may_shrink)
    while True:
        metadata = LedgerMetadata(
            ledger_id=await ids.next_id() if ledger_id is None else ledger_id,
            ensemble_size=len(ensemble),
            write_quorum_size=shape.write_quorum_size,
            ack_quorum_size=shape.ack_quorum_size,
            fragments=(Fragment(0, ensemble),),
            digest_type=DigestType(digest_type),
            password=password,
            ctime_ms=context.env.clock.wall_ms(),
            is_ctime_stored=True,
            custom_metadata=custom,
        )
        try:
            return await ledgers.create(metadata)
        except LedgerExistsError:
            # Somebody chose this id by hand; the generator has others.
            if ledger_id is not None:
                raise


async def _new_ensemble(
    bookies: Bookies, shape: Shape, custom: Mapping[str, bytes], *, may_shrink: bool
) -> tuple[BookieId, ...]:
    while True:
        try:
            return await bookies.new_ensemble(shape, custom)
        except NotEnoughBookiesError:
            if not may_shrink or shape.ensemble_size == shape.write_quorum_size:
                raise
            shape = dataclasses.replace(shape, ensemble_size=shape.ensemble_size - 1)
            _log.info("bookies are few: trying an ensemble of %d", shape.ensemble_size)
