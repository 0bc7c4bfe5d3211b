"""The commonest small entry of ours, laid out by one call: a note of time and one user record.

    13 envelope, not compressed | 20 and 18 control record with the time | 20 and n user record

Its bytes are those that ``envelope``, ``control`` and ``records`` make of the same, one after the
other; a writer with small entries makes nothing else.
"""

from __future__ import annotations

from struct import Struct

from quorumbook.streams.format.control import encode_time_note
from quorumbook.streams.format.envelope import ENVELOPE_SIZE_BYTES, encode_entry
from quorumbook.streams.format.records import CONTROL

_TIME_SIZE_BYTES = 8
_NOTE = encode_time_note(0)
_NOTE_HEAD = _NOTE[:-_TIME_SIZE_BYTES]
_ENVELOPE_HEAD = encode_entry(b"")[: ENVELOPE_SIZE_BYTES - 8]
_LAYOUT = Struct(f">{len(_ENVELOPE_HEAD)}siiQqi{len(_NOTE_HEAD)}sqQqi")
_BEFORE_PAYLOAD_BYTES = _LAYOUT.size - ENVELOPE_SIZE_BYTES


def encode_lone_record(
    count_before: int, time_ms: int, txid_before: int, txid: int, payload: bytes
) -> bytes:
    """Return an entry with one user record that carries nothing beside its payload.

    Args:
        count_before: How many user records the segment has before it.
        time_ms: When the entry is made.
        txid_before: The transaction id of the record before it; -1: there is none.
        txid: Its own.
        payload: The record.
    """
    size = len(payload)
    stored = _BEFORE_PAYLOAD_BYTES + size
    return (
        _LAYOUT.pack(
            _ENVELOPE_HEAD, stored, stored,
            count_before << 16 | CONTROL, txid_before, len(_NOTE), _NOTE_HEAD, time_ms,
            (count_before + 1) << 16, txid, size,
        )
        + payload
    )  # fmt: skip
