"""An entry with one record is made by a shorter way, and has the bytes of the long one."""

from __future__ import annotations

import random

import pytest

from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.control import encode_time_note
from quorumbook.streams.format.envelope import encode_entry
from quorumbook.streams.format.lone_records import decode_lone_record, encode_lone_record
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


@pytest.mark.parametrize("size", [0, 1, 40, 1024])
def test_it_is_taken_apart_as_by_the_long_way_or_not_at_all(size: int) -> None:
    dice = random.Random(size)
    taken = 0
    for number in range(4000):
        count_before = dice.choice((0, 7, 2**31, 2**32 - 2, 2**32 - 1))
        payload = dice.randbytes(size)
        entry = bytearray(encode_lone_record(count_before, dice.getrandbits(41), -1, 5, payload))
        if number % 4:
            entry[dice.randrange(71)] ^= 1 << dice.randrange(8)
        if number % 4 == 3:
            del entry[dice.randrange(len(entry)) :]
        lone = decode_lone_record(bytes(entry))
        if lone is None:
            assert number % 4 or count_before == 2**32 - 1
            continue
        taken += 1
        found = decode_user_records(bytes(entry), is_enveloped=True, count_before=lone[0])
        assert found.count_after == lone[0] + 1
        assert [note.appended_at_ms for note in found.notes] == [lone[1]]
        assert [[*run.txids, *run.payloads] for run in found.runs] == [[*lone[2:]]]
        assert [run[:2] for run in found.runs] == [(1, lone[0] + 1)]
    assert taken > 800


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
