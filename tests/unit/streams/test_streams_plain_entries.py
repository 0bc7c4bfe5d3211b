"""Plain entries are made and taken apart by a shorter way, as by the long one."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.control import encode_time_note
from quorumbook.streams.format.envelope import encode_entry
from quorumbook.streams.format.plain_entries import decode_plain_entry, encode_lone_record
from quorumbook.streams.format.records import CONTROL, encode_record
from quorumbook.streams.reading.entries import decode_user_records
from quorumbook.streams.writing import packing
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PendingAppend, single
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


def _packed(state: PackState, dice: random.Random | None) -> list[tuple[bytes, int, int]]:
    """Pack all there is, several entries together if there are dice."""
    entries: list[tuple[bytes, int, int]] = []
    limits = (1, 1)
    while True:
        if dice is not None:
            limits = dice.randrange(1, 9), dice.choice((1, 500, 2000, 1 << 20))
        run = state.pack(1, *limits)
        if run is None:
            return entries
        assert len(run.entries) <= limits[0]
        assert sum(map(len, run.entries[:-1])) < limits[1]
        assert run.size_bytes == sum(map(len, run.entries))
        each = run.record_count // len(run.entries)
        entries += [(data, each, run.last_slot) for data in run.entries]


def _as_seen(seed: int, together: random.Random | None, **options: object) -> list[str]:
    """Return what becomes of the same appends; packed together by these dice, if any."""
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
                payloads = [dice.randbytes(size) for _ in range(dice.choice((1, 2, 3, 20, 50)))]
                if dice.random() < 0.3:
                    sizes = dice.choices((0, 90, 200, 330, 1000), k=dice.randrange(1, 7))
                    payloads = [b"z" * each for each in sizes]
                txids = None
                if dice.random() < 0.5:
                    steps = [dice.randrange(3) for _ in payloads]
                    txids = [state.last_txid + step for step in accumulate(steps)]
                state.append(PendingAppend(payloads, None), txids)
        entries = _packed(state, together)
        seen += entries
        seen.append((state.queued_count, state.in_flight, state.in_flight_bytes))
        seen.append(state.next_to_pack)
        assert state.tail is not None
        first = state.tail.confirmed_entry + 1
        if dice.random() < 0.2:
            found = dice.randrange(first - 1, state.tail.entries)
            seen += [pending.result() for pending in state.on_segment_failed(found)]
            state.end_segment()
            state.begin_segment(2, 2)
            seen += _packed(state, together)
        assert state.tail is not None
        last = state.tail.entries - 1
        if dice.random() < 0.2:
            last = dice.randrange(state.tail.confirmed_entry, last + 1)
        while (run := state.oldest(last)) is not None:
            assert run.last_entry_id <= last
            seen += [_told(pending) for pending in state.on_confirmed(run)]
        assert state.tail.confirmed_entry == last
        seen.append((state.in_flight, state.in_flight_bytes, state.confirmed_to))
    return [repr(each) for each in seen]


def _told(pending: PendingAppend) -> list[object]:
    return [pending.first_sequence_id, pending.result(), *pending.each()]


def _every_way(monkeypatch: pytest.MonkeyPatch, seed: int, **options: object) -> None:
    """Pack the same appends by the short ways, and by the long one alone."""
    monkeypatch.setattr(packing, "SNAPSHOT_EVERY", 5)
    short = _as_seen(seed, None, **options)
    for other in range(3):
        assert _as_seen(seed, random.Random(other), **options) == short
    monkeypatch.setattr(PackState, "_has_plain_entry", lambda *_: False)
    assert _as_seen(seed, None, **options) == short
    monkeypatch.undo()


@pytest.mark.parametrize("seed", range(5))
def test_a_writer_packs_the_same_every_way(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _every_way(monkeypatch, seed)
    _every_way(monkeypatch, seed, batch_bytes=3000)
    _every_way(monkeypatch, seed, producers=Producers())
    _every_way(monkeypatch, seed, producers=Producers(), producer="p")


def test_a_compressing_writer_packs_the_same_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    _every_way(monkeypatch, 7, codec=Codec.LZ4)


@pytest.mark.parametrize("each", [1, 2, 9])
def test_entries_of_an_append_are_packed_together(each: int) -> None:
    state = _state(batch_bytes=64 + each * 60)
    state.append(PendingAppend([b"%040d" % n for n in range(each * 12)], None), None)
    run = state.pack(1, 10, 1 << 20)
    assert run is not None
    assert (len(run.entries), run.record_count, run.last_slot) == (10, 10 * each, each)
    found = [decode_plain_entry(entry) for entry in run.entries]
    assert [plain.count_before for plain in found if plain] == [n * each for n in range(10)]
    txids = [txid for plain in found if plain for txid in plain.txids]
    assert txids == [*range(10 * each)]
    assert state.in_flight == 10
