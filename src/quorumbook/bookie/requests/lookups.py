"""What a bookie knows of a ledger: its last add confirmed, and the list of its entries.

Both answers can be large, so the questions wait in the queue of reads (``reads.py``), which admits
them as if they were as large as can be.  Lists are made by the storage's worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.ids import INVALID_ENTRY_ID
from quorumbook.protocol import answers, availability
from quorumbook.protocol.requests import ListEntries, ReadLAC
from quorumbook.protocol.status import Status, status_for
from quorumbook.storage.store import LedgerStorage

Answer: TypeAlias = Callable[[Status, bytes], None]


class Lookups:
    """Answers these questions.

    Args:
        storage: Who knows.
        count: Called with the operation, its status and when it arrived.
    """

    def __init__(self, storage: LedgerStorage, count: Callable[[str, Status, int], None]) -> None:
        self._storage = storage
        self._count = count

    def begin(
        self,
        connection: BookieConnection,
        request: ReadLAC | ListEntries,
        arrived_ns: int,
        waits: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        """Answer and call ``ended``, now or later.

        Asked ``waits`` where adds on their way may know better: if it says yes, the question
        comes again, and this one is over.
        """

        def answer(status: Status, data: bytes) -> None:
            operation = "read_lac" if isinstance(request, ReadLAC) else "list_entries"
            self._count(operation, status, arrived_ns)
            connection.answer(data)
            ended()

        if isinstance(request, ReadLAC):
            self._read_lac(request, answer, waits)
        else:
            self._list_entries(request, answer, waits)

    def _read_lac(self, request: ReadLAC, answer: Answer, waits: Callable[[], bool]) -> None:
        handle = self._storage.handle(request.ledger_id)
        if handle is None:
            answer(Status.NO_ENTRY, answers.read_lac_answer(request, Status.NO_ENTRY))
            return

        def done(results: list[bytes | BaseException]) -> None:
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
                if status is Status.NO_ENTRY and waits():
                    return
            if handle.is_in_limbo:
                status = Status.UNKNOWN_LEDGER_STATE
            if status is not Status.OK:
                lac_packet = last_entry = None
            answer(status, answers.read_lac_answer(request, status, lac_packet, last_entry))

        self._storage.read([(request.ledger_id, INVALID_ENTRY_ID)], done)

    def _list_entries(
        self, request: ListEntries, answer: Answer, waits: Callable[[], bool]
    ) -> None:
        # In limbo too: the list says what is here for certain, so that the rest can be copied.
        if self._storage.handle(request.ledger_id) is None:
            answer(Status.NO_LEDGER, answers.list_entries_answer(request, Status.NO_LEDGER))
            return
        # A list also says what is not here.
        if waits():
            return

        def done(result: bytes | BaseException) -> None:
            status = status_for(result) if isinstance(result, BaseException) else Status.OK
            listed = None if isinstance(result, BaseException) else result
            answer(status, answers.list_entries_answer(request, status, listed))

        self._storage.list_entries(request.ledger_id, _encoded, done)


def _encoded(entry_ids: list[range]) -> bytes:
    return availability.encode_ranges((ids[0], ids[-1]) for ids in entry_ids)
