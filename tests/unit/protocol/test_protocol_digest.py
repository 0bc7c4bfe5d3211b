"""Sealing and verifying entries one by one and in batches; status codes; varints; availability."""

from __future__ import annotations

import pytest

from quorumbook.errors import (
    BookieError,
    DigestMismatchError,
    LedgerFencedError,
    NoSuchEntryError,
    RemoteProtocolError,
    StorageError,
)
from quorumbook.protocol import availability, varint
from quorumbook.protocol.digest import (
    Digester,
    DigestType,
    digester,
    entry_header,
    master_key,
)
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.status import Status, error_for, status_for, status_of_v2, status_of_v3
from quorumbook.protocol.v2.packets import ADD_ENTRY_OFFSET, encode_adds, seal_add_frames

every_type = pytest.mark.parametrize("digest_type", list(DigestType))
MIXED = [b"", b"a", b"bc" * 40, b"", b"x" * 1000]
UNIFORM = [bytes([i]) * 64 for i in range(50)]


def sealed(digest_type: DigestType) -> tuple[Digester, list[bytes]]:
    sealer = digester(digest_type, b"pw")
    return sealer, sealer.seal_many(5, 7, 3, 100, UNIFORM)[0]


@every_type
@pytest.mark.parametrize("payloads", [MIXED, UNIFORM, [b"one"], []])
def test_sealing_many_is_sealing_one_after_the_other(
    digest_type: DigestType, payloads: list[bytes]
) -> None:
    sealer = digester(digest_type, b"pw")
    bodies, length = sealer.seal_many(5, 7, 3, 100, payloads)
    expected, total = [], 100
    for entry_id, payload in enumerate(payloads, 7):
        total += len(payload)
        expected.append(sealer.seal(5, entry_id, 3, total, payload))
    assert (bodies, length) == (expected, total)
    frames, length = seal_add_frames(sealer, master_key(b"pw"), 4, 5, 7, 3, 100, payloads)
    assert (frames, length) == (encode_adds(master_key(b"pw"), 4, expected), total)
    assert [frame[ADD_ENTRY_OFFSET:] for frame in frames] == expected
    for entry_id, (entry, payload) in enumerate(zip(bodies, payloads, strict=True), 7):
        sealer.verify(entry, 5, entry_id)
        assert sealer.payload(entry) == payload
        assert entry_header(entry)[:3] == (5, entry_id, 3)


@every_type
@pytest.mark.parametrize("payloads", [MIXED, UNIFORM, [b"one"], [b""] * 3])
def test_a_run_opens_to_its_payloads(digest_type: DigestType, payloads: list[bytes]) -> None:
    sealer = digester(digest_type, b"pw")
    data = EntryRun.of(5, 7, sealer.seal_many(5, 7, 3, 100, payloads)[0]).data
    assert sealer.open_run(data, 5, 7) == payloads
    assert sealer.open_run(data, 5, 7, len(payloads)) == payloads
    bounds = sealer.verify_run(data, 5, 7, len(payloads))
    assert [data[start:end] for start, end in bounds] == payloads
    for count in range(len(payloads)):
        assert sealer.open_run(data, 5, 7, count) == payloads[:count]
    with pytest.raises(DigestMismatchError):
        sealer.open_run(data, 5, 7, len(payloads) + 1)
    assert sealer.open_run(b"", 5, 7) == []


@every_type
def test_a_flipped_bit_anywhere_is_found_and_the_entry_named(digest_type: DigestType) -> None:
    sealer, bodies = sealed(digest_type)
    data = EntryRun.of(5, 7, bodies).data
    step = len(bodies[0]) + 4
    # without a digest only sizes and ids can tell
    offsets = range(step) if sealer.size_bytes else range(20)
    for index in (0, 3, 49):
        for offset in offsets:
            damaged = bytearray(data)
            damaged[index * step + offset] ^= 0x10
            with pytest.raises(DigestMismatchError) as caught:
                sealer.open_run(bytes(damaged), 5, 7)
            # a size that is wrong may be noticed only where the bytes after it make no sense
            assert caught.value.entry_id is not None
            if offset >= 4:
                assert caught.value.entry_id == 7 + index
            assert sealer.open_run(bytes(damaged), 5, 7, index) == UNIFORM[:index]


@every_type
def test_an_entry_of_another_place_is_refused(digest_type: DigestType) -> None:
    sealer, bodies = sealed(digest_type)
    for ledger_id, entry_id in ((6, 7), (5, 8), (6, None)):
        with pytest.raises(DigestMismatchError):
            sealer.verify(bodies[0], ledger_id, entry_id)
    sealer.verify(bodies[0], 5, None)
    swapped = [bodies[1], bodies[0], *bodies[2:]]
    for wrong, at in ((swapped, 7), (bodies, 8), ([*bodies[:4], bodies[3], *bodies[5:]], 7)):
        with pytest.raises(DigestMismatchError):
            sealer.open_run(EntryRun.of(5, at, wrong).data, 5, at)
    with pytest.raises(DigestMismatchError):
        sealer.open_run(EntryRun.of(5, 7, bodies).data, 6, 7)


@every_type
def test_cut_and_padded_runs_are_refused(digest_type: DigestType) -> None:
    sealer, bodies = sealed(digest_type)
    data = EntryRun.of(5, 7, bodies[:3]).data
    for size in range(len(data)):
        if size % (len(bodies[0]) + 4):
            with pytest.raises(DigestMismatchError):
                sealer.open_run(data[:size], 5, 7)
    for tail in (b"\0", bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff"):
        with pytest.raises(DigestMismatchError):
            sealer.open_run(data + tail, 5, 7)
    for size in range(32 + sealer.size_bytes):
        with pytest.raises(DigestMismatchError):
            sealer.verify(bodies[0][:size], 5, 7)
    with pytest.raises(DigestMismatchError):
        entry_header(bodies[0][:31])


@every_type
def test_a_negative_size_is_refused(digest_type: DigestType) -> None:
    sealer, bodies = sealed(digest_type)
    for size in (-1, -4, -5, -6, -(2**31)):
        data = size.to_bytes(4, "big", signed=True) + bodies[0] + bytes(-(size + 4) & 7)
        with pytest.raises(DigestMismatchError, match="impossible size"):
            sealer.open_run(data, 5, 7)


@every_type
def test_a_damaged_lac_packet_is_refused(digest_type: DigestType) -> None:
    sealer = digester(digest_type, b"pw")
    packet = sealer.lac_packet(5, -1)
    assert sealer.parse_lac_packet(packet, 5) == -1
    with pytest.raises(DigestMismatchError):
        sealer.parse_lac_packet(packet, 6)
    for size in range(len(packet)):
        with pytest.raises(DigestMismatchError):
            sealer.parse_lac_packet(packet[:size], 5)
    if sealer.size_bytes:
        for offset in range(len(packet)):
            damaged = bytearray(packet)
            damaged[offset] ^= 1
            with pytest.raises(DigestMismatchError):
                sealer.parse_lac_packet(bytes(damaged), 5)


def test_another_password_opens_no_hmac_entry() -> None:
    _, bodies = sealed(DigestType.HMAC)
    with pytest.raises(DigestMismatchError):
        digester(DigestType.HMAC, b"other").verify(bodies[0], 5, 7)


def test_errors_become_statuses_and_back() -> None:
    for status in Status:
        if status is Status.OK:
            continue
        error = error_for(status, ledger_id=5, entry_id=6, bookie_id="b:1")
        assert isinstance(error, BookieError)
        assert status_for(error) is status
        assert (error.ledger_id, error.entry_id, error.bookie_id) == (5, 6, "b:1")
        assert "ledger 5" in str(error)
    assert status_for(StorageError("x")) is Status.IO_ERROR
    assert status_for(RuntimeError("x")) is Status.IO_ERROR
    assert isinstance(error_for(Status.FENCED), LedgerFencedError)
    assert isinstance(error_for(Status.NO_ENTRY), NoSuchEntryError)


def test_a_status_nobody_defined_says_nothing_about_what_exists() -> None:
    for code in (-1, 3, 99, 108, 402):
        assert status_of_v2(code) is Status.IO_ERROR
    for number in (-1, 1, 2, 508):
        assert status_of_v3(number) is Status.IO_ERROR
    assert status_of_v2(107) is Status.UNKNOWN_LEDGER_STATE


def test_varints_that_do_not_end_are_refused() -> None:
    for data in (b"", b"\x80", b"\xff" * 10, b"\xff" * 11):
        with pytest.raises(RemoteProtocolError):
            varint.decode(data, 0, len(data))
    assert varint.signed(varint.decode(varint.encode(-1), 0, 10)[0]) == -1
    assert varint.high_part(b"\x80") == -1
    assert varint.high_part(b"\x01\x01") == -1


def test_an_availability_that_contradicts_itself_is_refused() -> None:
    good = availability.encode([1, 2, 3, 9])
    for size in range(len(good)):
        with pytest.raises(RemoteProtocolError):
            availability.decode_ranges(good[:size])
    header = (1).to_bytes(8, "big") + bytes(56)
    for group in (
        (0, 0, 0, 0),
        (0, 0, -1, 0),
        (5, 0, 1, 1),
        (0, 4, 1, 0),
        (0, 5, 1, 2),
        (-4, -4, 1, 0),
        (0, 2**62, 1, 1),
        (0, 0, 1, 3),
        (0, 4, 1, -2),
    ):
        packed = b"".join(
            value.to_bytes(size, "big", signed=True)
            for value, size in zip(group, (8, 8, 4, 4), strict=True)
        )
        with pytest.raises(RemoteProtocolError):
            availability.decode_ranges(header + packed)
    with pytest.raises(RemoteProtocolError):
        availability.decode_ranges(b"\0\0\0\1" + good[4:])


def test_a_small_availability_does_not_become_a_large_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(availability, "_MAX_RUNS", 10)
    group = b"".join(
        value.to_bytes(size, "big") for value, size in ((0, 8), (5, 8), (1, 4), (1, 4))
    )
    assert availability.decode((1).to_bytes(8, "big") + bytes(56) + group) == list(range(6))
    with pytest.raises(RemoteProtocolError):
        availability.decode_ranges((2).to_bytes(8, "big") + bytes(56) + group * 2)


def test_a_huge_run_of_entries_is_a_small_answer() -> None:
    ranges = [(0, 10), (2**40, 2**40 + 2**33)]
    data = availability.encode_ranges(ranges)
    assert len(data) < 400
    merged: list[tuple[int, int]] = []
    for first, last in availability.decode_ranges(data):
        if merged and merged[-1][1] + 1 == first:
            first = merged.pop()[0]  # noqa: PLW2901
        merged.append((first, last))
    assert merged == ranges
