"""What a bookie is asked, whichever protocol it came in.

Each request carries what its answer must echo.  In v2 that is the version byte (``echo_version``:
0, 1 or 2) and the ids as requested; in v3 the transaction id.

Requests are plain objects with slots: one for each frame, but one for a whole run of adds and for
a row of plain reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import repeat
from typing import NamedTuple

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol import varint
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.status import Status

#: So many requests, or a few more, are decoded at a time; the others of a chunk wait for a turn.
REQUESTS_MAX = 16


class Operation(IntEnum):
    """What is asked, with the numbers of v3."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3
    RANGE_ADD_ENTRY = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12


class Request:
    """Base of all; ``version`` is the protocol, 2 or 3.

    ``token`` is what the answer echoes: the version byte in v2, the transaction id in v3.
    """

    __slots__ = ("token", "version")

    operation: Operation
    version: int
    token: int

    def __init__(self, version: int, token: int) -> None:
        self.version = version
        self.token = token

    @property
    def transaction_id(self) -> int:
        """The transaction id of a v3 request."""
        return self.token

    def __repr__(self) -> str:
        # Keys and authentication payloads are secrets and stay out of logs.
        names = [
            name
            for cls in reversed(type(self).__mro__)
            for name in getattr(cls, "__slots__", ())
            if name not in ("master_key", "payload", "packet")
        ]
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({values})"


class AddRun(Request):
    """Adds that came together: one ledger, one key, the same flags, ascending ids.

    ``run`` has the ids inside the entries, which are the ones that count.  A v3 request names the
    ids a second time; where those differ (no client of the peer does that) the answer must repeat
    them, so ``echo_ledger_id`` and ``echo_entry_ids`` have what the requests said.

    ``transaction_ids`` has one for each entry in v3 and is None in v2.
    """

    __slots__ = (
        "_echo_entry_ids",
        "_echo_ledger_id",
        "is_deferred_sync",
        "is_high_priority",
        "is_recovery",
        "master_key",
        "run",
        "transaction_ids",
    )

    operation = Operation.ADD_ENTRY

    def __init__(
        self,
        run: EntryRun,
        master_key: bytes,
        *,
        version: int = 2,
        token: int = 2,
        is_recovery: bool = False,
        is_high_priority: bool = False,
        is_deferred_sync: bool = False,
        transaction_ids: list[int] | None = None,
        echo_ledger_id: LedgerId | None = None,
        echo_entry_ids: Sequence[EntryId] | None = None,
    ) -> None:
        self.version = version
        self.token = token
        self.run = run
        self.master_key = master_key
        self.is_recovery = is_recovery
        self.is_high_priority = is_high_priority
        self.is_deferred_sync = is_deferred_sync
        self.transaction_ids = transaction_ids
        self._echo_ledger_id = echo_ledger_id
        self._echo_entry_ids = echo_entry_ids

    @property
    def echo_ledger_id(self) -> LedgerId:
        """The ledger id that the answers repeat."""
        return self.run.ledger_id if self._echo_ledger_id is None else self._echo_ledger_id

    @property
    def echo_entry_ids(self) -> Sequence[EntryId]:
        """The entry ids that the answers repeat."""
        return self.run.entry_ids() if self._echo_entry_ids is None else self._echo_entry_ids


class Read(Request):
    """Read one entry, or the last (id -1); with fencing, or as a long poll.

    ``previous_lac`` and ``timeout_ms`` make it a long poll; ``is_piggyback`` asks for the entry
    after ``previous_lac`` along with the news.  ``master_key`` matters only with ``is_fencing``.
    """

    __slots__ = (
        "entry_id",
        "is_fencing",
        "is_high_priority",
        "is_piggyback",
        "ledger_id",
        "master_key",
        "previous_lac",
        "timeout_ms",
    )

    operation = Operation.READ_ENTRY

    def __init__(
        self,
        version: int,
        token: int,
        ledger_id: LedgerId,
        entry_id: EntryId,
        is_high_priority: bool = False,
        is_fencing: bool = False,
        master_key: bytes | None = None,
        previous_lac: EntryId | None = None,
        timeout_ms: int | None = None,
        is_piggyback: bool = False,
    ) -> None:
        self.version = version
        self.token = token
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.is_high_priority = is_high_priority
        self.is_fencing = is_fencing
        self.master_key = master_key
        self.previous_lac = previous_lac
        self.timeout_ms = timeout_ms
        self.is_piggyback = is_piggyback


class ReadRun(Request):
    """Plain reads of one ledger that came together, their ids at equal distances.

    That is what a client sends that reads in a row: where the ensemble stripes its reads, each
    bookie is asked for every n-th entry.

    Attributes:
        entry_ids: What is read, ascending.
        transactions: In v3 the transaction id of each read, a varint as it came.
    """

    __slots__ = ("entry_ids", "ledger_id", "transactions")

    operation = Operation.READ_ENTRY

    def __init__(
        self,
        token: int,
        ledger_id: LedgerId,
        entry_ids: range,
        transactions: Sequence[bytes] | None = None,
    ) -> None:
        self.version = 2 if transactions is None else 3
        self.token = token
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.transactions = transactions

    def cut(self, count: int) -> tuple[ReadRun, ReadRun]:
        """Return the first reads, so many, and the others."""
        ids, transactions = self.entry_ids, self.transactions
        first = transactions and transactions[:count]
        others = transactions and transactions[count:]
        return (
            ReadRun(self.token, self.ledger_id, ids[:count], first),
            ReadRun(self.token, self.ledger_id, ids[count:], others),
        )

    def reads(self) -> list[Read]:
        """Return the reads one by one."""
        tokens: Iterable[int] = repeat(self.token)
        if self.transactions is not None:
            tokens = [varint.decode(piece, 0, len(piece))[0] for piece in self.transactions]
        return [
            Read(self.version, token, self.ledger_id, entry_id)
            for token, entry_id in zip(tokens, self.entry_ids, strict=False)
        ]


class BatchRead(Request):
    """Read entries from an id on; v2 only.

    ``max_count`` of 0 or less means as many as fit; ``max_size_bytes`` bounds the answer.
    """

    __slots__ = (
        "first_entry_id",
        "is_fencing",
        "is_high_priority",
        "ledger_id",
        "master_key",
        "max_count",
        "max_size_bytes",
        "request_id",
    )

    operation = Operation.BATCH_READ_ENTRY

    def __init__(
        self,
        token: int,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        request_id: int,
        max_count: int,
        max_size_bytes: int,
        is_high_priority: bool = False,
        is_fencing: bool = False,
        master_key: bytes | None = None,
    ) -> None:
        self.version = 2
        self.token = token
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.request_id = request_id
        self.max_count = max_count
        self.max_size_bytes = max_size_bytes
        self.is_high_priority = is_high_priority
        self.is_fencing = is_fencing
        self.master_key = master_key


class WriteLAC(Request):
    """Store an explicit last-add-confirmed packet, ``packet``, which says ``lac``."""

    __slots__ = ("lac", "ledger_id", "master_key", "packet")

    operation = Operation.WRITE_LAC

    def __init__(
        self, token: int, ledger_id: LedgerId, lac: EntryId, master_key: bytes, packet: bytes
    ) -> None:
        super().__init__(3, token)
        self.ledger_id = ledger_id
        self.lac = lac
        self.master_key = master_key
        self.packet = packet


class _OfLedger(Request):
    __slots__ = ("ledger_id",)

    def __init__(self, token: int, ledger_id: LedgerId) -> None:
        super().__init__(3, token)
        self.ledger_id = ledger_id


class ReadLAC(_OfLedger):
    """Return the explicit last add confirmed and the last entry."""

    __slots__ = ()
    operation = Operation.READ_LAC


class ForceLedger(_OfLedger):
    """Make everything acknowledged so far of a ledger durable."""

    __slots__ = ()
    operation = Operation.FORCE_LEDGER


class ListEntries(_OfLedger):
    """Say which entries of a ledger are here."""

    __slots__ = ()
    operation = Operation.GET_LIST_OF_ENTRIES_OF_LEDGER


class BookieInfo(Request):
    """Say how much disk there is; ``requested`` has bit 1 for total, bit 2 for free."""

    __slots__ = ("requested",)

    operation = Operation.GET_BOOKIE_INFO

    def __init__(self, token: int, requested: int) -> None:
        super().__init__(3, token)
        self.requested = requested


class Auth(Request):
    """A step of authentication: ``plugin`` names its kind."""

    __slots__ = ("payload", "plugin")

    operation = Operation.AUTH

    def __init__(self, version: int, token: int, plugin: str, payload: bytes) -> None:
        super().__init__(version, token)
        self.plugin = plugin
        self.payload = payload


class StartTLS(Request):
    """Go on with TLS on this connection."""

    __slots__ = ()

    operation = Operation.START_TLS

    def __init__(self, token: int) -> None:
        super().__init__(3, token)


class Unsupported(Request):
    """A request that must be answered with ``status`` and not be carried out.

    ``refused`` is the request itself, for its answer's layout, where it could be read.
    """

    __slots__ = ("operation", "refused", "status")

    def __init__(
        self,
        version: int,
        token: int,
        operation: Operation,
        status: Status,
        refused: Request | None = None,
    ) -> None:
        super().__init__(version, token)
        self.operation = operation
        self.status = status
        self.refused = refused


class LargeAdd(NamedTuple):
    """An add of which so much has come that it is known: all but its entry."""

    entry_at: int
    """Where the entry begins in the frame, whose rest it is."""
    request: Callable[[bytes], Request]
    """Makes the request of the entry with its size in front."""
