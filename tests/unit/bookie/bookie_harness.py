"""What the bookie's tests stand on: a scripted storage, a server around it, and raw clients."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from doubles.raw_client import RawClient
from quorumbook.bookie.connections.admission import Admission
from quorumbook.bookie.connections.loop_turns import Outbox, Turn
from quorumbook.bookie.connections.registry import Connections
from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.requests.operations import Operations
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.errors import NoSuchEntryError, NoSuchLedgerError, UnknownLedgerStateError
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.v2 import packets as v2
from quorumbook.storage.options import StorageOptions
from quorumbook.storage.states.ledgers import LedgerHandle

PASSWORD = b"passwd"
KEY = master_key(PASSWORD)
WRONG_KEY = master_key(b"another")
DIGESTER = digester(DigestType.CRC32C, PASSWORD)
MIB = 1024 * 1024
#: Longer than anything here takes, shorter than a developer's patience.
PATIENCE_S = 20


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int = -1) -> bytes:
    """Seal an entry."""
    return DIGESTER.seal(ledger_id, entry_id, lac, len(payload), payload)


def v2_adds(
    ledger_id: int,
    ids: Sequence[int],
    payload: bytes = b"payload",
    *,
    flags: int = 0,
    key: bytes = KEY,
    lac: int = -1,
) -> bytes:
    """Return the frames of v2 adds, joined."""
    bodies = [entry(ledger_id, entry_id, payload, lac) for entry_id in ids]
    return b"".join(v2.encode_adds(key, flags, bodies))


def code_of(answer: bytes) -> int:
    """Return the code of a v2 answer."""
    return v2.ANSWER.unpack_from(answer)[2]


class ScriptedStorage:
    """The storage's facade on dictionaries; the test decides when a group is durable.

    ``log`` has every call that a promise depends on, in order.
    """

    def __init__(self, *, automatic: bool = True) -> None:
        self.automatic = automatic
        self.handles: dict[int, LedgerHandle] = {}
        self.entries: dict[tuple[int, int], bytes] = {}
        #: Entries only a "disk" read finds, and errors it gives.
        self.on_disk: dict[tuple[int, int], bytes | BaseException] = {}
        self.log: list[tuple[Any, ...]] = []
        self.group: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []
        self.room: int | None = None
        self.reserve = 0
        self.room_callbacks: list[Callable[[], None]] = []
        self.held_reads: list[Callable[[], None]] | None = None
        self.is_full = False
        self.last_read = None

    # Journal

    def _enqueue(
        self, effect: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        self.group.append((effect, done))
        if self.automatic and len(self.group) == 1:
            asyncio.get_running_loop().call_soon(self.commit)

    def commit(self, error: BaseException | None = None) -> None:
        """End the group in flight, as the journal does: all callbacks in one loop step."""
        group, self.group = self.group, []
        for effect, done in group:
            if error is None:
                effect()
            done(error)

    # The facade

    def handle(self, ledger_id: int) -> LedgerHandle | None:
        return self.handles.get(ledger_id)

    def create_handle(self, ledger_id: int, key: bytes) -> LedgerHandle:
        assert ledger_id not in self.handles, "two handles of one ledger"
        handle = self.handles[ledger_id] = LedgerHandle(ledger_id, key)
        return handle

    def append(
        self,
        items: Sequence[tuple[LedgerHandle, EntryRun]],
        done: Callable[[BaseException | None], None],
        *,
        deferred_sync: bool = False,
    ) -> None:
        for handle, run in items:
            self.log.append(("add", handle.ledger_id, run.first_entry_id, run.last_entry_id))
        size = sum(len(run.data) for _, run in items)
        if self.room is not None:
            self.room -= size

        def effect() -> None:
            for handle, run in items:
                for entry_id, body in run.entries():
                    self.entries[handle.ledger_id, entry_id] = body
                handle.last_entry_id = max(handle.last_entry_id, run.last_entry_id)
                handle.raise_lac(run.last_add_confirmed())
                for callback in handle.take_woken(1000):
                    callback()

        self.log.append(("append", len(items), deferred_sync))
        if deferred_sync:
            asyncio.get_running_loop().call_soon(lambda: (effect(), done(None)))
        else:
            self._enqueue(effect, done)

    def fence(self, handle: LedgerHandle, done: Callable[[BaseException | None], None]) -> None:
        handle.is_fenced = True
        self.log.append(("fence", handle.ledger_id))
        if handle.is_fence_durable:
            done(None)
            return

        def effect() -> None:
            handle.is_fence_durable = True

        self._enqueue(effect, done)

    def write_lac(
        self,
        handle: LedgerHandle,
        packet: bytes,
        lac: int,
        done: Callable[[BaseException | None], None],
    ) -> None:
        self.log.append(("lac", handle.ledger_id, lac))

        def effect() -> None:
            if lac > handle.last_add_confirmed or handle.explicit_lac is None:
                handle.explicit_lac = packet
            handle.raise_lac(lac)
            for callback in handle.take_woken(1000):
                callback()

        self._enqueue(effect, done)

    def force(self, done: Callable[[BaseException | None], None]) -> None:
        self._enqueue(lambda: None, done)

    def has_room(self, size_bytes: int, *, reserve: bool = False) -> bool:
        if self.room is None:
            return True
        return size_bytes <= self.room + (self.reserve if reserve else 0)

    @property
    def has_much_room(self) -> bool:
        return self.room is None

    def on_room(self, callback: Callable[[], None]) -> None:
        self.room_callbacks.append(callback)

    def make_room(self, size_bytes: int | None) -> None:
        """Say that room has appeared."""
        self.room = size_bytes
        callbacks, self.room_callbacks = self.room_callbacks, []
        for callback in callbacks:
            callback()

    def cached_run(self, ledger_id: int, entry_id: int) -> tuple[EntryRun, int] | None:
        entry = self.entries.get((ledger_id, entry_id))
        return None if entry is None else (EntryRun.of(ledger_id, entry_id, [entry]), entry_id)

    def _find(self, ledger_id: int, entry_id: int) -> bytes | BaseException:
        handle = self.handles.get(ledger_id)
        if handle is None:
            return NoSuchLedgerError()
        if entry_id == -1:
            # Whether it may be told is the bookie's to know.
            entry_id = handle.last_entry_id
        found = self.entries.get((ledger_id, entry_id)) or self.on_disk.get((ledger_id, entry_id))
        if found is None:
            return UnknownLedgerStateError() if handle.is_in_limbo else NoSuchEntryError()
        return found

    def read(
        self,
        requests: Sequence[tuple[int, int]],
        done: Callable[[list[bytes | BaseException]], None],
        max_size_bytes: int = 1 << 60,
    ) -> None:
        self.log.append(("read", len(requests)))

        def job() -> None:
            done([self._find(*request) for request in requests])

        if self.held_reads is not None:
            self.held_reads.append(job)
        else:
            asyncio.get_running_loop().call_soon(job)

    def read_batch(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_size: int,
        done: Callable[[list[bytes], int, BaseException | None], None],
    ) -> None:
        pieces: list[bytes] = []
        size = 0
        entry_id = first
        while not max_count or len(pieces) < max_count:
            found = self._find(ledger_id, entry_id)
            if isinstance(found, BaseException):
                if not pieces:
                    done([], 0, found)
                    return
                break
            size += len(found) + 4
            if pieces and max_size and size > max_size:
                break
            pieces.append(len(found).to_bytes(4, "big") + found)
            entry_id += 1
        done(pieces, len(pieces), None)

    def last_entry_id(self, ledger_id: int) -> int:
        handle = self.handles.get(ledger_id)
        return handle.last_entry_id if handle else -1

    def entry_ids(
        self, ledger_id: int, done: Callable[[list[range] | BaseException], None]
    ) -> None:
        ids = sorted(entry for ledger, entry in self.entries if ledger == ledger_id)
        done([range(entry_id, entry_id + 1) for entry_id in ids])

    def list_entries(
        self,
        ledger_id: int,
        shape: Callable[[list[range]], bytes],
        done: Callable[[bytes | BaseException], None],
    ) -> None:
        self.entry_ids(ledger_id, lambda ids: done(shape(ids)))  # type: ignore[arg-type]


class Server:
    """The request path of a bookie around a scripted storage, listening on loopback."""

    def __init__(self, storage: ScriptedStorage, options: BookieOptions) -> None:
        self.env = Env()
        self.options = options
        self.storage = storage
        self.metrics = BookieMetrics()
        self.disks = DiskMonitor(
            self.env,
            options,
            self.metrics,
            storage_is_full=lambda: storage.is_full,
            on_change=lambda: None,
        )
        self.operations = Operations(
            self.env,
            options,
            storage,
            self.metrics,
            self.disks,  # type: ignore[arg-type]
        )
        self.connections = Connections(
            self.env,
            options,
            self.metrics,
            self.operations,
            Admission(self.env, options, self.metrics),
            Outbox(Turn(self.env.clock)),
        )
        self.connections.is_serving = True
        self.port = 0

    async def connect(self) -> RawClient:
        """Open a raw connection."""
        return await RawClient.connect(self.port)


@contextlib.asynccontextmanager
async def serve(storage: ScriptedStorage | None = None, /, **changes: Any) -> AsyncIterator[Server]:
    """Run the request path."""
    options = BookieOptions(journal_directories=("/nowhere",), ledger_directories=("/nowhere",))
    options = dataclasses.replace(options, **changes)
    server = Server(storage or ScriptedStorage(), options)
    listener = await server.env.network.listen("127.0.0.1", 0, server.connections.factory)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        server.connections.abort()


async def ask_http(port: int, request: str) -> tuple[int, str]:
    """Send a request; return status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def settle(rounds: int = 20) -> None:
    """Let the loop turn: whatever could happen now happens."""
    for _ in range(rounds):
        await asyncio.sleep(0)
    await asyncio.sleep(0.005)
    for _ in range(rounds):
        await asyncio.sleep(0)


_names = iter(range(1, 1_000_000))


@contextlib.asynccontextmanager
async def cluster(name: str | None = None) -> AsyncIterator[MetadataStore]:
    """Make a cluster in a metadata store of its own."""
    tree = name or f"bookie-test-{next(_names)}"
    store = await open_store(f"memory://{tree}", create=True)
    await init_cluster(store)
    try:
        yield store
    finally:
        await store.close()
        forget_memory_tree(tree)


def options_in(root: object, **changes: Any) -> BookieOptions:
    """Return the options of a small bookie below a directory."""
    options = BookieOptions(
        journal_directories=(f"{root}/journal",),
        ledger_directories=(f"{root}/ledgers",),
        port=0,
        storage=StorageOptions(
            write_cache_size_bytes=4 * MIB,
            read_cache_size_bytes=MIB,
            journal_file_size_bytes=8 * MIB,
            reserve_size_bytes=MIB,
        ),
        min_high_priority_free_bytes=1,
        max_disk_usage=1.0,
        disk_usage_writable=1.0,
    )
    return dataclasses.replace(options, **changes)


@contextlib.asynccontextmanager
async def running(bookie: Bookie) -> AsyncIterator[Bookie]:
    """Run a bookie."""
    await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.stop()


@contextlib.asynccontextmanager
async def real_bookie(root: object, store: MetadataStore, **changes: Any) -> AsyncIterator[Bookie]:
    """Run a real bookie below a directory."""
    async with running(Bookie(Env(), options_in(root, **changes), store)) as bookie:
        yield bookie
