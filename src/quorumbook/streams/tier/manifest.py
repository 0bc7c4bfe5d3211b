"""What is known of one segment's files, and how that may change: pure.

The node ``<stream>/<default>/tier/<18 digits>`` holds JSON:

    {"version": 1, "state": ..., "token": ..., "location": URI, "ledger": base64,
     "parts": [{"name", "first", "last", "size_bytes", "checksum"}, ...], "since_ms": ...}

``ledger`` is the ledger's metadata as its node had it, from which ``restore`` makes it again; the
bookies in it are of no meaning then.  ``token`` names the attempt and its directory: who takes
over from one that was interrupted writes another, and the first one's next step fails.

    COPYING ──> VERIFIED ──> LIVE ──> DELETED ──> RESTORING ──> (no node)
       └───────────┴──────────┴─────────┴── removed with the segment ──> REMOVING ──> (no node)

A reader takes the files where the ledger is gone and the state is LIVE or later; only LIVE and a
pause after it let the bookies' copy be deleted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from quorumbook.errors import LocalProtocolError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.metadata_format import decode as decode_ledger
from quorumbook.ledger.metadata_format import encode as encode_ledger
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.tier.places import below

_VERSION = 1
#: In the custom metadata of a ledger that is being made again.
RESTORING_KEY = "quorumbook.restoring"


class TierState(Enum):
    """Where a segment's files stand."""

    COPYING = "copying"
    VERIFIED = "verified"
    LIVE = "live"
    DELETED = "bookie-copy-deleted"
    RESTORING = "restoring"
    REMOVING = "removing"


#: In which the files are whole and may be read.
READABLE = (TierState.LIVE, TierState.DELETED, TierState.RESTORING)
_NEXT = {
    TierState.COPYING: (TierState.COPYING, TierState.VERIFIED, TierState.REMOVING),
    TierState.VERIFIED: (TierState.LIVE, TierState.COPYING, TierState.REMOVING),
    TierState.LIVE: (TierState.DELETED, TierState.RESTORING, TierState.REMOVING),
    TierState.DELETED: (TierState.RESTORING, TierState.REMOVING),
    TierState.RESTORING: (TierState.RESTORING, TierState.REMOVING),
    TierState.REMOVING: (TierState.REMOVING,),
}


class OffloadedFile(NamedTuple):
    """One file."""

    #: Within the attempt's directory.
    name: str
    first: EntryId
    last: EntryId
    size_bytes: int
    #: CRC-32C of its entries, as ``part_file`` counts it.
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the node of one segment says."""

    state: TierState
    token: str
    #: The directory of the attempt's files, as a path or URI.
    location: str
    ledger: LedgerMetadata
    parts: tuple[OffloadedFile, ...] = ()
    #: When the state began, by the wall clock of who wrote it.
    since_ms: int = 0

    @property
    def ledger_id(self) -> LedgerId:
        """The segment's ledger."""
        return self.ledger.ledger_id

    @property
    def is_readable(self) -> bool:
        """Tell whether readers may take the files."""
        return self.state in READABLE

    def path(self, part: OffloadedFile) -> str:
        """Return where a part is."""
        return below(self.location, part.name)

    def turned(self, state: TierState, now_ms: int, **changes: Any) -> Manifest:
        """Return it in another state.

        Raises:
            LocalProtocolError: no way leads there from here.
        """
        if state not in _NEXT[self.state]:
            raise LocalProtocolError(
                f"ledger {self.ledger_id}: its files are {self.state.value}; they cannot be "
                f"{state.value} next"
            )
        return replace(self, state=state, since_ms=now_ms, **changes)

    def verified(self, parts: Sequence[OffloadedFile], now_ms: int) -> Manifest:
        """Return it with files that were read again, every digest of them.

        Raises:
            LocalProtocolError: they are not the whole ledger.
        """
        expected = 0
        for part in parts:
            if part.first != expected or part.last < part.first:
                raise LocalProtocolError(f"{part.name} begins at {part.first}, not {expected}")
            expected = part.last + 1
        if expected != self.ledger.last_entry_id + 1:
            raise LocalProtocolError(
                f"ledger {self.ledger_id} ends at {self.ledger.last_entry_id}, its files at "
                f"{expected - 1}"
            )
        return self.turned(TierState.VERIFIED, now_ms, parts=tuple(parts))

    def may_delete(self, now_ms: int, delay_ms: int) -> bool:
        """Tell whether the bookies' copy has been unneeded for so long that it may go."""
        return self.state is TierState.LIVE and now_ms - self.since_ms >= delay_ms

    def encode(self) -> bytes:
        """Return the node's data."""
        return json.dumps(
            {
                "version": _VERSION,
                "state": self.state.value,
                "token": self.token,
                "location": self.location,
                "ledger_id": self.ledger_id,
                "ledger": base64.b64encode(encode_ledger(self.ledger)).decode(),
                "parts": [part._asdict() for part in self.parts],
                "since_ms": self.since_ms,
            },
            separators=(",", ":"),
            sort_keys=True,
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read a node's data.

        Raises:
            UnsupportedFormatError: of a newer release.
            CorruptRecordsError: it is none.
        """
        try:
            found = json.loads(data)
            if found["version"] != _VERSION:
                raise UnsupportedFormatError(
                    f"the list of a segment's files is of version {found['version']}"
                )
            return cls(
                state=TierState(found["state"]),
                token=str(found["token"]),
                location=str(found["location"]),
                ledger=decode_ledger(int(found["ledger_id"]), base64.b64decode(found["ledger"])),
                parts=tuple(OffloadedFile(**part) for part in found["parts"]),
                since_ms=int(found["since_ms"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Neither the data nor an error that quotes them: the ledger's password is in there.
            raise CorruptRecordsError(
                f"{len(data)} bytes are not a list of a segment's files ({type(error).__name__})"
            ) from None


def is_restoring(ledger: LedgerMetadata) -> bool:
    """Tell whether a ledger is being made again, and not to be read yet."""
    return RESTORING_KEY in ledger.custom_metadata
