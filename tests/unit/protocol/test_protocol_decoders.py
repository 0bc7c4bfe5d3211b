"""Decoders fed whole, in pieces and with bytes that are no frames."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from doubles.decoding import decode_all
from quorumbook.errors import FrameTooLargeError, RemoteProtocolError
from quorumbook.protocol import frames
from quorumbook.protocol import requests as rq
from quorumbook.protocol.answers import (
    add_answers,
    bookie_info_answer,
    error_answer,
    read_answer,
)
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.frames import FrameBuffer, frame
from quorumbook.protocol.messages import message_class, parse
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.protocol.v3 import requests as v3_requests

KEY = master_key(b"passwd")
SEALER = digester(DigestType.CRC32C, b"passwd")


def bodies_of(
    payloads: Sequence[bytes], ledger_id: int = 5, first: int = 100, lac: int = 99
) -> list[bytes]:
    return SEALER.seal_many(ledger_id, first, lac, 0, payloads)[0]


def payloads_of(count: int, size: int = 50) -> list[bytes]:
    return [bytes([index & 255]) * size for index in range(count)]


def v2_adds(ids: Sequence[int], ledger_id: int = 5, size: int = 50, flags: int = 0) -> bytes:
    bodies = [SEALER.seal(ledger_id, i, 9, 0, bytes([i & 255]) * size) for i in ids]
    return b"".join(v2.encode_adds(KEY, flags, bodies))


def v3_adds(ids: Sequence[int], first_txn: int = 120, ledger_id: int = 5, **options: Any) -> bytes:
    return b"".join(
        v3.encode_add(
            first_txn + n,
            ledger_id,
            i,
            KEY,
            SEALER.seal(ledger_id, i, 9, 0, bytes([i & 255]) * 50),
            **options,
        )
        for n, i in enumerate(ids)
    )


def describe(requests: list[rq.Request]) -> list[Any]:
    """What requests say, adds entry by entry, so that it does not matter how they were grouped."""
    lines: list[Any] = []
    for request in requests:
        if isinstance(request, rq.AddRun):
            run = request.run
            tokens = request.transaction_ids or [request.token] * run.count
            for token, (entry_id, entry) in zip(tokens, run.entries(), strict=True):
                assert run.data[run.bounds(entry_id)[0] - 4 :][:4] == len(entry).to_bytes(4, "big")
                flags = (request.is_recovery, request.is_high_priority, request.is_deferred_sync)
                lines.append((run.ledger_id, entry_id, entry, request.master_key, token, *flags))
        else:
            lines.append(repr(request))
    return lines


V2_STREAM = b"".join(
    (
        v2_adds(range(250, 300)),
        v2.encode_read(5, 7),
        v2.encode_read(5, 8),
        v2_adds([300, 301, 303, 304, 306], size=7),
        v2_adds([306, 305], flags=v2.RECOVERY_ADD),
        v2_adds(range(40), ledger_id=6),
        v2.encode_read(5, -1, master_key=KEY),
        v2.encode_batch_read(5, 7, 1, 10, 1 << 20),
        v2.encode_auth("AuthDisabledPlugin", b""),
    )
)
V3_STREAM = b"".join(
    (
        v3_adds(range(100, 160)),
        v3.encode_read(16380, 5, 126),
        v3.encode_read(16381, 5, 127),
        v3.encode_read(16384, 5, 128),
        v3.encode_read(1, 5, -1, previous_lac=7, timeout_ms=10, is_piggyback=True),
        v3_adds(range(16380, 16390), 2**31 - 3),
        v3_adds([16390, 16392], 1, is_deferred_sync=True),
        v3_adds([1, 2], 1, is_recovery=True, is_high_priority=True),
        v3.encode_read(2, 5, -1, master_key=KEY),
        v3.encode_write_lac(3, 5, 7, KEY, SEALER.lac_packet(5, 7)),
        v3.encode_read_lac(4, 5),
        v3.encode_force(5, 5),
        v3.encode_list_entries(6, 5),
        v3.encode_bookie_info(7),
        v3.encode_auth(8, "P", b"x"),
        v3.encode_start_tls(9),
    )
)


def answers_stream() -> bytes:
    (run,) = RequestDecoder().feed(v2_adds(range(200, 600)))
    (holes,) = RequestDecoder().feed(v2_adds([1, 2, 4, 5, 7]))
    assert isinstance(run, rq.AddRun)
    assert isinstance(holes, rq.AddRun)
    return b"".join(
        (
            add_answers(run, Status.OK),
            add_answers(holes, Status.FENCED),
            v2.encode_read_answer(5, 9, 0, b"e" * 100),
            v2.encode_add_answers(5, [3], 0),
            *v2.encode_batch_read_answer(5, 9, 77, 0, b"d" * 1000),
            *v2.encode_batch_read_answer(5, 10, 78, 0, bytes(range(250)) * 5),
            v2.encode_auth("P", b"y"),
        )
    )


def responses_stream() -> bytes:
    requests = RequestDecoder().feed(V3_STREAM)
    return b"".join(error_answer(request, Status.FENCED) for request in requests)


@pytest.mark.parametrize("stream", [V2_STREAM, V3_STREAM], ids=["v2", "v3"])
def test_a_stream_of_requests_means_the_same_however_it_is_cut(stream: bytes) -> None:
    whole = describe(RequestDecoder().feed(stream))
    for size in (1, 2, 3, 7, 100, 1000, len(stream) - 1):
        decoder = RequestDecoder()
        found: list[rq.Request] = []
        for start in range(0, len(stream), size):
            found += decoder.feed(stream[start : start + size])
        assert describe(found) == whole
        assert decoder.pending_bytes == 0


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the place of each entry that is gathered without a copy."""
    places: list[int] = []
    gather_tail = FrameBuffer.gather_tail

    def counted(buffer: FrameBuffer, place: int) -> None:
        places.append(place)
        gather_tail(buffer, place)

    monkeypatch.setattr(FrameBuffer, "gather_tail", counted)
    return places


@pytest.mark.parametrize("stream", [V2_STREAM, V3_STREAM], ids=["v2", "v3"])
@pytest.mark.parametrize("large_from_bytes", [60, 110])
def test_large_adds_mean_the_same_however_they_are_cut(
    stream: bytes, large_from_bytes: int, tails: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "GATHERED_FROM_BYTES", large_from_bytes)
    whole = describe(RequestDecoder().feed(stream))
    for size in (1, 7, *range(40, 180), 1000, len(stream) - 1):
        decoder = RequestDecoder()
        found: list[rq.Request] = []
        for start in range(0, len(stream), size):
            found += decoder.feed(stream[start : start + size])
            assert decoder.frame_bytes >= decoder.pending_bytes
        assert describe(found) == whole
        assert decoder.pending_bytes == 0
    assert len(tails) > 100


@pytest.mark.parametrize("version", [2, 3])
def test_the_entry_of_a_connections_first_large_add_is_not_copied(
    version: int, tails: list[int]
) -> None:
    bodies = bodies_of([bytes(frames.GATHERED_FROM_BYTES)])
    v2_add, v3_add = (
        b"".join(v2.encode_adds(KEY, 0, bodies)),
        v3.encode_add(1, 5, 100, KEY, *bodies),
    )
    large = v2_add if version == 2 else v3_add
    decoder = RequestDecoder()
    assert decoder.feed(large[:1000]) == []
    (request,) = decoder.feed(large[1000:])
    assert isinstance(request, rq.AddRun)
    assert request.version == version
    assert decoder.is_v2 == (version == 2)
    assert len(tails) == 1


def merged(answers: list[Any]) -> list[Any]:
    lines: list[Any] = []
    for answer in answers:
        if isinstance(answer, v2.AddAnswers):
            lines += [
                (answer.ledger_id, entry_id, answer.code)
                for entry_id in range(answer.first_entry_id, answer.last_entry_id + 1)
            ]
        else:
            lines.append(repr(answer))
    return lines


@pytest.mark.parametrize(
    ("make_decoder", "stream"),
    [(v2.AnswerDecoder, answers_stream()), (v3.ResponseDecoder, responses_stream())],
    ids=["v2", "v3"],
)
def test_a_stream_of_answers_means_the_same_however_it_is_cut(
    make_decoder: Callable[[], Any], stream: bytes
) -> None:
    whole = merged(make_decoder().feed(stream))
    for size in (1, 3, 27, 28, 29, 61, 300, 301, 1000):
        decoder = make_decoder()
        found: list[Any] = []
        for start in range(0, len(stream), size):
            found += decoder.feed(stream[start : start + size])
        assert merged(found) == whole
        assert decoder.pending_bytes == 0


@pytest.mark.parametrize("make_decoder", [RequestDecoder, v2.AnswerDecoder, v3.ResponseDecoder])
def test_bytes_of_the_next_frame_wait_for_the_rest(make_decoder: Callable[[], Any]) -> None:
    stream = {RequestDecoder: V2_STREAM, v2.AnswerDecoder: answers_stream()}.get(
        make_decoder,  # type: ignore[call-overload]
        responses_stream(),
    )
    decoder = make_decoder()
    count = len(merged(decoder.feed(stream)))
    assert decoder.feed(stream[:10]) == []
    assert decoder.pending_bytes == 10
    again = decoder.feed(stream[10:] + stream[:3])
    if make_decoder is not RequestDecoder:
        assert len(merged(again)) == count
    assert decoder.pending_bytes == 3


@pytest.mark.parametrize("make_decoder", [RequestDecoder, v2.AnswerDecoder, v3.ResponseDecoder])
def test_a_frame_one_byte_over_the_limit_is_refused_before_it_comes(
    make_decoder: Callable[[int], Any],
) -> None:
    limit = 1000
    assert make_decoder(limit).feed((limit - 4).to_bytes(4, "big")) == []
    with pytest.raises(FrameTooLargeError):
        make_decoder(limit).feed((limit - 3).to_bytes(4, "big"))
    decoder = make_decoder(limit)
    decoder.feed((limit - 3).to_bytes(4, "big")[:3])
    with pytest.raises(FrameTooLargeError):
        decoder.feed((limit - 3).to_bytes(4, "big")[3:])
    # also where the whole frame is there already
    with pytest.raises(FrameTooLargeError):
        make_decoder(limit).feed((limit - 3).to_bytes(4, "big") + bytes(2 * limit))


@pytest.mark.parametrize("make_decoder", [RequestDecoder, v2.AnswerDecoder, v3.ResponseDecoder])
@pytest.mark.parametrize("length", [0, -1, -(2**31)])
def test_a_length_that_is_not_positive_is_refused(
    make_decoder: Callable[[], Any], length: int
) -> None:
    with pytest.raises(RemoteProtocolError):
        make_decoder().feed(length.to_bytes(4, "big", signed=True) + bytes(100))


def test_an_oversized_add_in_the_middle_of_a_run_is_refused() -> None:
    for encode in (v2_adds, v3_adds):
        small = encode(range(5))
        large = v2_adds([5], size=900) if encode is v2_adds else encode([5]) + bytes(1)
        decoder = RequestDecoder(500)
        if encode is v2_adds:
            with pytest.raises(FrameTooLargeError):
                decoder.feed(small + large)
        else:
            assert len(decoder.feed(small + large)) == 1
    with pytest.raises(FrameTooLargeError):
        RequestDecoder(200).feed(
            v3_adds([1]) + v3.encode_add(2, 5, 2, KEY, bodies_of([bytes(300)])[0])
        )


def test_an_http_request_on_the_port_is_refused() -> None:
    with pytest.raises(FrameTooLargeError):
        RequestDecoder().feed(b"GET / HTTP/1.1\r\n\r\n")


def test_garbage_raises_a_protocol_error_and_nothing_else() -> None:
    rng = random.Random(7)
    for decoder_class in (RequestDecoder, v2.AnswerDecoder, v3.ResponseDecoder):
        for _ in range(2000):
            body = rng.randbytes(rng.randrange(1, 60))
            if rng.random() < 0.5:
                body = bytes([rng.choice((2, 10)), rng.choice((1, 2, 3, 6, 7, 8))]) + body
            with contextlib.suppress(RemoteProtocolError):
                decoder_class().feed(frame(body))


@pytest.mark.parametrize("stream", [V2_STREAM, V3_STREAM], ids=["v2", "v3"])
def test_flipped_bytes_raise_a_protocol_error_or_decode_and_never_hang(stream: bytes) -> None:
    rng = random.Random(8)
    for _ in range(600):
        damaged = bytearray(stream)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(RemoteProtocolError):
            RequestDecoder().feed(bytes(damaged))


@pytest.mark.parametrize("stream", [V2_STREAM, V3_STREAM], ids=["v2", "v3"])
def test_frames_shorter_than_their_fields_are_refused(stream: bytes) -> None:
    position = 0
    while position < len(stream):
        length = int.from_bytes(stream[position : position + 4], "big")
        body = stream[position + 4 : position + 4 + length]
        for size in (1, 3, 7, 15, 23, 35, 43):
            if size >= len(body):
                continue
            decoder = RequestDecoder()
            decoder.is_v2 = stream is V2_STREAM
            try:
                requests = decoder.feed(frame(body[:size]))
            except RemoteProtocolError:
                continue
            # What still decodes is complete: a layout with less in it.
            assert all(isinstance(request, rq.Request) for request in requests)
        position += 4 + length


def test_v3_and_then_v2_is_allowed_and_v3_after_v2_is_not() -> None:
    decoder = RequestDecoder()
    first, second = decoder.feed(v3.encode_read(1, 5, 6) + v2.encode_read(5, 6))
    assert (first.version, second.version) == (3, 2)
    with pytest.raises(RemoteProtocolError):
        decoder.feed(v3.encode_read(2, 5, 6))


def test_a_v3_request_without_the_message_of_its_operation_is_refused() -> None:
    request = v3.Request()
    request.header.version = 3
    request.header.operation = 2
    request.header.txnId = 1
    with pytest.raises(RemoteProtocolError):
        RequestDecoder().feed(frame(request.SerializeToString()))


def test_a_v3_answer_that_says_ok_and_nothing_else_is_refused() -> None:
    response = message_class("Response")(status=0)
    response.header.version = 3
    response.header.operation = 2
    response.header.txnId = 1
    with pytest.raises(RemoteProtocolError):
        v3.ResponseDecoder().feed(frame(response.SerializeToString()))


def test_a_v3_answer_with_two_statuses_fails_if_either_does() -> None:
    for top, nested in ((0, 501), (501, 0)):
        response = message_class("Response")(status=top)
        response.header.version = 3
        response.header.operation = 2
        response.header.txnId = 1
        response.addResponse.status = nested
        response.addResponse.ledgerId = 5
        response.addResponse.entryId = 6
        (decoded,) = v3.ResponseDecoder().feed(frame(response.SerializeToString()))
        assert decoded.status is Status.IO_ERROR


def test_a_strange_answer_header_is_refused_by_a_v2_client() -> None:
    answer = bytearray(v2.encode_add_answers(5, [6], 0))
    answer[4] = 1
    with pytest.raises(RemoteProtocolError):
        v2.AnswerDecoder().feed(bytes(answer))


def test_secrets_are_not_in_the_text_of_requests() -> None:
    for request in RequestDecoder().feed(V3_STREAM) + RequestDecoder().feed(V2_STREAM):
        assert repr(KEY)[2:-1] not in repr(request)


def test_a_read_answer_echoes_the_requested_id_not_the_found_one() -> None:
    (request,) = RequestDecoder().feed(v2.encode_read(5, -1))
    assert isinstance(request, rq.Read)
    (answer,) = v2.AnswerDecoder().feed(read_answer(request, Status.OK, b"entry"))
    assert answer == v2.ReadAnswer(5, -1, 0, b"entry")
    (request,) = RequestDecoder().feed(v3.encode_read(1, 5, -1))
    assert isinstance(request, rq.Read)
    (response,) = v3.ResponseDecoder().feed(read_answer(request, Status.OK, b"entry", max_lac=4))
    assert (response.entry_id, response.body, response.max_lac) == (-1, b"entry", 4)


def by_protobuf(frames: list[bytes]) -> list[Any] | None:
    """What the protobuf library says about each frame; None if one is no request."""
    found: list[rq.Request] = []
    for encoded in frames:
        try:
            request = v3_requests.decode_request(encoded, 0, len(encoded))
        except RemoteProtocolError:
            return None
        if request is None:
            return None
        found.append(request)
    return described_with_echo(found)


def described_with_echo(requests: list[rq.Request]) -> list[Any]:
    lines = []
    for request in requests:
        inner = request.refused if isinstance(request, rq.Unsupported) else request
        if isinstance(inner, rq.AddRun):
            refusal = request.status if isinstance(request, rq.Unsupported) else None
            echo = [(inner.echo_ledger_id, entry_id) for entry_id in inner.echo_entry_ids]
            pairs = zip(describe([inner]), echo, strict=True)
            lines += [(refusal, line, pair) for line, pair in pairs]
        elif isinstance(request, rq.ReadRun):
            lines += map(repr, request.reads())
        else:
            lines.append(repr(request))
    return lines


@pytest.mark.parametrize("seed", range(4))
def test_the_hand_written_decoders_read_damaged_frames_as_protobuf_does(seed: int) -> None:
    rng = random.Random(seed)
    kinds: list[dict[str, Any]] = [{}, {"is_recovery": True}, {"is_deferred_sync": True}]
    for _ in range(700):
        first, token = rng.choice([(3, 5), (126, 120), (200, 16380), (70000, 300)])
        options = rng.choice(kinds)
        if rng.random() < 0.3:
            step = rng.choice([1, 3])
            frames = [v3.encode_read(token + i, 5, first + i * step) for i in range(100)]
        else:
            frames = [v3_adds([first + i], token + i, **options) for i in range(6)]
        at = rng.randrange(1, len(frames) - 1)
        damaged = bytearray(frames[at])
        # The head, or the fields behind the entry; its payload cannot go wrong.
        size = len(damaged)
        is_head = rng.random() < 0.7
        spot = rng.randrange(4, min(size, 80)) if is_head else size - 1 - rng.randrange(4)
        damaged[spot] ^= 1 << rng.randrange(8)
        frames[at] = bytes(damaged)
        expected = by_protobuf(frames)
        try:
            found = decode_all(RequestDecoder(), b"".join(frames))
        except RemoteProtocolError:
            assert expected is None
        else:
            # A frame that is no v3 request may still be one of v2, to be refused.
            if expected is None:
                assert any(request.version == 2 for request in found)
            else:
                assert described_with_echo(found) == expected


def test_a_large_add_in_a_run_of_v3_is_refused() -> None:
    entries = bodies_of([bytes(size) for size in (200, 210, 220, 700, 230)])
    data = b"".join(v3.encode_add(200 + i, 5, 100 + i, KEY, e) for i, e in enumerate(entries))
    with pytest.raises(FrameTooLargeError):
        RequestDecoder(500).feed(data)
    assert len(describe(RequestDecoder().feed(data))) == 5


def test_v3_requests_without_required_fields_are_refused() -> None:
    incomplete = v3.Request()
    incomplete.header.version = 3
    incomplete.header.operation = 1
    incomplete.header.txnId = 1
    incomplete.readRequest.ledgerId = 5
    without_transaction = v3.Request.FromString(v3.encode_read(1, 5, 6)[4:])
    without_transaction.header.ClearField("txnId")
    for message in (incomplete, without_transaction):
        with pytest.raises(RemoteProtocolError):
            RequestDecoder().feed(frame(message.SerializePartialToString()))


def test_a_lac_packet_that_contradicts_its_request_is_refused() -> None:
    for packet in (SEALER.lac_packet(6, 7), bytes(15), b""):
        (request,) = RequestDecoder().feed(v3.encode_write_lac(3, 5, 7, KEY, packet))
        assert isinstance(request, rq.Unsupported)
        (response,) = v3.ResponseDecoder().feed(error_answer(request, request.status))
        assert (response.status, response.ledger_id) == (Status.BAD_REQUEST, 5)
    negative = v3.encode_write_lac(3, -5, 7, KEY, SEALER.lac_packet(-5, 7))
    assert isinstance(RequestDecoder().feed(negative)[0], rq.Unsupported)
    # What readers will get is what counts, not what stands beside it.
    (request,) = RequestDecoder().feed(v3.encode_write_lac(3, 5, 7, KEY, SEALER.lac_packet(5, 8)))
    assert isinstance(request, rq.WriteLAC)
    assert request.lac == 8


def test_bookie_info_says_only_what_was_asked_for() -> None:
    for requested, total, free in ((0, None, None), (1, 100, None), (2, None, 50), (3, 100, 50)):
        (request,) = RequestDecoder().feed(v3.encode_bookie_info(1, requested))
        assert isinstance(request, rq.BookieInfo)
        answer = bookie_info_answer(request, Status.OK, 100, 50)
        (response,) = v3.ResponseDecoder().feed(answer)
        assert (response.total_disk_bytes, response.free_disk_bytes) == (total, free)


def test_answers_of_two_ledgers_are_not_mixed_up() -> None:
    data = v2.encode_add_answers(5, [1], 0) + v2.encode_add_answers(6, [2], 0)
    assert v2.AnswerDecoder().feed(data) == [v2.AddAnswers(5, 1, 1, 0), v2.AddAnswers(6, 2, 2, 0)]
    data = v2.encode_add_answers(5, [1], 0) + v2.encode_add_answers(5, [2], 104)
    assert v2.AnswerDecoder().feed(data) == [
        v2.AddAnswers(5, 1, 1, 0),
        v2.AddAnswers(5, 2, 2, 104),
    ]


def test_the_classes_of_a_messages_parts_are_made_once():
    info = v3.encode_bookie_info(1)
    made = weakref.ref(type(parse("Request", info[4:]).header))
    gc.collect()
    assert made() is type(parse("Request", info[4:]).header)


@pytest.mark.parametrize("seed", range(20))
def test_chunks_that_are_held_are_what_they_would_have_been(seed):
    dice = random.Random(seed)
    sizes = [dice.choice((10, 500, 70_000, 3_000_000)) for _ in range(12)]
    stream = b"".join(
        b"".join(v2.encode_adds(KEY, 0, bodies_of([bytes(size)], first=number, lac=number - 1)))
        for number, size in enumerate(sizes)
    )
    whole, held = RequestDecoder(), RequestDecoder()
    expected, found, position = [], [], 0
    while position < len(stream):
        chunk = stream[position : position + dice.choice((3, 900, 250_000, 262_144))]
        position += len(chunk)
        expected += _fed(whole, chunk)
        if dice.random() < 0.7:
            before = held.pending_bytes
            held.hold(chunk)
            assert held.pending_bytes == before + len(chunk)
            assert held.is_behind
            chunk = b""
        found += _fed(held, chunk)
        assert held.pending_bytes == whole.pending_bytes
    assert found == expected
    assert found[-1] == len(sizes) - 1


def _fed(decoder, chunk):
    found = [run.last_entry_id for run in _runs(decoder.feed(chunk))]
    while decoder.is_behind:
        found += [run.last_entry_id for run in _runs(decoder.feed(b""))]
    return found


def _runs(requests):
    return [each.run for each in requests]
