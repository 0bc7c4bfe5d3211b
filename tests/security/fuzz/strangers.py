"""Plays conversations against a bookie, many at a time, and judges its answers; its own process.

    python -m security.fuzz.strangers '{"port": 3181, "seed": 1, ...}'

It goes on until its standard input closes or it has sent enough, and prints what it saw as JSON.
A violation is an answer that is no frame, and one of a bookie that demands TLS and authentication
which says anything but no to a stranger; the number of its conversation comes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from quorumbook.auth.plugins import Peer
from quorumbook.auth.shared_secret import ClientSharedSecret
from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol.requests import Operation
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from security.fuzz.conversations import Conversation, Step, conversation

AT_ONCE = 64
#: Nothing that is asked here takes as long; then the connection is left.
PATIENCE_S = 10.0
_MOMENT_S, _MOMENTS_MAX = 0.3, 20
#: What may come before anything is proven.
_OPEN_TO_ALL = (Operation.AUTH, Operation.START_TLS)
#: They tell of the request and nothing of what is stored.
_REFUSALS = (Status.UNAUTHORIZED, Status.BAD_VERSION, Status.BAD_REQUEST)
_LENGTH_MAX = 6 << 20


@dataclass(frozen=True)
class Orders:
    """What a run of strangers is told.

    Attributes:
        port: The bookie's, on loopback.
        seed: Of the run.
        first: The number of the first conversation.
        frames: How many to send in all.
        ca_file: Whose certificates to trust; with it the bookie demands TLS and authentication.
        secret_file: What those who log in know.
    """

    port: int
    seed: int
    first: int
    frames: int
    ca_file: str = ""
    secret_file: str = ""

    @property
    def is_gated(self) -> bool:
        """Whether the bookie demands TLS and authentication."""
        return bool(self.ca_file)


def what_is_wrong(answer: bytes, *, is_stranger_at_gate: bool) -> str:
    """Judge a frame that a bookie sent, its length included; "" if it is in order."""
    name, is_refused = "", False
    if answer[4:5] == b"\x0a":
        # Or it is the answer to a v2 request that said version 10.
        with contextlib.suppress(RemoteProtocolError):
            (response,) = v3.ResponseDecoder().feed(answer)
            name = response.operation.name
            is_refused = response.status in _REFUSALS
            if response.operation in _OPEN_TO_ALL:
                return ""
    if not name:
        if len(answer) < 8:
            return "too short for an answer"
        _, opcode, _ = v2.split_packet_header(int.from_bytes(answer[4:8], "big"))
        if opcode == v2.AUTH:
            return ""
        if opcode not in (v2.ADD, v2.READ, v2.BATCH_READ) or len(answer) < v2.ANSWER.size:
            return f"neither a v3 answer nor one of v2: {answer[:40].hex()}"
        code = int.from_bytes(answer[8:12], "big")
        is_refused = code in [V2_CODE[status] for status in _REFUSALS]
        name = f"v2 operation {opcode}"
    return f"{name} was not refused" if is_stranger_at_gate and not is_refused else ""


class Line:
    """One connection of a stranger."""

    def __init__(self, orders: Orders, talk: Conversation, seen: Seen, number: int) -> None:
        self._orders, self._talk, self._seen, self._number = orders, talk, seen, number
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._taking: asyncio.Task[None] | None = None
        self._answers = 0

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect for the length of a block."""
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._orders.port, limit=1 << 20
        )
        try:
            yield
        finally:
            if self._taking is not None:
                self._taking.cancel()
            self._writer.transport.abort()

    async def play(self) -> None:
        """Connect, do each step, and leave."""
        async with self.opened():
            for step in self._talk.steps:
                await self.do(step)
            if self._taking is not None:
                await self._leave()

    async def _leave(self) -> None:
        """Take what still comes, until that is all or nothing does for a moment."""
        assert self._taking is not None
        for _ in range(_MOMENTS_MAX):
            before = self._answers
            if before < self._talk.frames:
                await asyncio.wait([self._taking], timeout=_MOMENT_S)
            is_all = self._answers >= self._talk.frames
            if self._taking.done() or is_all or self._answers == before:
                return

    async def do(self, step: Step) -> None:
        """Do one step of the conversation."""
        if step.do == "cut":
            self._writer.transport.abort()
        elif step.do == "tls":
            answer = await self.ask(v3.encode_start_tls(1))
            assert answer.status is Status.OK
            context = ssl.create_default_context(cafile=self._orders.ca_file)
            await self._writer.start_tls(context, server_hostname="127.0.0.1")
        elif step.do == "log in":
            plugin = ClientSharedSecret(self._orders.secret_file)
            session = plugin.session(Peer("bookie", True))
            payload: bytes | None = session.start()
            while payload is not None:
                answer = await self.ask(v3.encode_auth(1, plugin.name, payload))
                assert answer.status is Status.OK
                payload = session.answer(answer.auth_payload or b"")
        elif step.do == "wait":
            await asyncio.sleep(step.seconds)
        else:
            if self._talk.is_reading and self._taking is None:
                self._taking = asyncio.create_task(self._take())
            pieces = [step.data]
            if step.do == "trickle":
                pieces = [step.data[i : i + 1] for i in range(min(len(step.data), 30))]
            self._seen.frames[self._talk.kind] += step.frames
            for piece in pieces:
                self._writer.write(piece)
                async with asyncio.timeout(PATIENCE_S if self._talk.is_reading else 0.5):
                    await self._writer.drain()

    async def ask(self, request: bytes) -> v3.V3Response:
        """Send a request of v3 and wait for its answer."""
        self._writer.write(request)
        head = await self._reader.readexactly(4)
        body = await self._reader.readexactly(int.from_bytes(head, "big"))
        return v3.ResponseDecoder().feed(head + body)[0]

    async def _take(self) -> None:
        """Read what the bookie answers, and judge it."""
        is_stranger = self._orders.is_gated and not self._talk.is_inside
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(4)
                if head[:3] == b"\x16\x03\x03" or head[:2] == b"\x15\x03":
                    return  # the bookie's side of a handshake that goes wrong
                length = int.from_bytes(head, "big")
                wrong = "" if length <= _LENGTH_MAX else f"a frame of {length} bytes"
                if not wrong:
                    answer = head + await self._reader.readexactly(length)
                    wrong = what_is_wrong(answer, is_stranger_at_gate=is_stranger)
                if wrong:
                    self._seen.violations.append(f"conversation {self._number}: {wrong}")
                    return
                self._answers += 1
                self._seen.answers[self._talk.kind] += 1


class Seen:
    """What came of it."""

    def __init__(self) -> None:
        self.frames: Counter[str] = Counter()
        self.conversations: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.next = 0
        self.violations: list[str] = []

    def record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return vars(self)


async def play(orders: Orders, ended: asyncio.Event) -> Seen:
    """Play conversations until enough frames are sent or it is ended."""
    seen = Seen()
    seen.next = orders.first

    async def worker() -> None:
        while not ended.is_set() and seen.frames.total() < orders.frames:
            number = seen.next
            seen.next += 1
            talk = conversation(orders.seed, number, is_gated=orders.is_gated)
            seen.conversations[talk.kind] += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await Line(orders, talk, seen, number).play()
                seen.ends["to its end"] += 1
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                # Being cut off is what strangers have to expect.
                seen.ends[type(error).__name__] += 1
                if isinstance(error, ConnectionRefusedError):
                    await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return seen


async def _main(orders: Orders) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    seen = await play(orders, ended)
    print(json.dumps(seen.record()), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(Orders(**json.loads(sys.argv[1]))))
