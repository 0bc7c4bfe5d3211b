"""A client that speaks v3 where ours speaks v2, as those of Apache BookKeeper do by themselves.

    client  --v2-->  interpreter  --v3-->  network  -->  bookie

It stands in the client's process, and knows nothing of what is asked but how it is said: each add
of a run is a request of its own, and each read of a row; of a batch the first entry is read, which
is an answer too.  A connection that begins with v3 is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

from quorumbook.errors import RemoteProtocolError
from quorumbook.ids import EntryId
from quorumbook.protocol.answers import batch_read_answer, read_answer
from quorumbook.protocol.frames import LENGTH_SIZE_BYTES, frame
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import AddRun, BatchRead, Read, ReadRun, Request
from quorumbook.protocol.status import V2_CODE
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

_FIRST_BYTE_OF_V3 = 0x0A
#: Makes the v2 answer out of the v3 one.
_Said: TypeAlias = Callable[[v3.V3Response], bytes]


class Interpreter(asyncio.Protocol):
    """One connection.

    Args:
        client: Speaks v2.
    """

    def __init__(self, client: asyncio.Protocol) -> None:
        self._client = client
        self._network: Any = None
        self._requests = RequestDecoder()
        self._responses = v3.ResponseDecoder()
        self._transactions = count(1)
        #: Whether the client speaks v3 itself; None before it has said anything.
        self._is_idle: bool | None = None
        self._asked: dict[int, _Said] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the client a transport that speaks v2."""
        self._network = transport
        self._client.connection_made(_Spoken(self, transport))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._client.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._client.resume_writing()

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return self._client.eof_received()

    def data_received(self, data: bytes) -> None:
        """Say what the bookie says in v2."""
        if self._is_idle:
            self._client.data_received(data)
            return
        said = [self._asked.pop(each.txn_id)(each) for each in self._responses.feed(data)]
        if said:
            self._client.data_received(b"".join(said))

    def says(self, data: bytes) -> None:
        """Say what the client says in v3."""
        if self._is_idle is None:
            self._is_idle = data[LENGTH_SIZE_BYTES] == _FIRST_BYTE_OF_V3
        if self._is_idle:
            self._network.write(data)
            return
        requests = self._requests.feed(data)
        while self._requests.is_behind:
            requests += self._requests.feed(b"")
        frames = [each for request in requests for each in self._in_v3(request)]
        if frames:
            self._network.write(b"".join(frames))

    def _in_v3(self, request: Request) -> Iterator[bytes]:
        match request:
            case AddRun():
                for entry_id, entry in request.run.entries():
                    yield self._add(request, entry_id, entry)
            case ReadRun():
                yield from map(self._read, request.reads())
            case Read():
                yield self._read(request)
            case BatchRead():
                yield self._first_of(request)
            case _:
                raise RemoteProtocolError(f"{type(request).__name__} is not said in v3 here")

    def _transaction(self, answer: _Said) -> int:
        number = next(self._transactions)
        self._asked[number] = answer
        return number

    def _add(self, request: AddRun, entry_id: EntryId, entry: bytes) -> bytes:
        ledger_id = request.run.ledger_id

        def answer(said: v3.V3Response) -> bytes:
            return v2.encode_add_answers(ledger_id, [entry_id], V2_CODE[said.status])

        return v3.encode_add(
            self._transaction(answer), ledger_id, entry_id, request.master_key, entry,
            is_recovery=request.is_recovery, is_high_priority=request.is_high_priority,
        )  # fmt: skip

    def _read(self, request: Read) -> bytes:
        def answer(said: v3.V3Response) -> bytes:
            return read_answer(request, said.status, said.body)

        return self._ask(request, request.entry_id, answer)

    def _first_of(self, request: BatchRead) -> bytes:
        def answer(said: v3.V3Response) -> bytes:
            entries = frame(said.body) if said.body is not None else b""
            return b"".join(batch_read_answer(request, said.status, entries))

        return self._ask(request, request.first_entry_id, answer)

    def _ask(self, request: Read | BatchRead, entry_id: EntryId, answer: _Said) -> bytes:
        return v3.encode_read(
            self._transaction(answer), request.ledger_id, entry_id,
            master_key=request.master_key if request.is_fencing else None,
            is_high_priority=request.is_high_priority,
        )  # fmt: skip


class _Spoken:
    """A transport that takes v2, and is the network's in all else."""

    def __init__(self, interpreter: Interpreter, transport: asyncio.BaseTransport) -> None:
        self._interpreter = interpreter
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Say something."""
        self._interpreter.says(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
