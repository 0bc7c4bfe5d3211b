"""The attacks: what somebody sends who wants a bookie to fall, not what a client would send.

Each is told the ports of a bookie and sends until it is done or cancelled.  A ``stranger`` has no
password, where one is needed; a ``client`` may do everything; a ``reader`` may, and reads nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count

from quorumbook.env.machine import raise_descriptor_limit
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

KEY = master_key(b"passwd")
DIGESTER = digester(DigestType.CRC32C, b"passwd")
#: Ledgers that ``prepare`` writes: of many runs, of large entries, of small ones.
HOLES, LARGE, SMALL = 1, 2, 3
RUNS, LARGE_ENTRIES, LARGE_BYTES, SMALL_ENTRIES = 60_000, 48, 1_000_000, 2_000
FOR_EVER = 3_600_000
#: What attacker and bookie need, each, for all of the mixed attack.
_DESCRIPTORS = 20_000
#: More connections to its HTTP port than a bookie keeps.
_PAGES = 200
#: How long each part of the mixed attack lasts before it begins anew.
TURN_S = 15.0


@dataclass
class Target:
    """The bookie, and what was sent to it."""

    port: int
    http_port: int = 0
    scale: float = 1.0
    #: Attacks on unknown ledgers begin with this one.
    first_ledger_id: int = 1 << 20
    sent_bytes: int = 0
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def count(self, number: int) -> int:
        return max(1, int(number * self.scale))

    def crowd(self, number: int) -> int:
        """Return a number of connections: fewer where a process may have few of them."""
        return max(1, int(self.count(number) * min(1, raise_descriptor_limit() / _DESCRIPTORS)))

    def unknown_ledgers(self, number: int) -> range:
        return range(self.first_ledger_id, self.first_ledger_id + self.count(number))

    async def connect(self, *, port: int = 0, reads: bool = False, source: int = 0) -> Victim:
        """Open a connection; what reads nothing has a small window in the system as well.

        Args:
            port: Where; the bookie's if 0.
            reads: Take what comes, and throw it away.
            source: From which of this machine's own addresses.
        """
        one = socket.socket()
        if source:
            one.bind((f"127.0.1.{source}", 0))
        if not reads:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setblocking(False)
        self.stack.callback(one.close)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(one, ("127.0.0.1", port or self.port))
        if reads:
            self.stack.push_async_callback(cancel_and_wait, [loop.create_task(_drain(one))])
        return Victim(self, one)


class Victim:
    """One connection to the bookie."""

    def __init__(self, target: Target, one: socket.socket) -> None:
        self._target = target
        self._socket = one

    async def send(self, data: bytes) -> None:
        """Send; a bookie that has cut the connection is no error."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
            self._target.sent_bytes += len(data)

    def reset_on_close(self) -> None:
        """Have the other side told that the connection is broken, not that it is over."""
        linger = struct.pack("ii", 1, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def close(self) -> None:
        self._socket.close()


async def _drain(one: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while await loop.sock_recv(one, 1 << 18):
            pass


def add(ledger_id: int, entry_id: int, payload: bytes = b"x") -> bytes:
    body = DIGESTER.seal(ledger_id, entry_id, -1, len(payload), payload)
    return b"".join(v2.encode_adds(KEY, 0, [body]))


async def prepare(target: Target) -> None:
    """Write what the attacks ask for, and wait for the answers."""
    one = await target.connect(reads=False)
    # An attacker has the bare socket.
    one._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    frames = [add(HOLES, 2 * index) for index in range(RUNS)]
    frames += [add(LARGE, index, bytes(LARGE_BYTES)) for index in range(LARGE_ENTRIES)]
    frames += [add(SMALL, index, bytes(1000)) for index in range(SMALL_ENTRIES)]
    loop = asyncio.get_running_loop()
    sending = loop.create_task(one.send(b"".join(frames)))
    missing = len(frames) * 28
    while missing > 0:
        # An attacker has the bare socket.
        missing -= len(await loop.sock_recv(one._socket, 1 << 18))
    await sending
    one.close()
    target.sent_bytes = 0


async def idle(target: Target) -> None:
    for index in range(target.crowd(10_000)):
        await target.connect(source=1 + index % 100)


async def crowd(target: Target) -> None:
    """As many as ``idle`` has, each of which has asked something once."""
    for index in range(target.crowd(10_000)):
        one = await target.connect(source=1 + index % 100)
        await one.send(v3.encode_bookie_info(1))


async def leaving(target: Target) -> None:
    """As many, which all end in one instant, again and again; every other one by a reset."""
    for turn in count():
        many = [
            await target.connect(source=1 + index % 100) for index in range(target.crowd(10_000))
        ]
        for index, one in enumerate(many):
            await one.send(v3.encode_bookie_info(1))
            if (turn + index) % 2:
                one.reset_on_close()
        await asyncio.sleep(0.5)
        for one in many:
            one.close()
        await asyncio.sleep(0.5)


async def garbage(target: Target) -> None:
    """Requests that are refused, one behind the other, by somebody without a password."""
    data = b"".join(v3.encode_list_entries(index, HOLES) for index in range(10_000))
    many = [await target.connect(reads=True) for _ in range(target.count(20))]
    await asyncio.gather(*[one.send(data) for one in many for _ in range(3)])


async def handshakes(target: Target) -> None:
    """START_TLS or AUTH, and then half of what has to follow, again and again."""
    begun = v3.encode_auth(1, "shared-secret", bytes(60_000))
    for _ in range(target.crowd(4000)):
        one = await target.connect()
        await one.send(v3.encode_start_tls(0) + begun[:-1])


async def hellos(target: Target) -> None:
    """START_TLS, the first message of TLS, and nothing of what the bookie's answer asks for."""
    context = ssl.create_default_context()
    loop = asyncio.get_running_loop()
    for _ in range(target.crowd(4000)):
        one = await target.connect()
        await one.send(v3.encode_start_tls(0))
        begun = ssl.MemoryBIO()
        tls = context.wrap_bio(ssl.MemoryBIO(), begun, server_hostname="bookie")
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        with contextlib.suppress(OSError):
            await loop.sock_recv(one._socket, 100)  # an attacker has the bare socket
            await one.send(begun.read())


async def lists(target: Target) -> None:
    for _ in range(target.count(10)):
        one = await target.connect()
        await one.send(b"".join(v3.encode_list_entries(index, HOLES) for index in range(300)))


async def read_lac(target: Target) -> None:
    for _ in range(target.count(4)):
        one = await target.connect()
        await one.send(b"".join(v3.encode_read_lac(index, LARGE) for index in range(1200)))


async def lac_packets(target: Target) -> None:
    many = [await target.connect(reads=True) for _ in range(target.count(4))]
    for ledger_id in target.unknown_ledgers(40_000):
        packet = bytes(8) + (5).to_bytes(8, "big") + bytes(1000)
        one = many[ledger_id % len(many)]
        await one.send(v3.encode_write_lac(ledger_id, ledger_id, 5, KEY, packet))


async def silent_batches(target: Target) -> None:
    for index in range(target.count(100)):
        one = await target.connect()
        batches = [
            v2.encode_batch_read(LARGE, (index + first) % LARGE_ENTRIES, first, 0, 0)
            for first in range(8)
        ]
        await one.send(b"".join(batches))


async def silent_reads(target: Target) -> None:
    """Small entries first, so that the bookie expects small ones; then large ones."""
    small = b"".join(v2.encode_read(SMALL, entry_id) for entry_id in range(20))
    large = [v2.encode_read(LARGE, (7 * index) % LARGE_ENTRIES) for index in range(500)]
    for _ in range(target.count(20)):
        one = await target.connect()
        await one.send(small)
        await asyncio.sleep(0.01)
        await one.send(b"".join(large))


async def dripping_readers(target: Target) -> None:
    """Readers that take a few bytes now and then, so that they are never seen to stand still."""
    many = []
    for _ in range(target.count(100)):
        one = await target.connect()
        batches = [v2.encode_batch_read(LARGE, first, first, 0, 0) for first in range(8)]
        await one.send(b"".join(batches))
        many.append(one)
    while True:
        await asyncio.sleep(0.5)
        for one in many:
            with contextlib.suppress(OSError):
                one._socket.recv(100)  # an attacker has the bare socket


async def partial_frames(target: Target) -> None:
    """A full chunk and five bytes of the next frame, on many connections."""
    info = v3.encode_bookie_info(1)
    data = info * (250_000 // len(info)) + add(9, 0, bytes(5000))[:5]
    for _ in range(target.count(300)):
        one = await target.connect(reads=True)
        await one.send(data)


async def drops(target: Target) -> None:
    """A frame of 5 MB, byte by byte."""
    head = add(9, 0, bytes(4_900_000))[:100]
    many = [await target.connect() for _ in range(target.count(40))]
    for one in many:
        # An attacker has the bare socket.
        one._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await one.send(head)
    while True:
        for one in many:
            await one.send(b"\0")
        await asyncio.sleep(0)


async def half_frames(target: Target) -> None:
    """Most of a frame of 5 MB, on many connections."""
    data = add(9, 0, bytes(4_900_000))[:-1]
    many = [await target.connect() for _ in range(target.count(150))]
    await asyncio.gather(*[one.send(data) for one in many])


async def large_adds(target: Target) -> None:
    """Frames of 5 MB at once, on many connections, none of which reads its answers."""
    data = add(9, 0, bytes(4_900_000))
    many = [await target.connect() for _ in range(target.count(120))]
    await asyncio.gather(*[one.send(data * 2) for one in many])


async def fences(target: Target) -> None:
    many = [await target.connect(reads=True) for _ in range(4)]
    for ledger_id in target.unknown_ledgers(200_000)[::100]:
        reads = [
            v2.encode_read(one, 0, master_key=KEY) for one in range(ledger_id, ledger_id + 100)
        ]
        await many[ledger_id // 100 % 4].send(b"".join(reads))


async def handles(target: Target) -> None:
    """One small add to each of very many ledgers."""
    many = [await target.connect(reads=True) for _ in range(4)]
    for ledger_id in target.unknown_ledgers(200_000)[::100]:
        adds = [add(one, 0) for one in range(ledger_id, ledger_id + 100)]
        await many[ledger_id // 100 % 4].send(b"".join(adds))


async def long_polls(target: Target) -> None:
    """Readers that wait for ever, and an add that wakes nobody, again and again."""
    writer = await target.connect(reads=True)
    for start in range(0, target.count(50_000), 5_000):
        one = await target.connect(reads=True)
        polls = [
            v3.encode_read(index, SMALL, previous_lac=1 << 40, timeout_ms=FOR_EVER)
            for index in range(start, start + 5_000)
        ]
        await one.send(b"".join(polls))
    await _wake(writer)


async def woken_polls(target: Target) -> None:
    """Readers that all wait for the next rise of the last add confirmed."""
    writer = await target.connect(reads=True)
    many = [await target.connect(reads=True) for _ in range(10)]
    lac = 0
    while True:
        polls = b"".join(
            v3.encode_read(index, SMALL, previous_lac=lac, timeout_ms=2000, is_piggyback=True)
            for index in range(target.count(5_000))
        )
        await asyncio.gather(*[one.send(polls) for one in many])
        await asyncio.sleep(1)
        lac += 1
        await writer.send(_add_with_lac(SMALL_ENTRIES + lac, lac))
        await asyncio.sleep(1)


def _add_with_lac(entry_id: int, lac: int) -> bytes:
    body = DIGESTER.seal(SMALL, entry_id, lac, 1, b"x")
    return b"".join(v2.encode_adds(KEY, 0, [body]))


async def _wake(writer: Victim) -> None:
    lac = 0
    while True:
        lac += 1
        await writer.send(_add_with_lac(SMALL_ENTRIES + lac, lac))
        await asyncio.sleep(0.01)


async def small_requests(target: Target) -> None:
    """Chunks full of the smallest requests of each kind."""
    kinds = [
        v3.encode_bookie_info(1), v3.encode_force(1, 1), v3.encode_read_lac(1, 77),
        v3.encode_list_entries(1, 77), v3.encode_start_tls(1), v2.encode_read(77, 7),
        v3.encode_read(1, 77, 3),
    ]  # fmt: skip
    many = [await target.connect(reads=True) for _ in range(target.count(len(kinds)))]
    while True:
        await asyncio.gather(
            *[one.send(kind * 5000) for one, kind in zip(many, kinds, strict=False)]
        )


async def http(target: Target) -> None:
    """Heads that never end, and pages that nobody reads."""
    many: deque[Victim] = deque()
    while target.http_port:
        for data in (b"X: " + b"a" * 4000, b"\r\n"):
            many.append(await target.connect(port=target.http_port))
            await many[-1].send(b"GET /metrics HTTP/1.1\r\n" + data)
        while len(many) > _PAGES:
            many.popleft().close()


async def mixed(target: Target) -> None:
    """All that a client can do, at once, again and again, amid a crowd of idle connections."""
    parts = [
        lists, read_lac, silent_batches, silent_reads, dripping_readers, partial_frames,
        half_frames, drops, large_adds, long_polls, woken_polls, fences, handles, small_requests,
        lac_packets, handshakes, idle, http,
    ]  # fmt: skip
    await crowd(target)
    await asyncio.gather(*[_again_and_again(part, target) for part in parts])


async def _again_and_again(part: Callable[[Target], Awaitable[None]], target: Target) -> None:
    """Carry a part out at a quarter of its size, drop its connections, and begin anew."""
    for turn in count():
        async with contextlib.AsyncExitStack() as stack:
            one = replace(
                target, scale=target.scale / 4, stack=stack, sent_bytes=0,
                first_ledger_id=target.first_ledger_id + turn * 50_000,
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await part(one)
                    await asyncio.sleep(TURN_S)
        target.sent_bytes += one.sent_bytes


@dataclass
class Attack:
    """An attack, and by whom."""

    by: str
    what: str
    run: Callable[[Target], Awaitable[None]]
    #: On a bookie with TLS.
    is_tls: bool = False


ATTACKS = {
    "idle": Attack("stranger", "10,000 connections that ask nothing", idle),
    "leaving": Attack("client", "10,000 connections that end at once, again and again", leaving),
    "handshakes": Attack("stranger", "4,000 proofs of 60 KB but their last byte", handshakes),
    "hellos": Attack("stranger", "4,000 handshakes of TLS that stop half way", hellos, is_tls=True),
    "refused": Attack("stranger", "600,000 requests without a password", garbage),
    "drops": Attack("client", "frames byte by byte", drops),
    "small": Attack("client", "the smallest requests, as fast as they go", small_requests),
    "lists": Attack("reader", "3,000 lists of a ledger of 60,000 runs", lists),
    "read-lac": Attack("reader", "4,800 READ_LAC of a ledger of large entries", read_lac),
    "batches": Attack("reader", "800 batch reads on 100 connections", silent_batches),
    "reads": Attack("reader", "10,000 reads of large entries after small ones", silent_reads),
    "dripping": Attack("reader", "100 readers of a few bytes a second", dripping_readers),
    "partial": Attack("client", "300 full chunks, and five bytes more", partial_frames),
    "half-frames": Attack("client", "150 frames of 5 MB but their last byte", half_frames),
    "large-adds": Attack("reader", "240 adds of 5 MB on 120 connections", large_adds),
    "lac-packets": Attack("client", "40,000 last adds confirmed of unknown ledgers", lac_packets),
    "fences": Attack("client", "200,000 fences of unknown ledgers", fences),
    "handles": Attack("client", "adds to 200,000 ledgers", handles),
    "polls": Attack("client", "50,000 long polls that nothing ends", long_polls),
    "woken-polls": Attack("client", "50,000 long polls ended by one add", woken_polls),
    "http": Attack("stranger", "HTTP heads without an end, pages unread", http),
    "mixed": Attack(
        "client",
        "all of a client's at a quarter of the size, again and again, amid 10,000 connections",
        mixed,
    ),
}
