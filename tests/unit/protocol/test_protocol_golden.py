"""Bytes that the peer's own code printed, or that were recorded on its connections."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from wire_encoders import (
    encode_v2_answer,
    encode_v2_request,
    encode_v3_request,
    encode_v3_response,
)

from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol import answers, availability
from quorumbook.protocol import requests as rq
from quorumbook.protocol.digest import DigestType, digester, mac_key, master_key
from quorumbook.protocol.messages import message_class
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.status import V2_CODE, Status, error_for, status_of_v2
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

GOLDEN = Path(__file__).parents[2] / "golden"
hx = bytes.fromhex


def load(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases]


# Digests and keys


def test_keys_are_those_of_the_peer() -> None:
    for case in load("digests.json")["keys"]:
        assert master_key(hx(case["password_hex"])).hex() == case["master_key_hex"]
        assert mac_key(hx(case["password_hex"])).hex() == case["mac_key_hex"]


def test_entries_are_sealed_framed_and_opened_as_the_peer_does() -> None:
    for case in load("digests.json")["entries"]:
        password, payload = hx(case["password_hex"]), hx(case["payload_hex"])
        sealer = digester(DigestType[case["digest_type"]], password)
        ledger_id, entry_id = case["ledger_id"], case["entry_id"]
        lac, length = case["last_add_confirmed"], case["length"]
        entry = sealer.seal(ledger_id, entry_id, lac, length, payload)
        assert entry.hex() == case["entry_hex"]
        assert sealer.size_bytes == case["mac_length"]
        sealer.verify(entry, ledger_id, entry_id)
        sealer.verify(entry, ledger_id, None)
        assert sealer.payload(entry) == payload
        before = length - len(payload)
        assert sealer.seal_many(ledger_id, entry_id, lac, before, [payload]) == ([entry], length)
        key = master_key(password)
        for flags, name in ((0, "v2_add_frame_hex"), (6, "v2_recovery_highprio_add_frame_hex")):
            frames, new_length = v2.seal_add_frames(
                sealer, key, flags, ledger_id, entry_id, lac, before, [payload]
            )
            assert [frame.hex() for frame in frames] == [case[name]]
            assert new_length == length
            assert v2.encode_adds(key, flags, [entry]) == frames
            assert frames[0][v2.ADD_ENTRY_OFFSET :] == entry


def test_large_entries_have_the_digests_of_the_peer() -> None:
    for case in load("digests.json")["large_entries"]:
        payload = bytes((i * 31 + 7) & 0xFF for i in range(256)) * (
            case["payload_pattern_length"] // 256 + 1
        )
        payload = payload[: case["payload_pattern_length"]]
        sealer = digester(DigestType[case["digest_type"]], hx(case["password_hex"]))
        entry = sealer.seal(
            case["ledger_id"],
            case["entry_id"],
            case["last_add_confirmed"],
            case["length"],
            payload,
        )
        assert hashlib.sha256(entry).hexdigest() == case["entry_sha256"]
        assert entry[32 : 32 + sealer.size_bytes].hex() == case["digest_hex"]


def test_explicit_lac_packets_are_those_of_the_peer() -> None:
    for case in load("digests.json")["explicit_lac_packets"]:
        sealer = digester(DigestType[case["digest_type"]], hx(case["password_hex"]))
        packet = sealer.lac_packet(case["ledger_id"], case["lac"])
        assert packet.hex() == case["packet_hex"]
        assert sealer.parse_lac_packet(packet, case["ledger_id"]) == case["lac"]


# v2


def test_packet_headers_are_those_of_the_peer() -> None:
    for case in load("v2_frames.json")["packet_headers"]:
        header = v2.packet_header(case["version"], case["opcode"], case["flags"])
        assert f"{header:08x}" == case["header_hex"]
        assert v2.split_packet_header(header) == (
            case["decoded_version"],
            case["decoded_opcode"],
            case["decoded_flags"],
        )


@pytest.mark.parametrize("case", named(load("v2_frames.json")["frames"]))
def test_v2_frames_decode_to_the_peers_fields_and_encode_to_its_bytes(case: Any) -> None:
    frame, fields = hx(case["frame_hex"]), case["fields"]
    item: Any
    if case["kind"] == "request":
        (item,) = RequestDecoder().feed(frame)
        assert encode_v2_request(item) == frame
        assert item.token == fields["version"]
    else:
        (item,) = v2.AnswerDecoder().feed(frame)
        assert encode_v2_answer(item) == frame
        assert getattr(item, "code", None) == fields.get("error_code")
    expected: dict[str, Any] = {
        name: fields[name] for name in ("ledger_id", "request_id", "max_count") if name in fields
    }
    if "auth_plugin_name" in fields:
        expected = {"plugin": fields["auth_plugin_name"], "payload": hx(fields["payload_hex"])}
    if "max_size" in fields:
        expected["max_size_bytes"] = fields["max_size"]
    if fields["opcode"] in (v2.READ, v2.BATCH_READ) and case["kind"] == "request":
        key = fields["master_key_hex"]
        expected["master_key"] = key and hx(key)
        expected["is_fencing"] = bool(fields["flags"] & v2.FENCE)
        expected["is_high_priority"] = bool(fields["flags"] & v2.HIGH_PRIORITY)
    if "data_hex" in fields:
        expected["entry"] = hx(fields["data_hex"])
    if isinstance(item, rq.AddRun):
        assert item.run.entry(fields["entry_id"]) == hx(fields["entry_hex"])
        assert item.run.ledger_id == expected.pop("ledger_id")
        assert item.master_key.hex() == fields["master_key_hex"]
    elif "entry_id" in fields:
        name = "entry_id" if hasattr(item, "entry_id") else "first_entry_id"
        expected[name] = fields["entry_id"]
    assert {name: getattr(item, name) for name in expected} == expected
    if fields.get("entries_hex"):
        sealer = digester(DigestType.CRC32C, b"passwd")
        payloads = sealer.open_run(item.data, item.ledger_id, item.first_entry_id)
        assert payloads == [hx(entry)[36:] for entry in fields["entries_hex"]]


# v3


def test_numbers_of_the_enums_are_those_of_the_peer() -> None:
    nested = {"ReadRequest": "ReadRequest.Flag", "AddRequest": "AddRequest.Flag"}
    checked = set()
    for case in load("v3_frames.json")["enums"]:
        for holder in ("Request", "BKPacketHeader", "Response", "ReadRequest", "AddRequest"):
            descriptor = message_class(holder).DESCRIPTOR
            for field in descriptor.fields:
                if field.enum_type is None:
                    continue
                name = field.enum_type.name
                if case["enum"] in (name, nested.get(holder), f"{holder}.{name}"):
                    number = field.enum_type.values_by_name.get(case["name"])
                    if number is not None:
                        assert number.number == case["value"]
                        checked.add(case["enum"])
    assert {"StatusCode", "OperationType", "ProtocolVersion"} <= checked
    for case in load("v3_frames.json")["enums"]:
        if case["enum"] == "StatusCode":
            assert case["value"] in list(Status)
        if case["enum"] == "OperationType":
            assert rq.Operation[case["name"]] == case["value"]


def as_request(frame: bytes) -> Any:
    message = message_class("Request").FromString(frame[4:])
    # Logging context is not kept; a high priority goes out as the peer's number.
    message.ClearField("requestContext")
    return message


@pytest.mark.parametrize("case", named(load("v3_frames.json")["frames"]))
def test_v3_frames_decode_and_encode_to_the_peers_messages(case: Any) -> None:
    frame = hx(case["frame_hex"])
    if case["kind"] == "request":
        (request,) = RequestDecoder().feed(frame)
        assert as_request(encode_v3_request(request)) == as_request(frame)
        assert str(message_class("Request").FromString(frame[4:])).split() == case[
            "text"
        ].split() or (
            "flag" in case["text"]  # the peer prints, and writes, that field first
        )
    else:
        (response,) = v3.ResponseDecoder().feed(frame)
        assert encode_v3_response(response) == frame


def test_v2_frames_are_never_taken_for_v3() -> None:
    for case in load("v3_frames.json")["v3_parse_attempt_on_v2_frames"]:
        decoder = RequestDecoder()
        (request,) = decoder.feed(hx(case["frame_hex"]))
        assert decoder.is_v2
        assert request.version == 2


# Availability, status codes


def test_availability_is_encoded_and_decoded_as_the_peer_does() -> None:
    cases = load("availability.json")
    for case in cases["cases"]:
        assert availability.encode(case["entries"]).hex() == case["serialized_hex"]
        decoded = availability.decode(hx(case["serialized_hex"]))
        assert decoded == sorted(set(case["entries"]))
        assert len(decoded) == case["total_available"]
    for case in cases["hand_made_multi_sequence_groups_accepted_by_the_java_reader"]:
        assert availability.decode(hx(case["serialized_hex"])) == case["entries_java_sees"]


def test_errors_of_bookies_carry_the_peers_client_codes() -> None:
    codes = {case["value"]: case["name"] for case in load("bkexception_codes.json")}
    names = {
        Status.NO_LEDGER: "NoSuchLedgerExistsException",
        Status.NO_ENTRY: "NoSuchEntryException",
        Status.UNAUTHORIZED: "UnauthorizedAccessException",
        Status.BAD_VERSION: "ProtocolVersionException",
        Status.FENCED: "LedgerFencedException",
        Status.READ_ONLY: "WriteOnReadOnlyBookieException",
        Status.TOO_MANY_REQUESTS: "TooManyRequestsException",
        Status.UNKNOWN_LEDGER_STATE: "DataUnknownException",
        Status.IO_ERROR: "ReadException",
    }
    for status, name in names.items():
        assert codes[error_for(status).code] == name
    for status in Status:
        assert status_of_v2(V2_CODE[status]) == (
            Status.IO_ERROR if status is Status.UNKNOWN_LEDGER_STATE else status
        )


# What was recorded on the peer's connections


def recorded_exchanges() -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, exchange)
        for name, key in (
            ("live_probe_db.json", "exchanges"),
            ("live_probe_sorted.json", "exchanges"),
            ("live_auth.json", "raw_exchanges"),
        )
        for exchange in load(name)[key]
    ]


#: Refused by what the connection said before, which a fresh decoder does not know.
_REFUSED_BY_STATE = ("has spoken v2", "then v3 again", "before authentication", "refus", "foreign")


@pytest.mark.parametrize(
    "exchange", [pytest.param(e, id=f"{n}:{e['name']}") for n, e in recorded_exchanges()]
)
def test_recorded_exchanges_decode_and_what_broke_a_connection_raises(exchange: Any) -> None:
    frame = hx(exchange["request_frame_hex"])
    is_broken = "reset" in exchange["outcome"]
    if is_broken and not any(words in exchange["name"] for words in _REFUSED_BY_STATE):
        with pytest.raises(RemoteProtocolError):
            RequestDecoder().feed(frame)
        return
    (request,) = RequestDecoder().feed(frame)
    assert request.version == (3 if exchange["request_decoded"].startswith("v3") else 2)
    fences_without_key = isinstance(request, rq.Read) and (
        request.is_fencing and request.master_key is None
    )  # our client cannot even say that
    if not isinstance(request, rq.Unsupported) and not fences_without_key:
        if request.version == 3:
            assert as_request(encode_v3_request(request)) == as_request(frame)
        elif request.token == 2:
            assert encode_v2_request(request) == frame
    if "response_frame_hex" not in exchange or not exchange["response_frame_hex"]:
        return
    answer = hx(exchange["response_frame_hex"])
    if request.version == 3:
        (response,) = v3.ResponseDecoder().feed(answer)
        assert encode_v3_response(response) == answer
        assert (response.txn_id, response.operation) == (request.token, request.operation)
        if response.status is not Status.OK and not response.lac_body:
            expected = answers.error_answer(request, response.status)
            if not response.has_details and not isinstance(request, rq.Unsupported):
                expected = answers.bare_answer(request, response.status)
            assert expected == answer
    elif request.token == 2:
        (v2_answer,) = v2.AnswerDecoder().feed(answer)
        assert encode_v2_answer(v2_answer) == answer
        code = getattr(v2_answer, "code", 0)
        if code:
            assert answers.error_answer(request, status_of_v2(code)) == answer
    else:
        # Other versions are for old clients: we answer them, we do not speak them.
        status = Status.BAD_VERSION if request.token > 2 else Status.OK
        assert isinstance(request, rq.Unsupported) == (request.token > 2)
        entry = answer[28:] or None
        again = (
            answers.error_answer(request, status)
            if isinstance(request, rq.Unsupported)
            else answers.read_answer(request, status, entry)  # type: ignore[arg-type]
        )
        assert again == answer


def recorded_sessions() -> list[Any]:
    return [
        pytest.param(session, id=f"{name}-{number}")
        for name, key in (
            ("live_java_client.json", "sessions"),
            ("live_auth.json", "java_client_sessions"),
        )
        for number, session in enumerate(load(name)[key])
    ]


@pytest.mark.parametrize("session", recorded_sessions())
def test_everything_a_java_client_says_and_hears_decodes(session: Any) -> None:
    servers: dict[int, RequestDecoder] = {}
    requests = replies = 0
    for line in session["log"]:
        if "frame_hex" not in line:
            continue
        frame = hx(line["frame_hex"])
        if line["direction"] == "client->bookie":
            decoder = servers.setdefault(line["connection"], RequestDecoder())
            (request,) = decoder.feed(frame)
            requests += 1
            if request.version == 3:
                assert as_request(encode_v3_request(request)) == as_request(frame)
            else:
                assert encode_v2_request(request) == frame
        elif servers[line["connection"]].is_v2:
            (answer,) = v2.AnswerDecoder().feed(frame)
            assert encode_v2_answer(answer) == frame
            replies += 1
        else:
            (response,) = v3.ResponseDecoder().feed(frame)
            assert encode_v3_response(response) == frame
            replies += 1
    assert requests
    assert replies
