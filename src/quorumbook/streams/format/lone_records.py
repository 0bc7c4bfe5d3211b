"""The commonest small entry of ours, laid out by one call: a note of time and one user record.

    13 envelope, not compressed | 20 and 18 control record with the time | 20 and n user record

Its bytes are those that ``envelope``, ``control`` and ``records`` make of the same, one after the
other; a writer with small entries makes nothing else.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature

from quorumbook.streams.format.control import encode_time_note
from quorumbook.streams.format.envelope import ENVELOPE_SIZE_BYTES, encode_entry
from quorumbook.streams.format.records import CONTROL

_TIME_SIZE_BYTES = 8
_NOTE = encode_time_note(0)
_NOTE_HEAD = _NOTE[:-_TIME_SIZE_BYTES]
_ENVELOPE_HEAD = encode_entry(b"")[: ENVELOPE_SIZE_BYTES - 8]
_LAYOUT = Struct(f">{len(_ENVELOPE_HEAD)}siiQqi{len(_NOTE_HEAD)}sqQqi")
_BEFORE_PAYLOAD_BYTES = _LAYOUT.size - ENVELOPE_SIZE_BYTES
_NOTE_SIZE_BYTES = len(_NOTE)
_POSITIONS = 1 << 32


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
            count_before << 16 | CONTROL, txid_before, _NOTE_SIZE_BYTES, _NOTE_HEAD, time_ms,
            (count_before + 1) << 16, txid, size,
        )
        + payload
    )  # fmt: skip


def decode_lone_record(entry: bytes) -> tuple[int, int, int, bytes] | None:
    """Take such an entry apart.

    Returns:
        How many user records the segment has before it, when it was made, the transaction id and
        the payload; None if it is an entry of another kind, a damaged one included.
    """
    try:
        (head, raw, stored, control, _, note, note_head, time_ms, metadata, txid, size) = (
            _LAYOUT.unpack_from(entry)
        )
    except StructError:
        return None
    count_before: int = control >> 16
    if (
        size != len(entry) - _LAYOUT.size
        or stored != size + _BEFORE_PAYLOAD_BYTES
        or raw != stored
        or control != count_before << 16 | CONTROL
        or metadata != (count_before + 1) << 16
        or count_before + 1 >= _POSITIONS
        or note != _NOTE_SIZE_BYTES
        or note_head != _NOTE_HEAD
        or head != _ENVELOPE_HEAD
    ):
        return None
    return count_before, time_ms, txid, entry[_LAYOUT.size :]
