"""Plain entries are made and taken apart by a shorter way, as by the long one."""

from __future__ import annotations

import random

import pytest

from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.control import encode_time_note
from quorumbook.streams.format.envelope import encode_entry
from quorumbook.streams.format.plain_entries import decode_plain_entry, encode_lone_record
from quorumbook.streams.format.records import CONTROL, encode_record
from quorumbook.streams.reading.entries import decode_user_records
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PackedEntry, PendingAppend, single
from quorumbook.streams.writing.producers import Producers


def _long_way(
    count_before: int, time_ms: int, txid_before: int, txid: int, payload: bytes
) -> bytes:
    note = encode_record(CONTROL, count_before, txid_before, encode_time_note(time_ms))
    return encode_entry(note + encode_record(0, count_before + 1, txid, payload))


@pytest.mark.parametrize("size", [0, 1, 1024, 1_040_364])
def test_its_bytes_are_those_of_the_parts(size: int) -> None:
    dice = random.Random(size)
    for _ in range(20):
        fields = (dice.getrandbits(31), dice.getrandbits(41), dice.getrandbits(62) - 1)
        payload = dice.randbytes(size)
        txid = dice.getrandbits(62)
        assert encode_lone_record(*fields, txid, payload) == _long_way(*fields, txid, payload)


def _plain(dice: random.Random, count_before: int, count: int, size: int) -> bytearray:
    records = encode_record(CONTROL, count_before, -1, encode_time_note(dice.getrandbits(41)))
    for number in range(count):
        records += encode_record(0, count_before + 1 + number, 5 + number, dice.randbytes(size))
    return bytearray(encode_entry(records))


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 40])
@pytest.mark.parametrize("size", [0, 1, 40])
def test_a_plain_entry_is_taken_apart_as_by_the_long_way_or_not_at_all(
    size: int, count: int
) -> None:
    dice = random.Random(size)
    taken = 0
    for number in range(2000):
        count_before = dice.choice((0, 7, 2**31, 2**32 - 50))
        entry = _plain(dice, count_before, count, size)
        for _ in range(number % 3):
            # Of many records what is between is told by their sizes alone.
            at = dice.randrange(71 if count > 16 else len(entry))
            entry[at] ^= 1 << dice.randrange(8)
        if number % 5 == 4:
            del entry[dice.randrange(len(entry)) :]
        plain = decode_plain_entry(bytes(entry))
        if plain is None:
            assert number % 3 or number % 5 == 4
            continue
        taken += 1
        found = decode_user_records(bytes(entry), is_enveloped=True, count_before=-1)
        assert found.count_after == plain.count_before + count
        assert [note.appended_at_ms for note in found.notes] == [plain.appended_at_ms]
        ((slot, position, txids, payloads),) = found.runs
        assert (slot, position) == (1, plain.count_before + 1)
        assert (list(txids), list(payloads)) == (list(plain.txids), list(plain.payloads))
    assert taken > 500
    last = _plain(dice, 2**32 - 1 - count, count, size)
    assert decode_plain_entry(bytes(last)) is not None
    assert decode_plain_entry(bytes(_plain(dice, 2**32 - count, count, size))) is None


def _state(**options: object) -> PackState:
    fields = {"next_sequence_id": 0, "last_txid": -1, "codec": Codec.NONE, "batch_bytes": 400}
    made = PackState(**(fields | options))  # type: ignore[arg-type]
    made.begin_segment(1, 1)
    return made


def _packed(state: PackState) -> list[PackedEntry]:
    entries = []
    while (entry := state.pack(1)) is not None:
        entries.append(entry)
    return entries


def _both_ways(monkeypatch: pytest.MonkeyPatch, seed: int, **options: object) -> None:
    """Pack the same appends, once by the long way alone."""
    found = []
    for is_short in (True, False):
        if not is_short:
            monkeypatch.setattr(PackState, "_is_lone", lambda state: False)
        dice = random.Random(seed)
        state = _state(**options)
        seen: list[object] = []
        for _ in range(60):
            for _ in range(dice.randrange(1, 6)):
                size = dice.choice((0, 1, 90, 200, 330, 1000))
                if dice.random() < 0.8:
                    carried = Attributes(b"key") if dice.random() < 0.2 else None
                    state.append(single(b"x" * size, None, attributes=carried), None)
                else:
                    payloads = [b"y" * size] * dice.randrange(1, 4)
                    if dice.random() < 0.5:
                        sizes = dice.choices((0, 90, 200, 330, 1000), k=dice.randrange(1, 7))
                        payloads = [b"z" * each for each in sizes]
                    state.append(PendingAppend(payloads, None), None)
            entries = _packed(state)
            seen += [(entry.data, entry.record_count, entry.last_slot) for entry in entries]
            seen.append((state.queued_count, state.in_flight_bytes, state.next_to_pack))
            if dice.random() < 0.2 and entries:
                last = dice.randrange(-1, len(entries))
                state.on_segment_failed(entries[last].entry_id if last >= 0 else -1)
                state.end_segment()
                state.begin_segment(2, 2)
                entries = _packed(state)
                seen += [entry.data for entry in entries]
            for entry in entries[: len(entries) if dice.random() < 0.9 else 1]:
                if state.oldest is entry:
                    seen += [pending.result() for pending in state.on_confirmed(entry)]
        found.append([repr(each) for each in seen])
        monkeypatch.undo()
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(5))
def test_a_writer_packs_the_same_either_way(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _both_ways(monkeypatch, seed)
    _both_ways(monkeypatch, seed, producers=Producers())
    _both_ways(monkeypatch, seed, producers=Producers(), producer="p")


def test_a_compressing_writer_packs_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    _both_ways(monkeypatch, 7, codec=Codec.LZ4)
