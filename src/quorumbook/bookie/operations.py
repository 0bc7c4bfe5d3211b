"""What a bookie does with the requests of a chunk.

Adds are gathered over the whole chunk and begun together; plain reads join their connection's
queue.  Everything else is done in its place: before a fence, say, the adds that came ahead of it
are begun, so that they keep their order in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from quorumbook.auth.plugins import AUTH_DISABLED
from quorumbook.bookie.access import open_ledger
from quorumbook.bookie.adds import Adds
from quorumbook.bookie.arrivals import Arrivals
from quorumbook.bookie.connection import Connection
from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.long_poll import LongPolls
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.reads import Reads
from quorumbook.env import Env
from quorumbook.ids import INVALID_ENTRY_ID
from quorumbook.protocol import availability
from quorumbook.protocol import server as answers
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
from quorumbook.protocol.status import Status, status_for
from quorumbook.storage.ledgers import LedgerHandle, lac_of_packet
from quorumbook.storage.store import LedgerStorage

_TOTAL_SPACE, _FREE_SPACE = 1, 2
_LAC_PACKET_BYTES_MIN = 16
#: Clients send up to 36; the packet stays in memory, for every ledger that somebody names.
_LAC_PACKET_BYTES_MAX = 1024


class Operations:
    """Carries out requests; the ``RequestHandler`` of all connections."""

    def __init__(
        self,
        env: Env,
        options: BookieOptions,
        storage: LedgerStorage,
        metrics: BookieMetrics,
        disks: DiskMonitor,
    ) -> None:
        self._clock = env.clock
        self._storage = storage
        self._metrics = metrics
        self._disks = disks
        self.adds = Adds(env, options, storage, metrics, disks.writability)
        self._arrivals = Arrivals(options, storage)
        self.reads = Reads(env, options, storage, metrics, self._arrivals, self._fenced)
        self.polls = LongPolls(options, storage, metrics, self.reads)
        self._others: dict[type[Request], Callable[[Connection, Any, int], None]] = {
            WriteLAC: self._write_lac,
            ReadLAC: self._read_lac,
            ForceLedger: self._force,
            BookieInfo: self._bookie_info,
            ListEntries: self._list_entries,
            Auth: self._auth,
            StartTLS: self._start_tls,
            Unsupported: self._unsupported,
        }

    def handle(self, connection: Connection, requests: list[Request]) -> None:
        """Begin all requests of a chunk."""
        now_ns = self._clock.now_ns()
        adds: list[AddRun] = []
        for request in requests:
            if isinstance(request, AddRun):
                adds.append(request)
            elif isinstance(request, ReadRun):
                self.reads.enqueue(connection, (request, now_ns, None, False))
            elif isinstance(request, (Read, BatchRead)) and not request.is_fencing:
                if isinstance(request, Read) and request.previous_lac is not None:
                    self.polls.start(connection, request, now_ns)
                else:
                    self.reads.enqueue(connection, (request, now_ns, None, False))
            else:
                if adds:
                    self.adds.run(connection, adds, now_ns)
                    adds = []
                if isinstance(request, (Read, BatchRead)):
                    self.reads.fence(connection, request, now_ns)
                else:
                    self._others[type(request)](connection, request, now_ns)
        if adds:
            self.adds.run(connection, adds, now_ns)
        if connection.reads:
            self.reads.pump(connection)

    def resume(self, connection: Connection) -> None:
        """Go on with waiting reads: the peer takes answers again."""
        self.reads.pump(connection)

    def forget(self, connection: Connection) -> None:
        """Drop what waits for a connection that is gone."""
        self.reads.forget(connection)
        for poll in list(connection.long_polls):
            poll.cancel()

    def _fenced(self, ledger_id: int) -> None:
        self.polls.fenced(ledger_id)

    # Last add confirmed

    def _write_lac(self, connection: Connection, request: WriteLAC, now_ns: int) -> None:
        handle: LedgerHandle | Status
        if self._disks.writability.is_read_only:
            handle = Status.READ_ONLY
        elif not _LAC_PACKET_BYTES_MIN <= len(request.packet) <= _LAC_PACKET_BYTES_MAX:
            handle = Status.BAD_REQUEST
        else:
            handle = open_ledger(
                self._storage, request.ledger_id, request.master_key, connection.peer
            )
        if isinstance(handle, Status):
            self._done("write_lac", handle, now_ns)
            connection.answer(answers.write_lac_answer(request, handle))
            return

        def done(error: BaseException | None) -> None:
            connection.release_add(len(request.packet))
            status = Status.OK if error is None else status_for(error)
            self._done("write_lac", status, now_ns)
            connection.answer(answers.write_lac_answer(request, status))

        connection.hold_add(len(request.packet))
        self._storage.write_lac(handle, request.packet, lac_of_packet(request.packet), done)

    def _read_lac(self, connection: Connection, request: ReadLAC, now_ns: int) -> None:
        handle = self._storage.handle(request.ledger_id)
        if handle is None:
            self._done("read_lac", Status.NO_ENTRY, now_ns)
            connection.answer(answers.read_lac_answer(request, Status.NO_ENTRY))
            return

        def done(results: list[bytes | BaseException], *, may_wait: bool) -> None:
            result = results[0]
            lac_packet = handle.explicit_lac
            last_entry = None
            status = Status.OK
            if not isinstance(result, BaseException):
                last_entry = result
            else:
                status = status_for(result)
                if status in (Status.NO_ENTRY, Status.NO_LEDGER):
                    status = Status.NO_ENTRY if lac_packet is None else Status.OK
                again = partial(look, may_wait=False)
                is_denied = status is Status.NO_ENTRY and may_wait
                if is_denied and self._arrivals.wait(request.ledger_id, again):
                    return
            if handle.is_in_limbo:
                status = Status.UNKNOWN_LEDGER_STATE
            self._done("read_lac", status, now_ns)
            if status is not Status.OK:
                lac_packet = last_entry = None
            connection.answer(answers.read_lac_answer(request, status, lac_packet, last_entry))

        def look(*, may_wait: bool) -> None:
            wanted = [(request.ledger_id, INVALID_ENTRY_ID)]
            self._storage.read(wanted, partial(done, may_wait=may_wait))

        look(may_wait=True)

    # The rest

    def _force(self, connection: Connection, request: ForceLedger, now_ns: int) -> None:
        def done(error: BaseException | None) -> None:
            status = Status.OK if error is None else status_for(error)
            self._done("force", status, now_ns)
            connection.answer(answers.force_answer(request, status))

        self._storage.force(done)

    def _bookie_info(self, connection: Connection, request: BookieInfo, now_ns: int) -> None:
        disks = self._disks
        total = disks.total_bytes if request.requested & _TOTAL_SPACE else None
        free = disks.free_bytes if request.requested & _FREE_SPACE else None
        self._done("bookie_info", Status.OK, now_ns)
        connection.answer(answers.bookie_info_answer(request, Status.OK, total, free))

    def _list_entries(self, connection: Connection, request: ListEntries, now_ns: int) -> None:
        # In limbo too: the list says what is here for certain, so that the rest can be copied.
        if self._storage.handle(request.ledger_id) is None:
            self._done("list_entries", Status.NO_LEDGER, now_ns)
            connection.answer(answers.list_entries_answer(request, Status.NO_LEDGER))
            return

        def done(result: list[range] | BaseException) -> None:
            listed = None
            status = Status.OK
            if isinstance(result, BaseException):
                status = status_for(result)
            else:
                listed = availability.encode_ranges((ids[0], ids[-1]) for ids in result)
            self._done("list_entries", status, now_ns)
            connection.answer(answers.list_entries_answer(request, status, listed))

        def look() -> None:
            self._storage.entry_ids(request.ledger_id, done)

        # A list also says what is not here.
        if not self._arrivals.wait(request.ledger_id, look):
            look()

    def _auth(self, connection: Connection, request: Auth, now_ns: int) -> None:
        # There is no authentication here: a client that has one must not hang (protocol 1.3).
        connection.answer(answers.auth_answer(request, Status.OK, AUTH_DISABLED, b""))

    def _start_tls(self, connection: Connection, request: StartTLS, now_ns: int) -> None:
        connection.answer(answers.start_tls_answer(request, Status.BAD_REQUEST))

    def _unsupported(self, connection: Connection, request: Unsupported, now_ns: int) -> None:
        connection.answer(answers.error_answer(request, request.status))

    def _done(self, operation: str, status: Status, arrived_ns: int) -> None:
        now_ns = self._clock.now_ns()
        self._metrics.operations[operation].record(
            status is Status.OK, now_ns - arrived_ns, 1, now_ns
        )
