"""Attacks on the port of a bookie: messages, order, time, proofs and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import ssl
import struct
from collections.abc import Callable, Iterable, Sequence

from doubles.records import entry
from quorumbook.auth.plugins import Peer
from quorumbook.auth.shared_secret import ClientSharedSecret
from quorumbook.protocol.frames import frame
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from security.adversary.prey import Attack, Prey, Wire
from security.fuzz.frames import EDGES, KEY

LEDGER = 0x7B7B_7B7B << 24


def _message(*parts: bytes, operation: int = 1) -> bytes:
    """Return a v3 request whose header is right, with whatever behind it."""
    header = b"\x08\x03\x10" + bytes([operation]) + b"\x18\x07"
    return frame(b"\x0a" + bytes([len(header)]) + header + b"".join(parts))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int, padding: int = 0) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value > 127 or padding > 0:
        padding -= 1
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def messages() -> list[bytes]:
    """Return requests that are protobuf as no client makes it."""
    read = v3.encode_read(7, LEDGER, 0)[4:]
    details = read[2 + read[1] :]
    pair = _field(200, b"\x0a\0\x12\0")
    return [
        _message(details, pair * 600_000),  # what tells of a request, and nobody reads
        *(_message(details, b"\x7b" * n + b"\x7c" * n) for n in (1, 90, 101, 10_000, 1_000_000)),
        _message(details, b"\x7b" * 1_000_000),
        _message(details, b"\x78\x01" * 2_000_000),  # unknown numbers
        _message(details, _field(15, b"\x01" * 4_000_000)),  # or one packed field of them
        _message(details, b"".join(_field(15, b"") for _ in range(1_000_000))),
        _message(details * 200_000),  # one message, merged over and over
        frame(read[: 2 + read[1]] * 300_000 + details),  # and its header
        frame(b"\x0a" + _varint(6, 9) + read[2:]),  # lengths longer than they need to be
        frame(b"\x8a\x80\x80\x80\x80\x80\x80\x80\x80\x00" + read[1:]),
        _message(_field(102, b"\xff" * 5000), operation=5),
        _message(_field(102, _field(1, b"\xff\xfe" * 100) + _field(2, b"x")), operation=5),
        *(_message(details, operation=n) for n in (0, 3, 77, 127)),
        *(frame(b"\x0a" + bytes([n]) + bytes(n)) for n in (0, 1, 6, 200)),
        frame(b""), frame(b"\x0a"), b"\0\0\0\0" * 10_000, b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff" + read, (2**31).to_bytes(4, "big") + read,
    ]  # fmt: skip


async def odd_messages(prey: Prey, dice: random.Random) -> None:
    """Nests, unknown fields, packed ones, one field over and over, lengths that lie."""
    for message in messages():
        async with prey.connected() as wire:
            await wire.send(message)
            prey.judge("odd messages", await wire.taken())


def _extremes(dice: random.Random) -> Iterable[bytes]:
    for number in range(400):
        ledger_id, entry_id, third, fourth = (dice.choice(EDGES) for _ in range(4))
        ids = (v & (2**64 - 1) for v in (ledger_id, entry_id, third, fourth))
        ledger, one, two, three = (_varint(value) for value in ids)
        both = b"\x08" + ledger + b"\x10" + one
        yield dice.choice((
            _message(_field(100, both + b"\x20" + two + b"\x28" + three)),
            _message(_field(100, both)),
            v2.encode_adds(KEY, 0, [struct.pack(">qqqq", ledger_id, entry_id, third, fourth)])[0],
            v3.encode_add(1, LEDGER, 0, KEY, struct.pack(">qq", ledger_id, entry_id)),
            frame(struct.pack(">BBhqq", 2, dice.randrange(256), -1, ledger_id, entry_id)),
            frame(struct.pack(">BBhqqqqq", 2, 8, 0, ledger_id, entry_id, third, fourth, number)),
            _message(_field(104, b"\x08" + ledger), operation=7),
            _message(_field(108, b"\x08" + ledger), operation=11),
            _message(_field(105, b"\x08" + ledger), operation=8),
        ))  # fmt: skip


async def extreme_numbers(prey: Prey, dice: random.Random) -> None:
    """Ids, timeouts and counts below zero, at the ends of what a number holds, and none."""
    for chunk in _batches(_extremes(dice)):
        async with prey.connected() as wire:
            await wire.send(b"".join(chunk))
            prey.judge("extreme numbers", await wire.taken(0.05))


def _batches(frames: Iterable[bytes], size: int = 5) -> Iterable[list[bytes]]:
    pending = iter(frames)
    while chunk := list(itertools.islice(pending, size)):
        yield chunk


async def endless_polls(prey: Prey, dice: random.Random) -> None:
    """Long polls until the end of time, on ledgers that nobody has, left in every way."""
    async with prey.connected() as wire:
        timeouts = (0, 1, -1, 2**31, 2**63 - 1, -(2**63))
        for timeout, previous in itertools.product(timeouts, (-1, 0, 2**62, 2**63 - 1)):
            poll = v3.encode_read(1, LEDGER, -1, previous_lac=previous, timeout_ms=timeout)
            await wire.send(poll * dice.choice((1, 50)))
        prey.judge("endless polls", await wire.taken(0.1))
        if dice.random() < 0.5:
            wire.reset()


async def slow_readers(prey: Prey, dice: random.Random) -> None:
    """Ask for much, take a few bytes of it, come again."""
    large = entry(LEDGER, 0, bytes(500_000))
    for _ in range(8):
        async with prey.connected() as wire:
            await wire.send(v3.encode_add(1, LEDGER, 0, KEY, large))
            await wire.send(b"".join(v3.encode_read(i, LEDGER, 0) for i in range(200)))
            for _ in range(dice.randrange(6)):
                async with asyncio.timeout(1):
                    await wire.reader.read(dice.choice((1, 7, 4096)))
                await asyncio.sleep(0.02)
            wire.reset()


async def guessed_ledgers(prey: Prey, dice: random.Random) -> None:
    """Ask for one ledger id after the other, by every request that does not make one."""
    first = dice.randrange(2**40)
    for at in range(first, first + 6000, 1500):
        ids = range(at, at + 500)
        async with prey.connected() as wire:
            asked = [v3.encode_read(1, i, 0) + v3.encode_read_lac(2, i) for i in ids]
            asked += [v3.encode_list_entries(3, i) + v3.encode_force(4, i) for i in ids]
            await wire.send(b"".join(asked))
            prey.judge("guessed ledgers", await wire.taken())


async def cut_requests(prey: Prey, dice: random.Random) -> None:
    """Requests that end at any byte: by an end, by a reset, by silence."""
    add = v3.encode_add(1, LEDGER, 1, KEY, entry(LEDGER, 1, bytes(300)))
    whole = add + v3.encode_read(2, LEDGER, 1) + v2.encode_reads(LEDGER, range(3))
    for _ in range(40):
        async with prey.connected() as wire:
            await wire.send(whole[: dice.randrange(len(whole))])
            how = dice.randrange(3)
            if how == 0:
                wire.reset()
            elif how == 1:
                wire.writer.write_eof()
                prey.judge("cut requests", await wire.taken())


async def two_protocols(prey: Prey, dice: random.Random) -> None:
    """v2 and v3 in one connection, in one chunk, and cut anywhere."""
    makers: Sequence[Callable[[], bytes]] = (
        lambda: v3.encode_read(1, LEDGER, 1),
        lambda: v3.encode_read_lac(2, LEDGER),
        lambda: v2.encode_reads(LEDGER, range(2)),
        lambda: v2.encode_auth("plugin", b"x"),
        lambda: v3.encode_start_tls(3),
        lambda: v2.encode_adds(KEY, 0, [entry(LEDGER, 2)])[0],
        lambda: v3.encode_add(4, LEDGER, 3, KEY, entry(LEDGER, 3)),
    )
    for _ in range(20):
        async with prey.connected() as wire:
            data = b"".join(dice.choice(makers)() for _ in range(12))
            at = dice.randrange(len(data))
            await wire.send(data[:at])
            await asyncio.sleep(0)
            await wire.send(data[at:])
            prey.judge("two protocols", await wire.taken(0.1))


# Who proves half of it, and TLS


async def half_proofs(prey: Prey, dice: random.Random) -> None:
    """Begin a proof and do anything but end it; or send again what somebody else proved by."""
    if not prey.is_gated:
        return
    plugin = ClientSharedSecret(prey.secret_file)
    proof: list[bytes] = []
    async with prey.connected() as wire:
        await wire.tls()
        session = plugin.session(Peer("bookie", True))
        payload: bytes | None = session.start()
        while payload is not None:
            proof.append(payload)
            answer = await wire.ask(v3.encode_auth(1, plugin.name, payload))
            payload = session.answer(answer.auth_payload or b"")
    if len(proof) < 2:
        prey.wrong.append("half proofs: nobody can log in")
        return
    first = plugin.session(Peer("bookie", True)).start()
    for steps in (
        proof, proof[::-1], proof * 3, [first], [first, first], [first, *proof[1:]],
        [first, b""], [b""] * 50, [bytes(1 << 20)], [first, bytes(1 << 20)], [first, proof[0]],
        [first, proof[1][:-1]], [first, proof[1] + b"x"], [first, b"\xff" * 200], [proof[1]],
    ):  # fmt: skip
        async with prey.connected() as wire:
            await wire.tls()
            for step in steps:
                await wire.send(v3.encode_auth(1, plugin.name, step))
                await wire.send(v3.encode_read(2, 0, 0) + v3.encode_read_lac(3, 0))
            prey.judge("half proofs", await wire.taken())


async def cut_records(prey: Prey, dice: random.Random) -> None:
    """TLS whose flights are cut at every byte, at the bookie and at the admin server."""
    for port in (prey.port, prey.admin_port):
        if not prey.is_gated:
            return
        for _ in range(12):
            async with prey.connected(port) as wire:
                if port == prey.port:
                    await wire.ask(v3.encode_start_tls(1))
                await _cut_handshake(wire, dice)


async def _cut_handshake(wire: Wire, dice: random.Random) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = wire.prey.context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    flights, cuts_in = 0, dice.randrange(4)
    while flights < 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            if flights < 2:
                tls.do_handshake()
            tls.write(v3.encode_read(1, 0, 0) if flights % 2 else b"GET / HTTP/1.1\r\n\r\n")
        flight = outgoing.read()
        if not flight:
            return
        if flights == cuts_in:
            at = dice.randrange(len(flight))
            await wire.send(flight[:at])
            how = dice.randrange(4)
            if how == 0:
                wire.reset()
            elif how == 1:
                wire.writer.write_eof()
            elif how == 2:  # garbage in the place of the rest, or the flight once more
                await wire.send(dice.choice((dice.randbytes(600), flight)))
            await wire.taken(0.05)
            return
        for i in range(0, len(flight), step := dice.choice((1, 7, 100_000))):
            await wire.send(flight[i : i + step])
        incoming.write(await wire.taken(0.05))
        flights += 1


ATTACKS: tuple[Attack, ...] = (
    odd_messages, extreme_numbers, endless_polls, slow_readers, guessed_ledgers, cut_requests,
    two_protocols, half_proofs, cut_records,
)  # fmt: skip
