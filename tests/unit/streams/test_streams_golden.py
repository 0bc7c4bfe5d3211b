"""Bytes and texts that DistributedLog 4.18 itself made, read and written again."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from quorumbook.errors import QuorumbookError
from quorumbook.streams.errors import (
    CorruptRecordsError,
    DataLossError,
    InvalidStreamNameError,
    UnsupportedFormatError,
)
from quorumbook.streams.format import names, records
from quorumbook.streams.format.binding import AccessControl, Binding
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.envelope import decode_entry, encode_entry
from quorumbook.streams.format.position import Position, parse_position
from quorumbook.streams.format.record_sets import decode_record_set, encode_record_set
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.segments import check_no_gap, ordered, start_sequence_ids, unknown_start

GOLDEN = Path(__file__).parents[2] / "golden" / "streams"
hx = bytes.fromhex


def load(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def dlsn(case: dict[str, int]) -> Position:
    return Position(case["log_segment_sequence_no"], case["entry_id"], case["slot_id"])


def test_golden_positions_are_written_and_read() -> None:
    golden = load("dlsn")
    for case in golden["cases"]:
        position = dlsn(case["dlsn"])
        assert position.to_bytes().hex() == case["v1_hex"]
        assert position.to_text() == case["v1_base64"]
        for version in "v0", "v1":
            assert Position.from_bytes(hx(case[f"{version}_hex"])) == position
            assert Position.from_text(case[f"{version}_base64"]) == position
        if case["next"]["slot_id"] > 0:
            assert position.next == dlsn(case["next"])
            assert position.next_segment == dlsn(case["next_segment"])
    for case in golden["compare"]:
        a, b = dlsn(case["a"]), dlsn(case["b"])
        assert (a > b) - (a < b) == case["cmp"]
    for case in golden["deserialize_text"]:
        if "dlsn" in case:
            assert Position.from_text(case["text"]) == dlsn(case["dlsn"])
        else:
            with pytest.raises(CorruptRecordsError):
                Position.from_text(case["text"])


def test_a_position_is_read_as_people_write_it() -> None:
    assert parse_position("3:17:0") == Position(3, 17, 0)
    assert parse_position(Position(3, 17, 0).to_text()) == Position(3, 17, 0)


def flags_of(case: dict[str, Any]) -> int:
    return (
        records.CONTROL * case["control"]
        | records.END_OF_STREAM * case["end_of_stream"]
        | records.RECORD_SET * case["record_set"]
    )


def test_golden_log_records_are_written_and_read() -> None:
    golden = load("log_record")
    assert golden["MAX_LOGRECORD_SIZE"] == records.MAX_RECORD_SIZE_BYTES
    for case in golden["cases"]:
        data, payload = hx(case["bytes_hex"]), hx(case["payload_hex"])
        position, txid, flags = (
            case["position_within_log_segment"], case["transaction_id"], flags_of(case),
        )  # fmt: skip
        assert records.encode_record(flags, position, txid, payload) == data
        assert records.decode_records(data) == [(flags, position, txid, payload)]
        assert records.first_header(data) == (flags, position, txid)


def expanded(data: bytes, *, entry: int = 17) -> list[tuple[Any, ...]]:
    """Take records apart as the golden file does: members of record sets one by one."""
    slot, found = 0, []
    for flags, position, txid, payload in records.decode_records(data):
        members = decode_record_set(payload) if flags & records.RECORD_SET else [payload]
        for number, member in enumerate(members):
            found.append(
                (Position(5, entry, slot), txid, position + number, flags & 3, member.hex())
            )
            slot += 1
    return found


def wanted(decoded: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            dlsn(record["dlsn"]),
            record["transaction_id"],
            record["position_within_log_segment"],
            flags_of(record) & 3,
            record["payload_hex"],
        )
        for record in decoded
    ]


def test_golden_entries_are_read_and_written() -> None:
    checked = 0
    for case in load("entry")["cases"]:
        if "bytes_hex" not in case:
            # Too long for the file: only its beginning and its size are there.
            continue
        entry = hx(case["bytes_hex"])
        data = decode_entry(entry) if case["enveloped"] else entry
        assert expanded(data) == wanted(case["decoded"]), case["name"]
        if case["enveloped"]:
            codec = Codec[case["codec"]]
            again = encode_entry(data, codec)
            assert decode_entry(again) == data
            if codec is Codec.NONE:
                assert again == entry, case["name"]
            assert again[:9] == entry[:9], case["name"]
        checked += 1
    assert checked > 20


def test_golden_damaged_entries_are_refused() -> None:
    for case in load("entry")["bad"]:
        entry = hx(case["bytes_hex"])
        if case["name"] == "flags other bits set (ignored)":
            assert expanded(decode_entry(entry)) == wanted(case["decoded"])
            continue
        # The peer reads some of these as if nothing were wrong.
        with pytest.raises((CorruptRecordsError, UnsupportedFormatError)):
            records.decode_records(decode_entry(entry))


def test_golden_record_sets_are_written_and_read() -> None:
    golden = load("log_record_set")
    for case in golden["cases"]:
        payloads = [hx(text) for text in case["records_hex"]]
        data = hx(case["bytes_hex"])
        assert decode_record_set(data) == payloads
        again = encode_record_set(payloads, Codec[case["codec"]])
        assert decode_record_set(again) == payloads
        if case["codec"] == "NONE":
            assert again == data
        host = records.encode_record(records.RECORD_SET, 11, 777, data)
        assert host.hex() == case["host_record_bytes_hex"]
    for case in golden["bad"]:
        data = hx(case["bytes_hex"])
        if "decoded" in case and "codec" not in case["name"]:
            assert [p.hex() for p in decode_record_set(data)] == ["61"]
            continue
        with pytest.raises((CorruptRecordsError, UnsupportedFormatError)):
            decode_record_set(data)


def check_segment(found: SegmentMetadata, parsed: dict[str, Any]) -> None:
    same = {
        "version": found.version,
        "ledger_id": found.ledger_id,
        "first_txid": found.first_txid,
        "last_txid": found.last_txid,
        "completion_time_ms": found.completed_at_ms,
        "record_count": found.record_count,
        "log_segment_sequence_no": found.number,
        "last_entry_id": found.last_entry,
        "last_slot_id": found.last_slot,
        "region_id": found.region,
        "status": found.status,
        "truncation_status": found.truncation.name,
        "min_active_entry_id": found.min_active_entry,
        "min_active_slot_id": found.min_active_slot,
        "in_progress": found.is_in_progress,
        "envelope_entries": found.is_enveloped,
    }
    assert {name: parsed[name] for name in same} == same
    if found.start_sequence_id == -1 and (found.is_in_progress or found.version < 5):
        assert parsed["start_sequence_id"] == unknown_start(found.number)
    else:
        assert parsed["start_sequence_id"] == found.start_sequence_id


def test_golden_segment_metadata_are_read_and_written() -> None:
    golden = load("log_segment_metadata")
    for case in golden["cases"]:
        if case["parsed"]["version"] < 2:
            with pytest.raises(UnsupportedFormatError):
                SegmentMetadata.decode(case["text"])
            continue
        found = SegmentMetadata.decode(case["text"])
        check_segment(found, case["parsed"])
        assert found.encode() == case["text"], case["name"]
    for case in golden["parse"]:
        if case["skip_min_version_check"]:
            continue
        if "metadata" in case:
            check_segment(SegmentMetadata.decode(case["text"]), case["metadata"])
        else:
            with pytest.raises((CorruptRecordsError, UnsupportedFormatError)):
                SegmentMetadata.decode(case["text"])


def test_golden_truncation_of_segment_metadata() -> None:
    for case in load("log_segment_metadata")["truncation_mutations"]:
        found = SegmentMetadata.decode(case["before"])
        if case["status"] == "PARTIALLY_TRUNCATED":
            found = found.truncated(Position(3, 20, 1))
        elif case["status"] == "TRUNCATED":
            found = found.truncated(None)
        assert found.encode() == case["after"]
        assert found.truncation is Truncation[case["status"]]


def test_golden_start_sequence_ids() -> None:
    for case in load("sequence_ids")["cases"]:
        segments = ordered(SegmentMetadata.decode(s["text"]) for s in case["segments"])
        if case["name"] == "gap":
            with pytest.raises(DataLossError):
                check_no_gap(segments)
        if "ordered" not in case:
            continue
        starts = start_sequence_ids(segments)
        got = [
            (s.number, s.is_in_progress, start) for s, start in zip(segments, starts, strict=True)
        ]
        assert got == [
            (s["log_segment_sequence_no"], s["in_progress"], s["start_sequence_id"])
            for s in case["ordered"]
        ], case["name"]


BINDING_NAMES = {
    "bk_servers": "bk_zk_servers_for_writer",
    "bk_servers_for_reader": "bk_zk_servers_for_reader",
    "dl_servers": "dl_zk_servers_for_writer",
    "dl_servers_for_reader": "dl_zk_servers_for_reader",
    "ledgers_path": "bk_ledgers_path",
    "checks_txids": "sanity_check_txn_id",
    "encodes_region": "encode_region_id",
    "acl_root": "acl_root_path",
    "first_segment": "first_log_segment_seq_no",
    "is_federated": "federated_namespace",
}


def check_binding(found: Binding, parsed: dict[str, Any]) -> None:
    own = {field.name: getattr(found, field.name) for field in fields(found)}
    # What follows from what is missing; the golden file was read from h1:2181,h2:2181.
    own["dl_servers"] = own["dl_servers"] or "h1:2181,h2:2181"
    own["bk_servers_for_reader"] = own["bk_servers_for_reader"] or own["bk_servers"]
    own["dl_servers_for_reader"] = own["dl_servers_for_reader"] or own["dl_servers"]
    own["first_segment"] = 1 if own["first_segment"] is None else own["first_segment"]
    assert {BINDING_NAMES[name]: value for name, value in own.items()} == parsed


def test_golden_bindings_are_read_and_written() -> None:
    golden = load("namespace_binding")
    for case in golden["bindings"]:
        found = Binding.decode(hx(case["znode_hex"]))
        check_binding(found, case["parsed"])
        assert found.encode().hex() == case["znode_hex"]
    for case in golden["parse"]:
        data = case["znode_text"].encode()
        if "parsed" in case:
            check_binding(Binding.decode(data), case["parsed"])
        elif '{ "1"' not in case["znode_text"] and '{"2"' not in case["znode_text"]:
            with pytest.raises(QuorumbookError):
                Binding.decode(data)


def test_golden_access_control_entries() -> None:
    for case in load("namespace_binding")["access_control_entries"]:
        found = AccessControl.decode(case["znode_text"].encode())
        if '"tf":0' not in case["znode_text"]:  # written by hand only: what is not denied
            assert found.encode().decode() == case["znode_text"]
        assert {field.name.replace("denies", "deny"): getattr(found, field.name)
                for field in fields(found)} == {
            name: value for name, value in case.items() if name.startswith("deny")
        }  # fmt: skip
    assert AccessControl.decode(b"") == AccessControl()


def test_golden_paths_and_segment_names() -> None:
    golden = load("names_and_paths")
    paths = names.StreamPaths("/messaging/ns", "my-stream")
    wanted_paths = golden["paths_for_namespace_/messaging/ns_stream_my-stream"]
    for name in "stream", "root", "segments", "lock", "max_txid", "allocation", "version":
        assert getattr(paths, name) == wanted_paths[name]
    assert paths.read_lock == wanted_paths["read_lock"]
    assert paths.subscriber("sub1") == wanted_paths["subscriber_sub1"]
    assert paths.subscriber_lock("sub1") == wanted_paths["read_lock_of_sub1"]
    assert names.StreamPaths("/messaging/ns", "a/b").root == wanted_paths["nested_name_a/b_root"]
    assert names.LAYOUT_VERSION_DATA.hex() == golden["layout_version_znode_hex"]
    known = golden["segment_znode_names"]
    in_progress, completed = known["in_progress_seq_7"], known["completed_seq_7"]
    assert paths.segment(7, is_in_progress=True).endswith(f"/{in_progress}")
    assert paths.segment(7, is_in_progress=False).endswith(f"/{completed}")
    for name, number in (
        (in_progress, 7), (completed, 7), (known["legacy_in_progress_first_txid_1000"], None),
        (known["legacy_completed_1000_2000"], None), ("logrecs_1_2_9_33_0", 9),
    ):  # fmt: skip
        assert names.segment_number(name) == number


def test_golden_filter_of_a_writer() -> None:
    for case in load("names_and_paths")["write_handle_filter"]:
        kept = names.names_for_writer(case["children"])
        # The peer also keeps a completed segment whose number it reads from another field.
        assert sorted(kept) == sorted(case["kept"])


def test_golden_stream_names() -> None:
    for case in load("names_and_paths")["stream_names"]:
        name, is_fine = case["name"], bool(case.get("normalized"))
        if name == "/.a":
            is_fine = False  # slips through at the peer's, and is never listed there
        if is_fine:
            assert names.check_stream_name(name) == case["normalized"]
        else:
            with pytest.raises(InvalidStreamNameError):
                names.check_stream_name(name)


def test_golden_lock_members() -> None:
    golden = load("names_and_paths")
    for case in golden["lock_member_prefix"]:
        prefix = names.lock_member_prefix(case["client_id"], case["session_id"])
        assert f"/l/{prefix}" == case["v3"]
        if "_" not in case["client_id"]:
            owner = names.lock_member_owner(f"{prefix}0000000007")
            assert owner == (case["client_id"], case["session_id"])
    for name, number in golden["lock_member_id"].items():
        assert names.lock_member_number(name) == number


def test_golden_streams_of_a_running_peer_are_read() -> None:
    golden = load("live_streams")
    enveloped = {}
    for step in golden["steps"]:
        for node in step["znodes"]:
            if names.is_segment_name(node["path"].rpartition("/")[2]):
                found = SegmentMetadata.decode(node["text"])
                enveloped[found.ledger_id] = found.is_enveloped
                assert found.encode() == node["text"]
            elif "1\nBKDL" in node.get("text", ""):
                assert Binding.decode(hx(node["data_hex"])).encode().hex() == node["data_hex"]
    count = 0
    for ledger in golden["ledgers"]:
        for entry in ledger["entries"]:
            data = hx(entry["payload_hex"])
            if enveloped[ledger["ledger_id"]]:
                data = decode_entry(data)
            count += len(expanded(data))
    assert count > 100


def test_records_of_one_size_are_packed_at_once_as_they_are_one_by_one() -> None:
    sizes = ([7] * 40, [7] * 39 + [8], [0] * 16, [1040] * 63, [3, 4] * 20)
    for payloads in ([bytes([n]) * size for n, size in enumerate(each)] for each in sizes):
        txids = [3 * number + 2**40 for number in range(len(payloads))]
        one_by_one = [
            records.encode_record(0, 5 + number, txids[number], payload)
            for number, payload in enumerate(payloads)
        ]
        _, size = records.sizes_of(payloads)
        pieces = records.encode_user_records(5, txids, payloads, size)
        assert b"".join(pieces) == b"".join(one_by_one)


def test_an_entry_of_ours_is_read_at_once_as_it_is_read_record_by_record() -> None:
    from quorumbook.streams.format.control import encode_time_note
    from quorumbook.streams.reading import entries

    note = records.encode_record(records.CONTROL, 4, 9, encode_time_note(77))
    rows = [b"abc", b"d", b"efghi", b"xyz"]
    for payloads in ([b"ab", b"cd", b"ef"], [b"x" * 300] * 30, [b"", b""], rows):
        _, size = records.sizes_of(payloads)
        pieces = records.encode_user_records(5, range(20, 20 + len(payloads)), payloads, size)
        entry = encode_entry(note + b"".join(pieces))
        found = entries.decode_user_records(entry, is_enveloped=True, count_before=4)
        (run,) = found.runs
        assert (run.first_slot, run.first_position) == (1, 5)
        assert list(run.txids) == list(range(20, 20 + len(payloads)))
        assert list(run.txids[1:]) == list(range(21, 20 + len(payloads)))
        assert list(run.payloads) == payloads
        assert found.count_after == 4 + len(payloads)
        assert found.notes[0].appended_at_ms == 77
    # Sizes that only add up to the same are not taken for the same.
    is_fast = entries._decode_ours(decode_entry(entry), 0, 4) is not None
    assert not is_fast
    with pytest.raises(CorruptRecordsError):
        entries.decode_user_records(entry, is_enveloped=True, count_before=3)
