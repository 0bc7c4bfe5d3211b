"""Whose records a ledger holds that came into its stream by a transaction; pure.

In a ledger's custom metadata, each as ``<application> <attempt>``:

    transaction           who wrote the ledger
    merged_transaction    of one that others were merged into: the newest of those who wrote their
                          records, if that is one application; the merging is not what they are of
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quorumbook.streams.format.names import MERGED_KEY
from quorumbook.streams.transactions.state import AttemptName

TRANSACTION_KEY = "transaction"
MERGED_TRANSACTION_KEY = "merged_transaction"


class Origin(NamedTuple):
    """Of which attempt of which application records are."""

    application: str
    attempt: AttemptName

    def encode(self) -> bytes:
        """Return what custom metadata say."""
        return f"{self.application} {self.attempt}".encode()


def origin_of(custom_metadata: Mapping[str, bytes]) -> Origin | None:
    """Return whose a ledger's records are; None: of several applications, or of none."""
    key = MERGED_TRANSACTION_KEY if MERGED_KEY in custom_metadata else TRANSACTION_KEY
    text = custom_metadata.get(key, b"").decode(errors="replace")
    application, _, name = text.rpartition(" ")
    attempt = AttemptName.parse(name)
    return None if attempt is None or not application else Origin(application, attempt)


def common_origin(origins: Iterable[Origin | None]) -> Origin | None:
    """Return whose the records of several ledgers are together, as their newest batch says it."""
    found = list(origins)
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found) or len({each.application for each in known}) > 1:
        return None
    return max(known)
