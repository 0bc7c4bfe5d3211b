"""Whatever fails in between, every record is stored once, in order, with the ids it was given."""

from __future__ import annotations

from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.chunks import Chunks
from quorumbook.streams.reading.entries import decode_user_records
from quorumbook.streams.writing import packing, pending
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PendingAppend
from quorumbook.streams.writing.producers import Producers

appends = st.tuples(st.just("append"), st.lists(st.binary(max_size=60), min_size=1, max_size=12))
atomics = st.tuples(st.just("atomic"), st.lists(st.binary(max_size=60), min_size=1, max_size=12))
sets = st.tuples(st.just("set"), st.lists(st.binary(max_size=60), min_size=1, max_size=12))
steps = st.one_of(
    appends,
    atomics,
    sets,
    st.tuples(st.just("large"), st.binary(min_size=200, max_size=900)),
    st.tuples(st.just("pack"), st.integers(1, 4)),
    st.tuples(st.just("confirm"), st.integers(1, 4)),
    # The segment fails: so many of the entries in flight are found to be stored.
    st.tuples(st.just("fail"), st.integers(0, 4)),
    st.tuples(st.just("roll"), st.just(0)),
)


def carried_by(payload: bytes) -> bytes:
    """What a record of an append with attributes carries: every other one a key."""
    return Attributes(payload[::-1]).encode() if len(payload) % 2 else b""


def appended_by(append: PendingAppend) -> list[tuple[bytes, int]]:
    """The records of an append as they were appended, and their sequence ids."""
    first = append.first_sequence_id
    if append.is_chunked:
        return [(b"".join(append.payloads), first)]
    return [(item, first + n) for n, item in enumerate(append.payloads)]


class World:
    """A writer's state, and the segments it writes."""

    def __init__(self, batch_bytes: int, producer: str | None) -> None:
        self.producers = Producers()
        self.state = PackState(
            next_sequence_id=0, last_txid=-1, codec=Codec.NONE, batch_bytes=batch_bytes,
            producer=producer, producers=self.producers,
        )  # fmt: skip
        self.has_producer = producer is not None
        self.flying: list[bytes] = []
        self.stored: list[list[bytes]] = []
        self.appends: list[PendingAppend] = []
        self.finished: list[PendingAppend] = []
        self.next_number = 0
        self.begin()

    def begin(self) -> None:
        self.stored.append([])
        self.state.begin_segment(len(self.stored), len(self.stored))

    def append(self, items: list[bytes], *, is_atomic: bool, is_set: bool = False) -> None:
        number = self.next_number if self.has_producer else -1
        carried = [carried_by(item) for item in items] if len(items) % 2 else None
        append = PendingAppend(
            items, None, is_atomic=is_atomic, first_number=number, attributes=carried,
            set_codec=Codec.LZ4 if is_set else None,
        )  # fmt: skip
        self.take(append)

    def append_large(self, payload: bytes) -> None:
        number = self.next_number if self.has_producer else -1
        carried = Attributes(payload[::-1]) if len(payload) % 2 else None
        self.take(pending.single(payload, None, number=number, attributes=carried))

    def take(self, append: PendingAppend) -> None:
        self.state.append(append, None)
        self.next_number += append.number_count
        self.appends.append(append)

    def pack(self, count: int) -> None:
        for _ in range(count):
            run = self.state.pack(1_000, count, 1 << 20)
            if run is not None:
                self.flying += run.entries

    def confirm(self, count: int) -> None:
        last = self.state.tail.confirmed_entry + min(count, len(self.flying))
        while (run := self.state.oldest(last)) is not None:
            self.finished += self.state.on_confirmed(run)
        self.stored[-1] += self.flying[:count]
        del self.flying[:count]

    def fail(self, kept: int) -> None:
        stored = self.flying[:kept]
        last = self.state.tail.confirmed_entry + len(stored)
        self.stored[-1] += stored
        self.finished += self.state.on_segment_failed(last)
        self.flying.clear()
        self.state.end_segment()
        self.begin()

    def roll(self) -> None:
        self.confirm(len(self.flying))
        self.state.end_segment()
        self.begin()


_LARGE = ("large", bytes(range(200)) * 2 + b"x")
_IN_FLIGHT = [("append", [b"x"]), ("pack", 1), ("append", [b"y", b"z"]), ("pack", 2)]


@example([*_IN_FLIGHT, ("fail", 0)], 1, "p", 0)
@example([*_IN_FLIGHT, ("append", [b"w"]), ("fail", 2)], 1, None, 1024)
@example([("append", [b"x"]), _LARGE, ("append", [b"y"]), ("pack", 3), ("fail", 2)], 300, "p", 0)
@settings(max_examples=150, deadline=None)
@given(
    st.lists(steps, max_size=30),
    st.integers(1, 300),
    st.sampled_from([None, "p"]),
    st.sampled_from([0, 1024]),
)
def test_every_record_is_stored_once_in_order(
    done: list[tuple[str, object]], batch_bytes: int, producer: str | None, inline: int
) -> None:
    with (
        mock.patch.object(packing, "SNAPSHOT_EVERY", 3),
        mock.patch.object(packing, "_INLINE_SNAPSHOT_BYTES", inline),
        mock.patch.object(pending, "MAX_PAYLOAD_SIZE_BYTES", 150),
        mock.patch.object(pending, "CHUNK_SIZE_BYTES", 100),
    ):
        run(done, batch_bytes, producer)


def run(done: list[tuple[str, object]], batch_bytes: int, producer: str | None) -> None:
    world = World(batch_bytes, producer)
    for kind, value in done:
        if kind in ("append", "atomic", "set"):
            world.append(value, is_atomic=kind != "append", is_set=kind == "set")
        elif kind == "large":
            world.append_large(value)
        else:
            getattr(world, kind)(*([value] if kind != "roll" else []))
    while world.state.queued_count or world.flying:
        world.pack(1)
        world.confirm(1)
    found: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    again = Producers()
    chunks = Chunks()
    whole: list[Record] = []
    for number, entries in enumerate(world.stored, 1):
        count = 0
        for entry_id, data in enumerate(entries):
            decoded = decode_user_records(data, is_enveloped=True, count_before=count)
            count = decoded.count_after
            if entry_id % 3 == 0:
                # Whoever begins to read here knows everybody all the same.
                again = Producers()
            slot = decoded.runs[0].first_slot if decoded.runs else 0
            for note in decoded.notes:
                again.on_note(note, number, Position(number, entry_id, slot), len(found))
            for part in decoded.runs:
                batch = RecordBatch(
                    Position(number, entry_id, part.first_slot), len(found), part.txids,
                    part.payloads, None, number, decoded.attributes, decoded.chunk,
                )  # fmt: skip
                whole += chunks.feed(batch) or ()
                found += part.payloads
                places += [
                    (number, entry_id, part.first_slot + n) for n in range(len(part.payloads))
                ]
            if producer is not None:
                assert again.last_number(producer) == len(whole) - 1
                if whole:
                    where, sequence_id = again.where(producer, len(whole) - 1)
                    assert (where.first, sequence_id) == whole[-1][:2]
    assert found == [item for append in world.appends for item in append.payloads]
    check(world, whole, places)


def check(world: World, whole: list[Record], places: list[tuple[int, int, int]]) -> None:
    assert [(record.payload, record.sequence_id) for record in whole] == [
        record for append in world.appends for record in appended_by(append)
    ]
    assert [record.position for record in whole] == [places[record.sequence_id] for record in whole]
    assert world.finished == world.appends
    carrying = [
        item for append in world.appends if append.attributes for item, _ in appended_by(append)
    ]
    expected = [item[::-1] for item in carrying if len(item) % 2]
    assert [record.key for record in whole if record.key is not None] == expected
    for append in world.appends:
        own = [(p.first, p.records) for p in append.placements]
        assert sum(records for _, records in own) == append.count
        assert not append.is_atomic or len(own) == 1
        flat = [(*first[:2], first[2] + n) for first, records in own for n in range(records)]
        start = append.first_sequence_id
        assert flat == places[start : start + append.count]
