"""What a bookie does with the requests of a chunk.

Adds are gathered over the whole chunk and begun together; plain reads join their connection's
queue.  Everything else is done in its place: before a fence, say, the adds that came ahead of it
are begun, so that they keep their order in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumbook.auth.plugins import AUTH_DISABLED
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.requests.access import LedgerAccess
from quorumbook.bookie.requests.adds import Adds
from quorumbook.bookie.requests.arrivals import Arrivals
from quorumbook.bookie.requests.long_poll import LongPolls
from quorumbook.bookie.requests.lookups import Lookups
from quorumbook.bookie.requests.reads import ReadRequests
from quorumbook.env import Env
from quorumbook.protocol import answers
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
from quorumbook.storage.states.ledgers import LedgerHandle, lac_of_packet
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
        self._access = access = LedgerAccess(env.clock, storage)
        self.adds = Adds(env, options, storage, metrics, disks.writability, access)
        arrivals = Arrivals(options, storage)
        lookups = Lookups(storage, self._done)
        self.reads = ReadRequests(
            env, options, storage, metrics, arrivals, self._fenced, lookups, access
        )
        self.polls = LongPolls(env, options, storage, metrics, self.reads)
        self._others: dict[type[Request], Callable[[BookieConnection, Any, int], None]] = {
            WriteLAC: self._write_lac,
            ForceLedger: self._force,
            BookieInfo: self._bookie_info,
            Auth: self._auth,
            StartTLS: self._start_tls,
            Unsupported: self._unsupported,
        }

    def handle(self, connection: BookieConnection, requests: list[Request]) -> None:
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
                elif isinstance(request, (ReadLAC, ListEntries)):
                    self.reads.enqueue(connection, (request, now_ns, None, False))
                else:
                    self._others[type(request)](connection, request, now_ns)
        if adds:
            self.adds.run(connection, adds, now_ns)
        if connection.reads:
            self.reads.pump(connection)

    def resume(self, connection: BookieConnection) -> None:
        """Go on with waiting reads: the peer takes answers again."""
        self.reads.pump(connection)

    def has_much_room(self, on_room: Callable[[], None]) -> bool:
        """Tell whether adds of somebody who sends much may come; if not, call back later."""
        return self.adds.has_much_room(on_room)

    def forget(self, connection: BookieConnection) -> None:
        """Drop what waits for a connection that is gone."""
        self.reads.forget(connection)
        self.polls.forget(connection)

    def _fenced(self, ledger_id: int) -> None:
        self.polls.fenced(ledger_id)

    # Last add confirmed

    def _write_lac(self, connection: BookieConnection, request: WriteLAC, now_ns: int) -> None:
        handle: LedgerHandle | Status
        if self._disks.writability.is_read_only:
            handle = Status.READ_ONLY
        elif not _LAC_PACKET_BYTES_MIN <= len(request.packet) <= _LAC_PACKET_BYTES_MAX:
            handle = Status.BAD_REQUEST
        else:
            handle = self._access.open(request.ledger_id, request.master_key, connection.peer)
        if isinstance(handle, Status):
            self._done("write_lac", handle, now_ns)
            connection.answer(answers.write_lac_answer(request, handle))
            return

        def done(error: BaseException | None) -> None:
            connection.release_adds(len(request.packet))
            status = Status.OK if error is None else status_for(error)
            self._done("write_lac", status, now_ns)
            connection.answer(answers.write_lac_answer(request, status))

        connection.hold_adds(len(request.packet))
        self._storage.write_lac(handle, request.packet, lac_of_packet(request.packet), done)

    # The rest

    def _force(self, connection: BookieConnection, request: ForceLedger, now_ns: int) -> None:
        connection.unsettled += 1

        def done(error: BaseException | None) -> None:
            connection.unsettled -= 1
            status = Status.OK if error is None else status_for(error)
            self._done("force", status, now_ns)
            connection.answer(answers.force_answer(request, status))

        self._storage.force(done)

    def _bookie_info(self, connection: BookieConnection, request: BookieInfo, now_ns: int) -> None:
        disks = self._disks
        total = disks.total_bytes if request.requested & _TOTAL_SPACE else None
        free = disks.free_bytes if request.requested & _FREE_SPACE else None
        self._done("bookie_info", Status.OK, now_ns)
        connection.answer(answers.bookie_info_answer(request, Status.OK, total, free))

    def _auth(self, connection: BookieConnection, request: Auth, now_ns: int) -> None:
        # There is no authentication here: a client that has one must not hang (protocol 1.3).
        connection.answer(answers.auth_answer(request, Status.OK, AUTH_DISABLED, b""))

    def _start_tls(self, connection: BookieConnection, request: StartTLS, now_ns: int) -> None:
        connection.answer(answers.start_tls_answer(request, Status.BAD_REQUEST))

    def _unsupported(self, connection: BookieConnection, request: Unsupported, now_ns: int) -> None:
        connection.answer(answers.error_answer(request, request.status))

    def _done(self, operation: str, status: Status, arrived_ns: int) -> None:
        now_ns = self._clock.now_ns()
        self._metrics.operations[operation].record(
            status is Status.OK, now_ns - arrived_ns, 1, now_ns
        )
