"""Identifiers and the few numbers every room agrees on.

Ledger and entry ids are plain 64-bit integers and a bookie id is its registered text, so that
nothing is wrapped or unwrapped on the hot path; the aliases name what an argument means.
"""

from typing import TypeAlias

LedgerId: TypeAlias = int
EntryId: TypeAlias = int
BookieId: TypeAlias = str

#: "No entry": the last add confirmed of an empty ledger, and "the last entry you have" in reads.
INVALID_ENTRY_ID: EntryId = -1

MASTER_KEY_SIZE_BYTES = 20
DEFAULT_BOOKIE_PORT = 3181

#: Largest frame either side accepts, its 4-byte length included (the peer's default).
MAX_FRAME_SIZE_BYTES = 5 * 1024 * 1024

#: What may stand around a payload in a frame: header, keys, entry header, largest digest, and
#: the fields of a v3 message.  A payload of ``MAX_FRAME_SIZE_BYTES - FRAME_OVERHEAD_BYTES``
#: fits into every frame that ever carries it, recovery adds and v3 answers included (S74).
FRAME_OVERHEAD_BYTES = 256
MAX_PAYLOAD_SIZE_BYTES = MAX_FRAME_SIZE_BYTES - FRAME_OVERHEAD_BYTES
