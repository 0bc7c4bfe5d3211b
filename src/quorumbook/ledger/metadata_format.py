r"""Bytes of a ledger's metadata node.

    encode(metadata) -> bytes
    decode(ledger_id, data, node_ctime_ms=None, incarnation=None) -> LedgerMetadata
                                                        MetadataFormatError

    "BookieMetadataFormatVersion\t" version "\n" body        version: 1, 2 or 3, decimal

    version 3   varint32 size, LedgerMetadataFormat in protobuf's binary form
    version 2   LedgerMetadataFormat in protobuf's text form, without the creator token
    version 1   write quorum "\n" ensemble size "\n" length "\n"
                for each fragment: first entry id ("\t" bookie id)* "\n"
                then, without a line end: nothing (open), "-102\tCLOSED" (in recovery)
                or last entry id "\tCLOSED"

A ledger keeps the version it was written with: an older client may still have to read it.
Version 1 knows no ack quorum (it is the write quorum), digest, password or custom metadata.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError, EncodeError

from quorumbook.errors import MetadataFormatError
from quorumbook.ids import INVALID_ENTRY_ID, LedgerId
from quorumbook.ledger.metadata import FORMAT_VERSIONS, Fragment, LedgerMetadata, LedgerState
from quorumbook.protocol.digest import DigestType
from quorumbook.protocol.messages import message_class

_MAGIC = b"BookieMetadataFormatVersion\t"
_V1_IN_RECOVERY = -102
_V1_CLOSED = "CLOSED"


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the node's bytes in the version the metadata carries."""
    header = _MAGIC + b"%d\n" % metadata.format_version
    if metadata.format_version == 1:
        return header + _encode_v1(metadata)
    message = _to_message(metadata)
    try:
        if metadata.format_version == 2:
            return header + text_format.MessageToString(message, as_utf8=False).encode("ascii")
        body: bytes = message.SerializeToString(deterministic=True)
    except EncodeError as error:
        raise MetadataFormatError(str(error), ledger_id=metadata.ledger_id) from error
    return header + _varint(len(body)) + body


def decode(
    ledger_id: LedgerId,
    data: bytes,
    node_ctime_ms: int | None = None,
    incarnation: int | None = None,
) -> LedgerMetadata:
    """Read a node's bytes.

    Args:
        ledger_id: the ledger; the bytes do not name it.
        data: what the node holds.
        node_ctime_ms: when the node was created; stands in for a creation time that the bytes
            do not carry.
        incarnation: what tells this node from others of its path, before it and after it.
    """
    version, body = _split(ledger_id, data)
    try:
        if version == 1:
            return _decode_v1(ledger_id, body, incarnation)
        message = message_class("LedgerMetadataFormat")()
        if version == 2:
            text_format.Parse(body.decode("utf-8"), message)
        else:
            size, start = _read_varint(body)
            if len(body) < start + size:
                raise MetadataFormatError("the metadata is cut off")
            message.ParseFromString(body[start : start + size])
        if not message.IsInitialized():
            raise MetadataFormatError("a required field is missing")
        return _from_message(ledger_id, version, message, node_ctime_ms, incarnation)
    except (DecodeError, text_format.ParseError, ValueError) as error:
        # What the libraries say quotes the data, and a password is among these.
        raise MetadataFormatError(
            f"ledger {ledger_id}: {_reason(error)}", ledger_id=ledger_id
        ) from None


def _reason(error: Exception) -> str:
    """Say what is wrong with metadata, and nothing of what is in them."""
    if isinstance(error, text_format.ParseError):
        return f"the metadata cannot be read from line {error.GetLine()} on"
    if isinstance(error, UnicodeDecodeError):
        return "the metadata are not UTF-8 text"
    if isinstance(error, DecodeError):
        return "the metadata cannot be read"
    return str(error)


def _split(ledger_id: LedgerId, data: bytes) -> tuple[int, bytes]:
    line_end = data.find(b"\n", 0, len(_MAGIC) + 12)
    if not data.startswith(_MAGIC) or line_end < 0:
        raise MetadataFormatError(
            f"ledger {ledger_id}: {len(data)} bytes are not ledger metadata", ledger_id=ledger_id
        )
    digits = data[len(_MAGIC) : line_end]
    version = int(digits) if digits.isdigit() else 0
    if version not in FORMAT_VERSIONS:
        raise MetadataFormatError(
            f"ledger {ledger_id}: metadata format version {digits.decode('ascii', 'replace')} is "
            f"not known; this release reads {FORMAT_VERSIONS}",
            ledger_id=ledger_id,
        )
    return version, data[line_end + 1 :]


def _to_message(metadata: LedgerMetadata) -> Any:
    digest_type = metadata.digest_type
    fragments = [
        {"ensembleMember": fragment.ensemble, "firstEntryId": fragment.first_entry_id}
        for fragment in metadata.fragments
    ]
    # What is None is left out.
    return message_class("LedgerMetadataFormat")(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=metadata.state.value,
        segment=fragments,
        digestType=None if digest_type is None else int(digest_type),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum_size,
        ctime=metadata.ctime_ms if metadata.is_ctime_stored else None,
        customMetadata=[
            {"key": key, "value": value} for key, value in metadata.custom_metadata.items()
        ],
        cToken=(metadata.creator_token or 0) if metadata.format_version >= 3 else None,
    )


def _from_message(
    ledger_id: LedgerId,
    version: int,
    message: Any,
    node_ctime_ms: int | None,
    incarnation: int | None,
) -> LedgerMetadata:
    state = LedgerState(message.state)
    is_closed = state is LedgerState.CLOSED
    if is_closed and not message.HasField("lastEntryId"):
        raise MetadataFormatError("a closed ledger without a last entry id")
    is_ctime_stored = message.HasField("ctime")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=(
            message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
        ),
        fragments=tuple(
            Fragment(segment.firstEntryId, tuple(segment.ensembleMember))
            for segment in message.segment
        ),
        state=state,
        # Before the close these fields say nothing, whatever a writer left in them.
        last_entry_id=message.lastEntryId if is_closed else INVALID_ENTRY_ID,
        length=message.length if is_closed else 0,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        ctime_ms=message.ctime if is_ctime_stored else node_ctime_ms,
        is_ctime_stored=is_ctime_stored,
        custom_metadata={item.key: item.value for item in message.customMetadata},
        format_version=version,
        creator_token=(message.cToken or None) if version >= 3 else None,
        incarnation=incarnation,
    )


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    lines = [
        f"{metadata.write_quorum_size}\n{metadata.ensemble_size}\n{metadata.length}\n",
        *(
            "\t".join((str(fragment.first_entry_id), *fragment.ensemble)) + "\n"
            for fragment in metadata.fragments
        ),
    ]
    if metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_V1_IN_RECOVERY}\t{_V1_CLOSED}")
    elif metadata.is_closed:
        lines.append(f"{metadata.last_entry_id}\t{_V1_CLOSED}")
    return "".join(lines).encode()


def _decode_v1(ledger_id: LedgerId, body: bytes, incarnation: int | None) -> LedgerMetadata:
    lines = body.decode("utf-8").split("\n")
    if len(lines) < 4:
        raise ValueError("version 1 metadata is cut off")
    quorum, ensemble_size, length = (int(line) for line in lines[:3])
    state, last_entry_id = LedgerState.OPEN, INVALID_ENTRY_ID
    fragments = []
    for line in lines[3:]:
        if not line:
            continue
        first, *rest = line.split("\t")
        if rest == [_V1_CLOSED]:
            last_entry_id = int(first)
            if last_entry_id == _V1_IN_RECOVERY:
                state, last_entry_id = LedgerState.IN_RECOVERY, INVALID_ENTRY_ID
            else:
                state = LedgerState.CLOSED
            break
        fragments.append(Fragment(int(first), tuple(rest)))
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum_size=quorum,
        ack_quorum_size=quorum,
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        format_version=1,
        incarnation=incarnation,
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index in range(5):
        if index >= len(data):
            break
        value |= (data[index] & 0x7F) << (7 * index)
        if data[index] < 0x80:
            return value, index + 1
    raise MetadataFormatError("the size of the metadata is not readable")
