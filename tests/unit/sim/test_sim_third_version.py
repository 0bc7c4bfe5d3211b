"""What a client says in v2 arrives in v3, and what the bookie answers comes back in v2."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumbook.protocol.answers import add_answers, error_answer, read_answer
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import AddRun, Read, Request
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.sim.actors.third_version import Interpreter

KEY = master_key(b"secret")
SEAL = digester(DigestType.CRC32C, b"secret").seal


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.heard: list[Any] = []
        self._decoder = v2.AnswerDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += self._decoder.feed(data)


class Wire:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 7


class Line:
    """A client, who is interpreted, and what arrives at the bookie."""

    def __init__(self) -> None:
        self.client, self.wire = Client(), Wire()
        self.between = Interpreter(self.client)
        self.between.connection_made(self.wire)  # type: ignore[arg-type]

    def asked(self, data: bytes) -> list[Request]:
        self.client.transport.write(data)
        written, self.wire.written = self.wire.written, b""
        return RequestDecoder().feed(written)


def adds(*ids: int) -> bytes:
    return b"".join(v2.encode_adds(KEY, v2.RECOVERY_ADD, [SEAL(5, i, -1, 1, b"x") for i in ids]))


def test_adds_are_said_one_by_one_and_answered_one_by_one() -> None:
    line = Line()
    (run,) = line.asked(adds(3, 4))
    assert isinstance(run, AddRun)
    assert (run.version, run.is_recovery, list(run.run.entry_ids())) == (3, True, [3, 4])
    line.between.data_received(add_answers(run, Status.FENCED))
    told = [(each.first_entry_id, each.last_entry_id, each.code) for each in line.client.heard]
    assert told == [(3, 4, V2_CODE[Status.FENCED])]


def test_reads_are_answered_with_the_entry_or_why_there_is_none() -> None:
    line = Line()
    entry = SEAL(5, 3, -1, 1, b"x")
    found, missing = line.asked(v2.encode_read(5, 3) + v2.encode_read(5, 9))
    assert isinstance(found, Read)
    assert isinstance(missing, Read)
    assert (found.version, missing.entry_id) == (3, 9)
    line.between.data_received(error_answer(missing, Status.NO_ENTRY))
    line.between.data_received(read_answer(found, Status.OK, entry))
    assert [(each.entry_id, bytes(each.entry)) for each in line.client.heard] == [
        (9, b""),
        (3, entry),
    ]


def test_the_first_entry_is_an_answer_to_a_batch() -> None:
    line = Line()
    entry = SEAL(5, 3, -1, 1, b"x")
    (read,) = line.asked(v2.encode_batch_read(5, 3, 77, 10, 1000))
    assert isinstance(read, Read)
    line.between.data_received(read_answer(read, Status.OK, entry))
    (answer,) = line.client.heard
    assert (answer.request_id, answer.first_entry_id) == (77, 3)
    assert entry in bytes(answer.data)


def test_who_speaks_v3_is_left_alone() -> None:
    line = Line()
    said = v3.encode_read_lac(9, 5)
    line.client.transport.write(said)
    assert line.wire.written == said
    assert line.client.transport.get_write_buffer_size() == 7
