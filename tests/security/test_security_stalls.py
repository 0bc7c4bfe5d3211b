"""A watchdog over all kinds of requests and all pages: none of them holds a bookie's loop up.

What is looked at is the processor time of the loop's thread between two looks at the clock, which
is no less than what a turn took.  A machine that does something else meanwhile can make it longer,
so only a stall that comes three times in a row is the request's.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from quorumbook.cli import call
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from security.fuzz.frames import Frames
from security.limits.attacks import HOLES, LARGE, LARGE_ENTRIES, SMALL, Target, add, prepare
from security.limits.measure import Watched
from security.limits.watched import watch

SEED = random.SystemRandom().getrandbits(32)
STALL_S_MAX = 0.020
TRIES = 3
FRAMES, CONNECTIONS = 600, 3
PATIENCE_S = 60.0
#: Every other id, so that they are no range; and how often each page is asked for at once.
LEDGERS = range(10_000, 20_000, 2)
ASKED_AT_ONCE = 60
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


BOOKIE = "/api/v1/bookie"
PAGES = (
    "/heartbeat", "/is_ready", "/metrics", "/nowhere", f"{BOOKIE}/gc", f"{BOOKIE}/gc_details",
    f"{BOOKIE}/gc_plan?minor=true&major=true", f"{BOOKIE}/gc_logs", f"{BOOKIE}/gc_hold",
    f"{BOOKIE}/scrub", f"{BOOKIE}/state/readonly", f"{BOOKIE}/directories", f"{BOOKIE}/slow",
    f"{BOOKIE}/info", f"{BOOKIE}/state", f"{BOOKIE}/last_log_mark", f"{BOOKIE}/list_disk_file",
    f"{BOOKIE}/storage", f"{BOOKIE}/options", f"{BOOKIE}/is_ready",
    "/api/v1/background_io",
)  # fmt: skip


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
        found = {
            kind: await stall_of(watched, partial(ask_much, watched.port, make))
            for kind, make in KINDS.items()
        }
        assert {kind: s for kind, s in found.items() if s > STALL_S_MAX} == {}
        assert watched.process.poll() is None


async def ask_much(port: int, make: Callable[[], bytes]) -> None:
    await asyncio.gather(*[ask(port, chunk) for chunk in [make() for _ in range(CONNECTIONS)]])


async def test_no_page_holds_the_loop_up(tmp_path: Path) -> None:
    """They show thousands of ledgers, all of which the operator is asked about."""
    settings = {"storage.flush_interval_s": 1, "gc.confirm_interval_s": 0}
    watched = Watched(tmp_path, is_guarded=False, settings=settings)
    async with watched.running():
        await prepare(Target(watched.port))
        await write_ledgers(watched.port)
        await until_all_are_shown(watched.http_port)
        _, told = await page(watched.http_port, "/nowhere")
        roots = re.findall(r"(?<!PUT )(?<=\s)/[^\s,]+", told.decode())
        assert len(roots) > 10
        assert [root for root in roots if not any(each.startswith(root) for each in PAGES)] == []
        found = {
            path: await stall_of(watched, partial(ask_together, watched.http_port, path))
            for path in PAGES
        }
        assert {path: s for path, s in found.items() if s > STALL_S_MAX} == {}
        assert watched.process.poll() is None


async def write_ledgers(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sending = asyncio.create_task(_send(writer, b"".join(add(each, 0) for each in LEDGERS)))
    await reader.readexactly(28 * len(LEDGERS))
    await sending
    writer.transport.abort()


async def until_all_are_shown(port: int) -> None:
    """Wait until the index has them, and a pass has found that the cluster knows none of them."""
    async with asyncio.timeout(PATIENCE_S):
        held = stored = 0
        while min(held, stored) < len(LEDGERS):
            # A pass before that would find few of them, and delete these unasked.
            if stored >= len(LEDGERS):
                await page(port, f"{BOOKIE}/gc", "PUT")
            await asyncio.sleep(0.5)
            _, logs = await page(port, f"{BOOKIE}/gc_logs")
            stored = sum(row["ledgers"] for row in json.loads(logs))
            _, hold = await page(port, f"{BOOKIE}/gc_hold")
            held = json.loads(hold)["held_ledgers"]


async def ask_together(port: int, path: str) -> None:
    """Ask for a page many times; some may be told to ask later."""
    answers = await asyncio.gather(*[page(port, path) for _ in range(ASKED_AT_ONCE)])
    found = {status for status, _ in answers}
    assert found <= ({404} if path == "/nowhere" else {200, 503}), path
    assert found != {503}, path


async def page(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Return status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.transport.abort()
    return int(head.split()[1]), body


async def stall_of(watched: Watched, send: Callable[[], Awaitable[None]]) -> float:
    """Return the longest stall that something brings about, each time it is sent."""
    least = float("inf")
    for _ in range(TRIES):
        watched.forget()
        async with asyncio.timeout(PATIENCE_S):
            await send()
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
