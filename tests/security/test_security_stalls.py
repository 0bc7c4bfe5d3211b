"""A watchdog over all kinds of requests: none of them holds a bookie's loop up.

What is looked at is the processor time of the loop's thread between two looks at the clock, which
is no less than what a turn took.  A machine that does something else meanwhile can make it longer,
so only a stall that comes three times in a row is the request's.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from quorumbook.cli import call
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from security.fuzz.frames import Frames
from security.limits.attacks import HOLES, LARGE, LARGE_ENTRIES, SMALL, Target, prepare
from security.limits.measure import Watched
from security.limits.watched import watch

SEED = random.SystemRandom().getrandbits(32)
STALL_S_MAX = 0.020
TRIES = 3
FRAMES, CONNECTIONS = 600, 3
PATIENCE_S = 60.0
#: A number that nothing else in an answer is, as it stands in answers of v2 and of v3.
LAST = 0x5A3C_1E0F_7B6D_4923
LAST_BYTES = (
    LAST.to_bytes(8, "big"),
    bytes((LAST >> 7 * n & 0x7F) | (0x80 if n < 8 else 0) for n in range(9)),
)

FRAMES_OF = Frames(random.Random(SEED), range(1 << 30, (1 << 30) + 500), range(LARGE, SMALL + 1))
#: What the grammar has, with any number; and what makes the most of a ledger, so many of each.
GRAMMAR: dict[str, Callable[[], bytes]] = {
    name: getattr(FRAMES_OF, name) for name in vars(Frames) if name.startswith(("v2_", "v3_"))
}
LARGEST: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "lists of many runs": (3, lambda n: v3.encode_list_entries(n, HOLES)),
    "last adds confirmed of large entries": (20, lambda n: v3.encode_read_lac(n, LARGE)),
    "batches of large entries": (20, lambda n: v2.encode_batch_read(LARGE, n % 20, n, 0, 0)),
    "reads of large entries": (LARGE_ENTRIES, lambda n: v2.encode_read(LARGE, n)),
    "long polls": (
        FRAMES, lambda n: v3.encode_read(n, SMALL, previous_lac=1 << 40, timeout_ms=10),
    ),
}  # fmt: skip


def grammar_chunk(make: Callable[[], bytes]) -> bytes:
    """Return many requests of a kind, and one behind them whose answer is known."""
    frames = [make() for _ in range(FRAMES)]
    is_v3 = frames[0][4] == 0x0A  # where a message of v3 has its header
    return b"".join([*frames, v3.encode_bookie_info(LAST) if is_v3 else v2.encode_read(LAST, 0)])


def largest_chunk(count: int, make: Callable[[int], bytes]) -> bytes:
    """Return some requests, the last of which has an answer that is known."""
    return b"".join(map(make, [*range(count), LAST]))


KINDS: dict[str, Callable[[], bytes]] = {
    **{kind: partial(grammar_chunk, make) for kind, make in GRAMMAR.items()},
    **{kind: partial(largest_chunk, *each) for kind, each in LARGEST.items()},
}


async def ask(port: int, data: bytes) -> None:
    """Send it, and read until what was asked last is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(_send(writer, data))
    tail = b""
    while not any(each in tail for each in LAST_BYTES):
        piece = await reader.read(1 << 18)
        assert piece, "the bookie has cut the connection"
        tail = tail[-8:] + piece
    await sending
    writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_no_request_of_any_kind_holds_the_loop_up(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    watched = Watched(tmp_path, is_guarded=False)
    async with watched.running():
        await prepare(Target(watched.port))
        found = {kind: await stall_of(watched, make) for kind, make in KINDS.items()}
        assert {kind: s for kind, s in found.items() if s > STALL_S_MAX} == {}
        assert watched.process.poll() is None


async def stall_of(watched: Watched, make: Callable[[], bytes]) -> float:
    """Return the longest stall that a kind of request brings about, each time it is sent."""
    least = float("inf")
    for _ in range(TRIES):
        chunks = [make() for _ in range(CONNECTIONS)]
        watched.forget()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*[ask(watched.port, chunk) for chunk in chunks])
        least = min(least, watched.stalls()[0])
        if least <= STALL_S_MAX:
            break
    return least


def test_the_watchdog_sees_a_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LAST_BYTES[1] in v3.encode_bookie_info(LAST)
    longest = tmp_path / "longest"
    longest.write_bytes(bytes(16))
    monkeypatch.setattr(call, "_loop_factory", lambda: asyncio.new_event_loop)
    watch(str(longest))

    async def work() -> None:
        await asyncio.sleep(0.02)
        until = time.thread_time() + 2 * STALL_S_MAX
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.02)

    # The loop that commands run on.
    with asyncio.Runner(loop_factory=call._loop_factory()) as runner:
        runner.run(work())
    assert struct.unpack("dd", longest.read_bytes())[0] >= 2 * STALL_S_MAX
