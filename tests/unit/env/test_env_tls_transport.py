"""What a TLS peer makes others pay: slices, turns, a largest handshake, records without data."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.certificates import Authority
from doubles.key_updates import ask_for_new_keys
from quorumbook.env.interfaces import Asker
from quorumbook.env.tls_transport import TlsTransport


class _Below(asyncio.Transport):
    """A connection that takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_paused = False
        self.is_closed = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Nobody else calls it."""

    def write(self, data: Any) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def take(self) -> bytes:
        """Return what was sent."""
        sent, self.sent = bytes(self.sent), bytearray()
        return sent


class _Above(asyncio.Protocol):
    """Gathers what is decrypted."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.chunks = 0
        self.on_data: Callable[[], None] = lambda: None

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.chunks += 1
        self.on_data()


class _Turns:
    """A turn has time for so many slices."""

    def __init__(self, slices: int) -> None:
        self.slices = slices
        self.left = slices
        self.waiting: list[Asker] = []

    @property
    def is_over(self) -> bool:
        self.left -= 1
        return self.left < 0

    def wait(self, asker: Asker, size_bytes: int) -> None:
        assert size_bytes > 0
        assert asker not in self.waiting
        self.waiting.append(asker)

    def next(self) -> None:
        """The next turn of the loop."""
        self.left = self.slices
        waiting, self.waiting = self.waiting, []
        for asker in waiting:
            asker.go_on()


class _Pair:
    """A bookie's side, and a client's that writes what a test wants."""

    def __init__(self, ca: Authority, turns: _Turns | None) -> None:
        issued = ca.issue("bookie", ips=["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(issued.certificate_file, issued.key_file)
        self.below, self.above, self.turns = _Below(), _Above(), turns
        self.done: list[Exception | None] = []
        self.tls = TlsTransport(
            self.below, self.above, context, server_side=True, server_hostname=None,
            done=self.done.append, turns=turns,
        )  # fmt: skip
        trusting = ssl.create_default_context(cafile=ca.ca_file)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = trusting.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    def hello(self) -> bytes:
        """Return the client's first message."""
        self.tls.begin()
        with pytest.raises(ssl.SSLWantReadError):
            self.client.do_handshake()
        return self._out.read()

    def agree(self) -> None:
        """Have the client's last message written, which is not sent yet."""
        self._in.write(self.below.take())
        self.client.do_handshake()

    def shake(self) -> None:
        """Make the handshake."""
        self.tls.data_received(self.hello())
        self.agree()
        self.tls.data_received(self._out.read())
        assert self.done == [None]
        self.below.take()  # tickets
        if self.turns is not None:
            self.turns.left = self.turns.slices

    def new_keys(self, count: int) -> bytes:
        """Return records that ask for new keys."""
        ask_for_new_keys(self.client, count)
        return self._out.read()

    def records(self, pieces: list[bytes]) -> bytes:
        """Return a record for each piece."""
        for piece in pieces:
            self.client.write(piece)
        return self._out.read()


@pytest.fixture(name="ca")
def _ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_peer_that_asks_for_new_keys_without_end_is_given_up_soon(ca: Authority) -> None:
    turns = _Turns(1)
    pair = _Pair(ca, turns)
    turns.left = 100
    pair.shake()
    pair.tls.data_received(pair.new_keys(9700))
    # A quarter of a megabyte would take 160 ms; a turn does less than a hundredth of it.
    answered = len(pair.below.take())
    assert 0 < answered <= 2 * 1024
    assert pair.below.is_paused
    for _ in range(20):
        turns.next()
    assert pair.below.is_closed
    assert turns.waiting == []
    assert len(pair.below.take()) <= 32 * 1024


def test_new_keys_now_and_then_are_nothing_special(ca: Authority) -> None:
    pair = _Pair(ca, _Turns(10**6))
    pair.shake()
    sent = b""
    for index in range(50):
        piece = bytes([index]) * 40
        sent += piece
        pair.tls.data_received(pair.new_keys(100) + pair.records([piece]))
    assert pair.above.data == sent
    assert not pair.below.is_closed


def test_a_turn_gives_few_new_keys_also_where_data_comes_between_them(ca: Authority) -> None:
    turns = _Turns(1)
    pair = _Pair(ca, turns)
    turns.left = 100
    pair.shake()
    sent, chunk = b"", b""
    for index in range(40):
        piece = bytes([index])
        sent += piece
        chunk += pair.new_keys(50) + pair.records([piece])
    one_answer = len(pair.new_keys(1))
    pair.tls.data_received(chunk)
    most = len(pair.below.take())
    while turns.waiting:
        turns.next()
        most = max(most, len(pair.below.take()))
    # 2,040 records, of which 64 come in a slice: 16 KB would hold 600.
    assert 0 < most <= 64 * one_answer
    assert pair.above.data == sent
    assert not pair.below.is_closed
    assert not pair.below.is_paused


def test_records_come_whole_wherever_chunks_end(ca: Authority) -> None:
    dice = random.Random(7)
    turns = _Turns(3)
    pair = _Pair(ca, turns)
    turns.left = 100
    pair.shake()
    sizes = [dice.choice((1, 2, 30, 300)) for _ in range(300)] + [16384, 3000, 16384]
    pieces = [dice.randbytes(size) for size in sizes]
    stream = pair.records(pieces)
    while stream:
        size = dice.choice((1, 2, 3, 4, 5, 6, 7, 100, 900))
        turns.left = 3
        pair.tls.data_received(stream[:size])
        for _ in range(10):
            turns.next()
        assert not pair.below.is_paused
        stream = stream[size:]
    assert pair.above.data == b"".join(pieces)


@pytest.mark.parametrize("slices", [1, 2, 5])
def test_what_waits_for_turns_comes_whole_and_in_order_whoever_pauses(
    ca: Authority, slices: int
) -> None:
    dice = random.Random(slices)
    turns = _Turns(slices)
    pair = _Pair(ca, turns)
    turns.left = 100
    pair.shake()
    paused = False

    def pause() -> None:
        nonlocal paused
        if dice.random() < 0.5:
            pair.tls.pause_reading()
            paused = True

    pair.above.on_data = pause
    sent = b""
    for _ in range(20):
        pieces = [
            dice.randbytes(dice.choice((1, 30, 3000, 16384))) for _ in range(dice.randrange(1, 60))
        ]
        sent += b"".join(pieces)
        assert not pair.below.is_paused
        turns.left = slices
        pair.tls.data_received(pair.records(pieces))
        while paused or turns.waiting or pair.below.is_paused:
            assert pair.below.is_paused, "it is read while something is held"
            turns.next()
            if paused and dice.random() < 0.5:
                before = pair.above.chunks
                turns.next()
                assert pair.above.chunks == before, "whoever paused gets nothing"
                paused = False
                pair.tls.resume_reading()
    assert pair.above.data == sent


@pytest.mark.parametrize("size", [1000, 16384])
def test_openssl_is_asked_once_for_a_record_and_never_for_a_part_of_one(
    ca: Authority, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pair = _Pair(ca, _Turns(10**6))
    pair.shake()
    stream = pair.records([bytes(size)] * 40)
    asked: list[int] = []
    read = ssl.SSLObject.read

    def count(tls: ssl.SSLObject, *arguments: Any) -> Any:
        asked.append(1)
        return read(tls, *arguments)

    monkeypatch.setattr(ssl.SSLObject, "read", count)
    for at in range(0, len(stream), 16_000):
        pair.tls.data_received(stream[at : at + 16_000])
    assert len(pair.above.data) == 40 * size
    assert len(asked) == 40


def test_a_record_that_says_it_is_too_long_is_refused_by_its_head(ca: Authority) -> None:
    pair = _Pair(ca, _Turns(10**6))
    pair.shake()
    pair.tls.data_received(b"\x17\x03\x03\xff\xff" + bytes(100))
    assert pair.below.is_closed


def test_without_others_a_chunk_is_handed_on_in_one_piece(ca: Authority) -> None:
    for turns in (None, _Turns(1000)):
        pair = _Pair(ca, turns)
        pair.shake()
        before = pair.above.chunks
        pair.tls.data_received(pair.records([bytes(1000)] * 250))
        assert len(pair.above.data) == 250_000
        assert pair.above.chunks == before + 1


def test_a_handshake_waits_for_a_turn_that_has_time(ca: Authority) -> None:
    turns = _Turns(0)
    pair = _Pair(ca, turns)
    hello = pair.hello()
    turns.left = 0
    pair.tls.data_received(hello)
    assert pair.below.take() == b"", "no signature is made"
    assert pair.below.is_paused
    turns.slices = 1
    turns.next()
    assert pair.below.take()
    assert not pair.below.is_paused


def test_what_comes_behind_a_handshake_in_one_chunk_is_no_part_of_it(ca: Authority) -> None:
    pair = _Pair(ca, _Turns(1000))
    pair.tls.data_received(pair.hello())
    pair.agree()
    # Two such records behind it would be more than a handshake may take.
    pair.tls.data_received(pair.records([bytes(16100)] * 15))
    assert pair.done == [None]
    assert len(pair.above.data) == 15 * 16100
    assert not pair.below.is_closed


def test_a_handshake_of_many_bytes_is_given_up(ca: Authority) -> None:
    turns = _Turns(10**6)
    pair = _Pair(ca, turns)
    pair.hello()
    # A hello that says it is 100 KB long, in records of 1 KB.
    message = b"\x01" + (100_000).to_bytes(3, "big") + b"\x03\x03" + bytes(100_000)
    sent = 0
    while sent < len(message) and not pair.below.is_closed:
        piece = message[sent : sent + 1024]
        sent += len(piece)
        pair.tls.data_received(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece)
    assert sent <= 34_000
    assert pair.below.is_closed
    pair.tls.connection_lost(None)
    (error,) = pair.done
    assert "32768 bytes" in str(error)


def _with_a_rest(ca: Authority) -> tuple[_Turns, _Pair]:
    """Return a pair of which some records wait for their turn."""
    turns = _Turns(1)
    pair = _Pair(ca, turns)
    turns.left = 100
    pair.shake()
    pair.tls.data_received(pair.records([bytes(1000)] * 128))
    return turns, pair


@pytest.mark.parametrize("who_cuts", ["we", "the peer"])
def test_what_is_held_of_a_connection_that_is_cut_is_forgotten(
    ca: Authority, who_cuts: str
) -> None:
    turns, pair = _with_a_rest(ca)
    assert turns.waiting
    before = len(pair.above.data)
    if who_cuts == "we":
        pair.tls.abort()
    pair.tls.connection_lost(None)
    turns.next()
    assert len(pair.above.data) == before
    assert turns.waiting == []


def test_who_pauses_while_the_rest_waits_for_its_turn_gets_nothing_before_it_resumes(
    ca: Authority,
) -> None:
    turns, pair = _with_a_rest(ca)
    before = len(pair.above.data)
    pair.tls.pause_reading()
    turns.next()
    assert len(pair.above.data) == before
    pair.tls.resume_reading()
    turns.slices = 100
    turns.next()
    assert len(pair.above.data) == 8 * 16000
    assert not pair.below.is_paused
