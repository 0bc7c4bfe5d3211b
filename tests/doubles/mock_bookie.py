"""A bookie in memory that really speaks the protocol, and does what a test tells it to.

It stores, fences, remembers last add confirmed and answers as a good bookie does, at once and
without a disk.  ``on_request`` may do something else with a request: answer an error, say
nothing, answer later.  ``hold_adds`` keeps the answers of adds back until ``release_adds``;
``corrupt`` damages the entries it gives out.  ``MockCluster`` registers some of them in a metadata
store of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

from doubles.decoding import decode_all
from quorumbook.client.client import BookKeeper
from quorumbook.client.options import ClientOptions
from quorumbook.env import Env
from quorumbook.ledger.placement.labels import labels_to_properties
from quorumbook.ledger.placement.machines import machine_to_properties
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.bookies.service_info import BookieEndpoint
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol import answers, availability
from quorumbook.protocol.entry_run import SIZE
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import (
    AddRun,
    Auth,
    BatchRead,
    BookieInfo,
    ForceLedger,
    ListEntries,
    Read,
    ReadLAC,
    ReadRun,
    Request,
    StartTLS,
    Unsupported,
    WriteLAC,
)
from quorumbook.protocol.status import Status

#: What ``on_request`` returns to say nothing at all, ever.
SILENCE = "silence"

#: None: behave.  A status: answer it.  SILENCE.  A number: behave, so many seconds later.
Behaviour = Status | str | float | None

#: Longer than anything in these tests takes.
PATIENCE_S = 15.0


class MockLedger:
    """What the bookie holds of one ledger."""

    def __init__(self, master_key: bytes) -> None:
        self.master_key = master_key
        self.entries: dict[int, bytes] = {}
        self.is_fenced = False
        self.lac_packet: bytes | None = None
        self.last_add_confirmed = -1


class MockBookie:
    """One bookie; ``start`` it, ``stop`` it, script it."""

    def __init__(self) -> None:
        self.bookie_id = ""
        self.host = "127.0.0.1"
        self.port = 0
        #: What it is registered with, and what it says of its disk.
        self.labels: dict[str, str] = {}
        self.machine = ""
        self.free_bytes = 50
        self.ledgers: dict[int, MockLedger] = {}
        self.requests: list[Request] = []
        self.on_request: Callable[[Request], Behaviour] | None = None
        #: Entries that come out with a flipped byte.
        self.corrupt: set[int] = set()
        #: What comes out instead of an entry: gets its id and bytes.
        self.tamper: Callable[[int, bytes], bytes] | None = None
        #: What a long poll is told as the last add confirmed, whatever is known.
        self.claimed_lac: int | None = None
        #: Like a bookie of before batch reads: closes the connection on them.
        self.is_old = False
        self.is_reading = True
        #: Requests that wait for ``carry_out`` to be called, and of which kind they are.
        self._waiting: list[tuple[_Connection, Request]] = []
        self._kept: type[Request] | None = None
        self._held: list[Callable[[], None]] | None = None
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._polls: dict[int, list[Callable[[], None]]] = defaultdict(list)

    async def start(self) -> None:
        """Listen, at the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.bookie_id = f"{self.host}:{self.port}"

    async def stop(self) -> None:
        """Vanish: every connection breaks, nobody listens."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        await asyncio.sleep(0)

    def drop_connections(self) -> None:
        """Break every connection, and go on listening."""
        for connection in list(self.connections):
            connection.transport.abort()

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self.connections)

    def count(self, kind: type[Request]) -> int:
        """Return how many requests of a kind came in."""
        return sum(isinstance(request, kind) for request in self.requests)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """Return the ids held."""
        ledger = self.ledgers.get(ledger_id)
        return sorted(ledger.entries) if ledger else []

    def hold_adds(self) -> None:
        """Store adds from now on, but answer them only when they are released."""
        self._held = [] if self._held is None else self._held

    def release_adds(self) -> None:
        """Answer what was held back, and go on answering at once."""
        held, self._held = self._held or [], None
        for answer in held:
            answer()

    def keep(self, kind: type[Request]) -> None:
        """Leave requests of a kind undone from now on, until ``carry_out``."""
        self._kept = kind

    def carry_out(self) -> None:
        """Do what was left undone, as things are now, and nothing late any more."""
        waiting, self._waiting, self._kept = self._waiting, [], None
        for connection, request in waiting:
            self._answer(connection, request)

    def stop_reading(self) -> None:
        """Take no more bytes from anybody."""
        self.is_reading = False
        for connection in self.connections:
            connection.transport.pause_reading()

    # ---------------------------------------------------------------------------------------

    def handle(self, connection: _Connection, request: Request) -> None:
        """Carry out a request, or what the script says instead."""
        if isinstance(request, Read) and self._asks_for_a_free_id(request):
            self._answer(connection, request)
            return
        self.requests.append(request)
        if self._kept is not None and isinstance(request, self._kept):
            self._waiting.append((connection, request))
            return
        behaviour = self.on_request(request) if self.on_request is not None else None
        if behaviour == SILENCE:
            return
        if isinstance(behaviour, Status):
            connection.send(answers.error_answer(request, behaviour))
            return
        if isinstance(behaviour, float):
            asyncio.get_running_loop().call_later(behaviour, self._answer, connection, request)
            return
        self._answer(connection, request)

    def _asks_for_a_free_id(self, request: Read) -> bool:
        """Tell whether a client looks if its new ledger's id is free; no script is about that."""
        return (
            (request.version, request.entry_id) == (2, 0)
            and not request.is_fencing
            and request.ledger_id not in self.ledgers
        )

    def _answer(self, connection: _Connection, request: Request) -> None:
        if isinstance(request, AddRun):
            self._add(connection, request)
        elif isinstance(request, Read):
            self._read(connection, request)
        elif isinstance(request, BatchRead) and self.is_old:
            connection.transport.close()
        elif isinstance(request, BatchRead):
            self._batch_read(connection, request)
        elif isinstance(request, WriteLAC):
            self._write_lac(connection, request)
        elif isinstance(request, ReadLAC):
            ledger = self.ledgers.get(request.ledger_id)
            if ledger is None or (not ledger.entries and ledger.lac_packet is None):
                connection.send(answers.read_lac_answer(request, Status.NO_ENTRY))
                return
            last = self._entry(ledger, max(ledger.entries)) if ledger.entries else None
            connection.send(answers.read_lac_answer(request, Status.OK, ledger.lac_packet, last))
        elif isinstance(request, ForceLedger):
            connection.send(answers.force_answer(request, Status.OK))
        elif isinstance(request, BookieInfo):
            connection.send(answers.bookie_info_answer(request, Status.OK, 100, self.free_bytes))
        elif isinstance(request, ListEntries):
            ids = availability.encode(self.entry_ids(request.ledger_id))
            connection.send(answers.list_entries_answer(request, Status.OK, ids))
        elif isinstance(request, Auth):
            connection.send(answers.auth_answer(request, Status.OK, "AuthDisabledPlugin"))
        elif isinstance(request, StartTLS | Unsupported):
            connection.send(answers.error_answer(request, Status.BAD_REQUEST))

    def _add(self, connection: _Connection, request: AddRun) -> None:
        ledger = self.ledgers.setdefault(request.run.ledger_id, MockLedger(request.master_key))
        if ledger.master_key != request.master_key:
            connection.send(answers.add_answers(request, Status.UNAUTHORIZED))
            return
        if ledger.is_fenced and not request.is_recovery:
            connection.send(answers.add_answers(request, Status.FENCED))
            return
        ledger.entries.update(request.run.entries())
        self._raise_lac(request.run.ledger_id, request.run.last_add_confirmed())

        def answer() -> None:
            connection.send(answers.add_answers(request, Status.OK))

        if self._held is not None:
            self._held.append(answer)
        else:
            answer()

    def _raise_lac(self, ledger_id: int, lac: int) -> None:
        ledger = self.ledgers[ledger_id]
        if lac > ledger.last_add_confirmed:
            ledger.last_add_confirmed = lac
            for wake in self._polls.pop(ledger_id, []):
                wake()

    def _entry(self, ledger: MockLedger, entry_id: int) -> bytes:
        entry = ledger.entries[entry_id]
        if entry_id in self.corrupt:
            entry = entry[:-1] + bytes([entry[-1] ^ 1])
        return entry if self.tamper is None else self.tamper(entry_id, entry)

    def _read(self, connection: _Connection, request: Read) -> None:
        ledger = self.ledgers.get(request.ledger_id)
        if request.is_fencing:
            key = request.master_key or b""
            if ledger is None:
                ledger = self.ledgers[request.ledger_id] = MockLedger(key)
            if ledger.master_key != key:
                connection.send(answers.read_answer(request, Status.UNAUTHORIZED))
                return
            ledger.is_fenced = True
        if ledger is None:
            connection.send(answers.read_answer(request, Status.NO_LEDGER))
        elif request.previous_lac is not None:
            self._long_poll(connection, request, ledger)
        else:
            lac = None if request.is_fencing else ledger.last_add_confirmed
            self._read_plainly(connection, request, ledger, lac)

    def _read_plainly(
        self, connection: _Connection, request: Read, ledger: MockLedger, lac: int | None
    ) -> None:
        entry_id = request.entry_id
        if entry_id == -1 and ledger.entries:
            entry_id = max(ledger.entries)
        if entry_id not in ledger.entries:
            connection.send(answers.read_answer(request, Status.NO_ENTRY))
            return
        entry = self._entry(ledger, entry_id)
        connection.send(answers.read_answer(request, Status.OK, entry, lac))

    def _long_poll(self, connection: _Connection, request: Read, ledger: MockLedger) -> None:
        previous = request.previous_lac
        assert previous is not None
        is_answered = False

        def claimed() -> int:
            return ledger.last_add_confirmed if self.claimed_lac is None else self.claimed_lac

        def answer() -> None:
            nonlocal is_answered
            if is_answered:
                return
            is_answered = True
            lac = claimed()
            if not request.is_piggyback:
                self._read_plainly(connection, request, ledger, lac)
                return
            entry, entry_id = None, -1
            if lac > previous and previous + 1 in ledger.entries:
                entry_id = previous + 1
                entry = self._entry(ledger, entry_id)
            connection.send(answers.read_answer(request, Status.OK, entry, lac, entry_id))

        if claimed() > previous or ledger.is_fenced:
            answer()
            return
        self._polls[request.ledger_id].append(answer)
        asyncio.get_running_loop().call_later((request.timeout_ms or 0) / 1000, answer)

    def _batch_read(self, connection: _Connection, request: BatchRead) -> None:
        ledger = self.ledgers.get(request.ledger_id)
        status = Status.NO_LEDGER
        pieces: list[bytes] = []
        size = 36
        if ledger is not None:
            entry_id = request.first_entry_id
            while entry_id in ledger.entries:
                entry = self._entry(ledger, entry_id)
                size += len(entry) + 4
                is_full = pieces and size > request.max_size_bytes
                if is_full or len(pieces) // 2 == request.max_count:
                    break
                pieces += [SIZE.pack(len(entry)), entry]
                entry_id += 1
            status = Status.OK if pieces else Status.NO_ENTRY
        connection.send(b"".join(answers.batch_read_answer(request, status, b"".join(pieces))))

    def _write_lac(self, connection: _Connection, request: WriteLAC) -> None:
        ledger = self.ledgers.setdefault(request.ledger_id, MockLedger(request.master_key))
        if ledger.master_key != request.master_key:
            connection.send(answers.write_lac_answer(request, Status.UNAUTHORIZED))
            return
        ledger.lac_packet = request.packet
        self._raise_lac(request.ledger_id, request.lac)
        connection.send(answers.write_lac_answer(request, Status.OK))


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: MockBookie) -> None:
        self._bookie = bookie
        self._decoder = RequestDecoder()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._bookie.connections.add(self)
        if not self._bookie.is_reading:
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        for request in decode_all(self._decoder, data):
            if isinstance(request, ReadRun):  # one by one: a script speaks of single requests
                for single in request.reads():
                    self._bookie.handle(self, single)
            else:
                self._bookie.handle(self, request)

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


class MockCluster:
    """Mock bookies, registered in a metadata store in memory."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self._name = f"mock-{next(self._numbers)}"
        self.metadata_uri = f"memory://{self._name}"
        self.bookies: list[MockBookie] = []
        self.store: MetadataStore
        self._stack = contextlib.AsyncExitStack()
        self.registrations: dict[str, tuple[MetadataStore, BookieRegistration]] = {}

    async def __aenter__(self) -> MockCluster:
        self.store = await open_store(self.metadata_uri, Env(), create=True)
        self._stack.callback(forget_memory_tree, self._name)
        self._stack.push_async_callback(self.store.close)
        await init_cluster(self.store)
        return self

    async def __aexit__(self, *_: object) -> None:
        for bookie in self.bookies:
            await bookie.stop()
        for bookie_id in list(self.registrations):
            await self.unregister(bookie_id)
        await self._stack.aclose()

    async def add(
        self, count: int = 1, *, host: str = "127.0.0.1", machine: str = "", **labels: str
    ) -> list[MockBookie]:
        """Start and register bookies."""
        added = []
        for _ in range(count):
            bookie = MockBookie()
            bookie.host, bookie.labels, bookie.machine = host, labels, machine
            await bookie.start()
            await self.register(bookie)
            self.bookies.append(bookie)
            added.append(bookie)
        return added

    async def register(self, bookie: MockBookie, *, read_only: bool = False) -> None:
        """Make a bookie known."""
        store = await open_store(self.metadata_uri, Env())
        registration = BookieRegistration(store)
        info = BookieServiceInfo(
            endpoints=(
                BookieEndpoint(
                    id="bookie", port=bookie.port, host=bookie.host, protocol="bookie-rpc"
                ),
            ),
            properties=labels_to_properties(bookie.labels) | machine_to_properties(bookie.machine),
        )
        await registration.register(bookie.bookie_id, info, read_only)
        self.registrations[bookie.bookie_id] = store, registration

    async def unregister(self, bookie_id: str) -> None:
        """Take a bookie's registration away."""
        store, registration = self.registrations.pop(bookie_id)
        await registration.unregister()
        await registration.close()
        await store.close()

    def by_id(self, bookie_id: str) -> MockBookie:
        """Return the bookie of this id."""
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def members(self, ledger: Any) -> list[MockBookie]:
        """Return the bookies of a ledger's present ensemble, in order."""
        return [self.by_id(bookie_id) for bookie_id in ledger.metadata.ensemble]

    def spare(self, ledger: Any) -> list[MockBookie]:
        """Return the bookies that are not in it."""
        return [b for b in self.bookies if b.bookie_id not in ledger.metadata.ensemble]

    def connect(self, *, env: Env | None = None, **options: Any) -> BookKeeper:
        """Return a client; short time-outs unless the test says otherwise."""
        return BookKeeper(self.metadata_uri, options=ClientOptions.of(options), env=env)


@contextlib.asynccontextmanager
async def mock_cluster(bookies: int = 3) -> AsyncIterator[MockCluster]:
    """A cluster of so many mock bookies."""
    async with MockCluster() as cluster:
        await cluster.add(bookies)
        yield cluster
