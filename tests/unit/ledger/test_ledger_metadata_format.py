"""Metadata bytes, against what the peer's own code printed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from quorumbook.errors import MetadataFormatError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.ledger.metadata_format import decode, encode
from quorumbook.protocol.digest import DigestType

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "ledger_metadata.json").read_text(encoding="utf-8")
)
LEDGER_ID = 12345
NODE_CTIME_MS = 1_600_000_000_000
DIGEST_NAMES = {"MAC": "HMAC"}


def metadata_of(fields: dict[str, Any]) -> LedgerMetadata:
    name = fields["digest_type"]
    has_ctime = fields["ctime"] >= 0
    return LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=fields["ensemble_size"],
        write_quorum_size=fields["write_quorum_size"],
        ack_quorum_size=fields["ack_quorum_size"],
        fragments=tuple(
            Fragment(item["first_entry_id"], tuple(item["bookies"])) for item in fields["ensembles"]
        ),
        state=LedgerState[fields["state"]],
        last_entry_id=fields["last_entry_id"],
        length=fields["length"],
        digest_type=DigestType[DIGEST_NAMES.get(name, name)] if name else None,
        password=bytes.fromhex(fields["password_hex"]) if fields["has_password"] else None,
        ctime_ms=fields["ctime"] if has_ctime else None,
        is_ctime_stored=fields["ctime_stored"],
        custom_metadata={
            key: bytes.fromhex(value) for key, value in fields["custom_metadata_hex"].items()
        },
        format_version=fields["format_version"],
        creator_token=fields["ctoken"] or None,
    )


CASES = GOLDEN["cases"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_metadata_is_written_as_the_peer_writes_it(case: dict[str, Any]) -> None:
    assert encode(metadata_of(case["input"])).hex() == case["serialized_hex"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_metadata_is_read_as_the_peer_reads_it(case: dict[str, Any]) -> None:
    read = decode(LEDGER_ID, bytes.fromhex(case["serialized_hex"]), NODE_CTIME_MS)
    assert read == metadata_of(case["parsed_back_with_znode_ctime_1600000000000"])


@pytest.mark.parametrize("case", GOLDEN["must_accept"])
def test_other_spellings_of_the_peer_are_read(case: dict[str, Any]) -> None:
    read = decode(LEDGER_ID, case["utf8"].encode(), NODE_CTIME_MS)
    assert read == metadata_of(case["parsed"])


@pytest.mark.parametrize("case", GOLDEN["must_reject"])
def test_what_the_peer_rejects_is_rejected(case: dict[str, Any]) -> None:
    with pytest.raises(MetadataFormatError):
        decode(LEDGER_ID, case["utf8"].encode())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_reading_and_writing_again_keeps_every_byte(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["serialized_hex"])
    assert encode(decode(LEDGER_ID, data, NODE_CTIME_MS)) == data


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_damaged_metadata_raises_a_typed_error_or_reads_as_something(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["serialized_hex"])
    for position in range(len(data)):
        for damaged in (
            data[:position],
            data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :],
        ):
            with contextlib.suppress(MetadataFormatError):
                decode(LEDGER_ID, damaged)
