"""Round trips of everything on the wire, and hand-written codecs against the protobuf library."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from doubles.decoding import decode_all
from quorumbook.errors import DigestMismatchError, RemoteProtocolError
from quorumbook.protocol import answers, availability, varint
from quorumbook.protocol import requests as rq
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.frames import frame
from quorumbook.protocol.messages import message_class
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.status import V2_CODE, Status, status_of_v2
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

KEYS = [master_key(b"a"), master_key(b"b")]
ids = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
signed_ids = st.integers(-(2**63), 2**63 - 1)
tokens = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
statuses = st.sampled_from(list(Status))
SEALER = digester(DigestType.CRC32C, b"pw")


@st.composite
def adds(draw: st.DrawFn) -> tuple[int, int, int, int, bytes, bytes]:
    """One add: ledger, entry id, flags, token, key, entry."""
    ledger_id = draw(st.integers(0, 2))
    entry_id = draw(st.one_of(st.integers(0, 5), st.integers(120, 140), ids))
    payload = draw(st.sampled_from([b"", b"x", b"y" * 30, b"z" * 200]))
    return (
        ledger_id,
        entry_id,
        draw(st.sampled_from([0, 0, 0, 2, 6])),
        draw(tokens),
        draw(st.sampled_from([KEYS[0], KEYS[0], KEYS[1]])),
        SEALER.seal(ledger_id, entry_id, -1, 0, payload),
    )


@st.composite
def add_streams(draw: st.DrawFn) -> list[tuple[int, int, int, int, bytes, bytes]]:
    """Stretches of neighbouring adds as writers send them, with single odd ones between."""
    stream: list[tuple[int, int, int, int, bytes, bytes]] = []
    for _ in range(draw(st.integers(1, 4))):
        ledger_id, entry_id, flags, token, key, entry = draw(adds())
        size = len(entry) - 36
        grows = draw(st.sampled_from([0, 0, 1, 50]))
        for _ in range(draw(st.integers(1, 40))):
            if entry_id > 2**63 - 20:
                break
            size += grows
            entry = SEALER.seal(ledger_id, entry_id, -1, 0, bytes(size))
            stream.append((ledger_id, entry_id, flags, token % 2**64, key, entry))
            entry_id += draw(st.sampled_from([1, 1, 1, 1, 1, 2, 15, 16, 0]))
            token += draw(st.sampled_from([1, 3]))
    return stream


def entries_of(requests: list[rq.Request], version: int) -> list[Any]:
    found = []
    for request in requests:
        assert isinstance(request, rq.AddRun)
        assert request.version == version
        run = request.run
        run_tokens = request.transaction_ids or [None] * run.count
        assert len(run_tokens) == run.count == len(run.entry_ids())
        assert list(request.echo_entry_ids) == list(run.entry_ids())
        flags = 2 * request.is_recovery + 4 * request.is_high_priority
        found += [
            (run.ledger_id, entry_id, flags, token, request.master_key, entry)
            for token, (entry_id, entry) in zip(run_tokens, run.entries(), strict=True)
        ]
    return found


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(add_streams(), st.lists(st.integers(0, 100_000), max_size=5))
def test_v2_adds_arrive_as_sent_however_the_stream_is_cut(
    stream: list[Any], cuts: list[int]
) -> None:
    data = b"".join(v2.encode_adds(key, flags, [entry])[0] for _, _, flags, _, key, entry in stream)
    decoder = RequestDecoder()
    requests = [request for piece in cut(data, cuts) for request in decode_all(decoder, piece)]
    expected = [(ledger, i, flags, None, key, e) for ledger, i, flags, _, key, e in stream]
    assert entries_of(requests, 2) == expected


@st.composite
def read_streams(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Rows of reads as clients send them that read in a row, with odd ones between."""
    stream: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, 4))):
        ledger_id, flags = (
            draw(st.integers(0, 2)),
            draw(st.sampled_from([0, 0, 0, v2.HIGH_PRIORITY])),
        )
        step = draw(st.sampled_from([1, 3, 15, 16, 0]))
        first = draw(st.one_of(st.integers(-300, 300), st.integers(2**62 - 9, 2**63 - 9)))
        count = draw(st.one_of(st.integers(1, 9), st.integers(10, 1200)))
        row = [(ledger_id, first + n * step, flags) for n in range(count)]
        odd = draw(st.integers(0, 2 * count))
        row[odd : odd + 1] = draw(st.sampled_from([[], [(ledger_id, 7, 0)], [(9, first, 0)]]))
        stream += [read for read in row if read[1] < 2**63]
    return stream


@given(read_streams(), st.lists(st.integers(0, 100_000), max_size=5))
def test_v2_reads_arrive_as_sent_however_the_stream_is_cut(
    stream: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    data = b"".join(v2.encode_read(a, b, is_high_priority=bool(flags)) for a, b, flags in stream)
    decoder = RequestDecoder()
    found: list[tuple[int, int, int]] = []
    for piece in cut(data, cuts):
        for read in one_by_one(decode_all(decoder, piece)):
            flags = v2.HIGH_PRIORITY * read.is_high_priority
            found.append((read.ledger_id, read.entry_id, flags))
    assert found == stream


def google_add(add: tuple[int, int, int, int, bytes, bytes]) -> bytes:
    ledger_id, entry_id, flags, token, key, entry = add
    return v3.encode_add(
        token,
        ledger_id,
        entry_id,
        key,
        entry,
        is_recovery=bool(flags & 2),
        is_high_priority=bool(flags & 4),
    )


def java_add(add: tuple[int, int, int, int, bytes, bytes]) -> bytes:
    """Write the flag first, as the peer's client does."""
    ledger_id, entry_id, flags, token, key, entry = add
    encode = varint.encode
    header = b"\x08\x03\x10\x02\x18" + encode(token) + (b"\x20\x64" if flags & 4 else b"")
    nested = (
        (b"\xa0\x06\x01" if flags & 2 else b"")
        + (b"\x08" + encode(ledger_id) + b"\x10" + encode(entry_id) + b"\x1a\x14" + key)
        + (b"\x22" + encode(len(entry)) + entry)
    )
    body = b"\x0a" + encode(len(header)) + header + b"\xaa\x06" + encode(len(nested)) + nested
    return frame(body)


@given(add_streams(), st.lists(st.integers(0, 100_000), max_size=5), st.data())
def test_v3_adds_of_both_layouts_arrive_as_protobuf_reads_them(
    stream: list[Any], cuts: list[int], draw: st.DataObject
) -> None:
    encode = draw.draw(st.sampled_from([google_add, java_add]))
    frames = [encode(add) for add in stream]
    for add, encoded in zip(stream, frames, strict=True):
        message = v3.Request.FromString(encoded[4:])
        assert (message.addRequest.ledgerId, message.addRequest.entryId) == add[:2]
        assert (message.header.txnId, message.addRequest.body) == (add[3], add[5])
    decoder = RequestDecoder()
    requests = [r for piece in cut(b"".join(frames), cuts) for r in decode_all(decoder, piece)]
    assert entries_of(requests, 3) == stream
    expected = b""
    for ledger_id, entry_id, _, token, _, _ in stream:
        response = message_class("Response")(status=504)
        response.header.version = 3
        response.header.operation = 2
        response.header.txnId = token
        response.addResponse.status = 504
        response.addResponse.ledgerId = ledger_id
        response.addResponse.entryId = entry_id
        expected += frame(response.SerializeToString())
    found = b"".join(answers.error_answer(request, Status.FENCED) for request in requests)
    assert found == expected


@given(st.lists(st.tuples(tokens, signed_ids, signed_ids, st.booleans()), max_size=40), st.data())
def test_v3_reads_arrive_as_protobuf_reads_them(reads: list[Any], draw: st.DataObject) -> None:
    if draw.draw(st.booleans()):
        # neighbours, as a reader sends them
        token, ledger_id, entry_id, is_high = (reads or [(1, 5, 0, False)])[0]
        reads = [
            ((token + i) % 2**64, ledger_id, min(entry_id + i, 2**63 - 1), is_high)
            for i in range(300)
        ]
    data = b"".join(v3.encode_read(t, lid, e, is_high_priority=h) for t, lid, e, h in reads)
    found = one_by_one(decode_all(RequestDecoder(), data))
    assert [
        (r.token, r.ledger_id, r.entry_id, r.is_high_priority)
        for r in found
        if r.version == 3 and not r.is_fencing and r.timeout_ms is None
    ] == reads


@given(read_streams(), tokens, st.lists(st.integers(0, 100_000), max_size=5))
def test_v3_reads_in_rows_arrive_as_sent_however_the_stream_is_cut(
    stream: list[tuple[int, int, int]], first_token: int, cuts: list[int]
) -> None:
    reads = [
        ((first_token + i) % 2**64, a, b, bool(flags)) for i, (a, b, flags) in enumerate(stream)
    ]
    data = b"".join(v3.encode_read(t, a, b, is_high_priority=h) for t, a, b, h in reads)
    decoder = RequestDecoder()
    found = one_by_one([r for piece in cut(data, cuts) for r in decode_all(decoder, piece)])
    assert [(r.token, r.ledger_id, r.entry_id, r.is_high_priority) for r in found] == reads
    assert all(r.version == 3 for r in found)


def one_by_one(requests: list[rq.Request]) -> list[rq.Read]:
    reads: list[rq.Read] = []
    for request in requests:
        assert isinstance(request, rq.Read | rq.ReadRun)
        reads += request.reads() if isinstance(request, rq.ReadRun) else [request]
    return reads


@given(
    tokens,
    statuses,
    signed_ids,
    signed_ids,
    st.none() | st.binary(max_size=300),
    st.none() | signed_ids,
    st.none() | signed_ids,
    st.none() | st.integers(0, 2**63 - 1),
)
def test_v3_read_answers_are_what_protobuf_writes(
    token: int,
    status: Status,
    ledger_id: int,
    entry_id: int,
    entry: bytes | None,
    max_lac: int | None,
    found_id: int | None,
    update_ms: int | None,
) -> None:
    request = rq.Read(3, token, ledger_id, entry_id)
    answer = answers.read_answer(request, status, entry, max_lac, found_id, update_ms)
    response = message_class("Response")(status=int(status))
    response.header.version = 3
    response.header.operation = 1
    response.header.txnId = token
    nested = response.readResponse
    nested.status = int(status)
    nested.ledgerId = ledger_id
    nested.entryId = entry_id if found_id is None else found_id
    if entry is not None:
        nested.body = entry
    if max_lac is not None:
        nested.maxLAC = max_lac
    if update_ms is not None:
        nested.lacUpdateTimestamp = update_ms
    assert answer == frame(response.SerializeToString())
    (decoded,) = v3.ResponseDecoder().feed(answer)
    assert (decoded.txn_id, decoded.status, decoded.body) == (token, status, entry)
    assert (decoded.max_lac, decoded.lac_update_ms) == (max_lac, update_ms)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 600), statuses), max_size=60))
def test_v2_add_answers_arrive_in_order(lines: list[tuple[int, int, Status]]) -> None:
    data = b"".join(v2.encode_add_answers(lid, [i], V2_CODE[s]) for lid, i, s in lines)
    found = []
    for answer in v2.AnswerDecoder().feed(data):
        assert isinstance(answer, v2.AddAnswers)
        found += [
            (answer.ledger_id, i, answer.code)
            for i in range(answer.first_entry_id, answer.last_entry_id + 1)
        ]
    assert found == [(lid, i, V2_CODE[s]) for lid, i, s in lines]
    assert all(status_of_v2(code) in Status for _, _, code in found)


@given(
    st.sampled_from(list(DigestType)),
    ids,
    st.integers(0, 2**62),
    signed_ids,
    st.lists(st.binary(max_size=80), max_size=12),
    st.booleans(),
)
def test_payloads_come_back_from_batches(
    digest_type: DigestType,
    ledger_id: int,
    first: int,
    lac: int,
    payloads: list[bytes],
    is_uniform: bool,
) -> None:
    if is_uniform and payloads:
        payloads = [payload[:1].rjust(9, b"p") for payload in payloads]
    sealer = digester(digest_type, b"pw")
    bodies, length = sealer.seal_many(ledger_id, first, lac, 0, payloads)
    assert length == sum(map(len, payloads))
    if bodies:
        run = EntryRun.of(ledger_id, first, bodies)
        assert sealer.open_run(run.data, ledger_id, first) == payloads
        bounds = sealer.verify_run(run.data, ledger_id, first, len(payloads))
        assert [run.data[a:b] for a, b in bounds] == payloads


@given(st.dictionaries(st.integers(5, 40), st.integers(1, 9), min_size=1), st.data())
def test_parts_of_a_run_are_its_entries(sizes: dict[int, int], draw: st.DataObject) -> None:
    here = sorted(sizes)
    if draw.draw(st.booleans()):
        here = list(range(here[0], here[-1] + 1))
        sizes = dict.fromkeys(here, 3)
    entries = {i: bytes([i]) * sizes[i] for i in here}
    data = b"".join(len(entries[i]).to_bytes(4, "big") + entries[i] for i in here)
    span = range(here[0], here[-1] + 1)
    run_sizes = [sizes.get(i, 0) for i in span]
    run = EntryRun(1, here[0], here[-1], run_sizes, data)
    assert dict(run.entries()) == entries
    assert run.count == len(here)
    assert [run.entry(i) for i in range(60)] == [entries.get(i) for i in range(60)]
    first = draw.draw(st.sampled_from(here))
    last = draw.draw(st.sampled_from([i for i in here if i >= first]))
    step = draw.draw(st.integers(1, 5))
    found = run.entries_at(range(first, last + 1, step))
    assert found == [entries.get(i, b"") for i in range(first, last + 1, step)]
    if found.count(found[0]) == len(found):
        same = EntryRun.of(1, first, [bytes(found[0])] * (last - first + 1))
        assert same.entries_at(range(first, last + 1, step)) == found
    part = run.slice(first, last)
    assert dict(part.entries()) == {i: entries[i] for i in here if first <= i <= last}


@given(st.sets(st.integers(0, 200)))
def test_availability_comes_back(entry_ids: set[int]) -> None:
    data = availability.encode(sorted(entry_ids))
    assert availability.decode(data) == sorted(entry_ids)


@given(tokens)
def test_varints_are_protobufs(value: int) -> None:
    header = message_class("BKPacketHeader")(txnId=value).SerializePartialToString()
    assert varint.encode(value) == header[1:]
    assert varint.decode(header, 1, len(header)) == (value, len(header))
    rest = varint.high_part(header[2:])
    assert rest + (header[1] & 127) == value


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x02\x01", b"\x02\x07", b"\x0a\x06\x08\x03"])
)
def test_no_bytes_make_a_decoder_raise_anything_but_its_own_errors(
    data: bytes, prefix: bytes
) -> None:
    for decoder in (RequestDecoder(), v2.AnswerDecoder(), v3.ResponseDecoder()):
        with contextlib.suppress(RemoteProtocolError):
            decoder.feed(frame(prefix + data + b"\0"))
        with contextlib.suppress(RemoteProtocolError):
            decoder.feed(data)
    with contextlib.suppress(RemoteProtocolError):
        availability.decode_ranges(data)
    for digest_type in DigestType:
        with contextlib.suppress(DigestMismatchError):
            digester(digest_type, b"").open_run(data, 0, 0)
