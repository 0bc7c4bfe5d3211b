"""What a bookie answers: its status, the number on the wire, the exception it becomes.

The numbers of ``Status`` are those of the v3 protocol; v2 has small codes of its own.  v2 clients
of the peer cannot read "unknown ledger state" (their connection breaks), so it goes out as an I/O
error there; a v2 client of ours reads both.
"""

from __future__ import annotations

from enum import IntEnum

from quorumbook.errors import (
    BadRequestError,
    BookieError,
    BookieIOError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotAdmittedError,
    QuorumbookError,
    ReadOnlyBookieError,
    TooManyRequestsError,
    UnknownLedgerStateError,
    UnsupportedVersionError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId


class Status(IntEnum):
    """What a bookie says about a request, with the numbers of v3."""

    OK = 0
    NO_LEDGER = 402
    NO_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    TOO_MANY_REQUESTS = 506
    UNKNOWN_LEDGER_STATE = 507


#: What goes out in v2.
V2_CODE: dict[Status, int] = {
    Status.OK: 0,
    Status.NO_LEDGER: 1,
    Status.NO_ENTRY: 2,
    Status.BAD_REQUEST: 100,
    Status.IO_ERROR: 101,
    Status.UNAUTHORIZED: 102,
    Status.BAD_VERSION: 103,
    Status.FENCED: 104,
    Status.READ_ONLY: 105,
    Status.TOO_MANY_REQUESTS: 106,
    Status.UNKNOWN_LEDGER_STATE: 101,
}

#: What a code that came in over v2 means.
STATUS_OF_V2: dict[int, Status] = {
    code: status for status, code in V2_CODE.items() if status is not Status.UNKNOWN_LEDGER_STATE
} | {107: Status.UNKNOWN_LEDGER_STATE}

_ERRORS: dict[Status, tuple[type[BookieError], str]] = {
    Status.NO_LEDGER: (NoSuchLedgerError, "the bookie holds nothing of the ledger"),
    Status.NO_ENTRY: (NoSuchEntryError, "the bookie does not hold the entry"),
    Status.BAD_REQUEST: (BadRequestError, "the bookie does not understand the request"),
    Status.IO_ERROR: (BookieIOError, "the bookie could not read or write"),
    Status.UNAUTHORIZED: (
        NotAdmittedError,
        "the bookie wants TLS or authentication, or it has another key of the ledger",
    ),
    Status.BAD_VERSION: (UnsupportedVersionError, "the bookie does not speak this version"),
    Status.FENCED: (LedgerFencedError, "another client has taken the ledger over"),
    Status.READ_ONLY: (ReadOnlyBookieError, "the bookie takes no new entries"),
    Status.TOO_MANY_REQUESTS: (TooManyRequestsError, "the bookie sheds load"),
    Status.UNKNOWN_LEDGER_STATE: (
        UnknownLedgerStateError,
        "the bookie may have lost data of the ledger",
    ),
}
_STATUSES: tuple[tuple[type[BookieError], Status], ...] = tuple(
    (error, status) for status, (error, _) in _ERRORS.items()
)


def status_of_v2(code: int) -> Status:
    """Return the status of a v2 code; a code nobody defined reads as an I/O error."""
    return STATUS_OF_V2.get(code, Status.IO_ERROR)


def code_of(status: Status) -> int:
    """Return the v2 code that a client knows a status by; ``status_of_v2`` turns it back."""
    return 107 if status is Status.UNKNOWN_LEDGER_STATE else V2_CODE[status]


def status_of_v3(number: int) -> Status:
    """Return the status of a v3 number; a number nobody defined reads as an I/O error."""
    try:
        return Status(number)
    except ValueError:
        return Status.IO_ERROR


def error_for(
    status: Status,
    *,
    ledger_id: LedgerId | None = None,
    entry_id: EntryId | None = None,
    bookie_id: BookieId | None = None,
) -> QuorumbookError:
    """Return the exception that a status other than OK stands for."""
    error, sentence = _ERRORS[status]
    where = [
        f"{name} {value}"
        for name, value in (("ledger", ledger_id), ("entry", entry_id), ("bookie", bookie_id))
        if value is not None
    ]
    message = f"{sentence} ({', '.join(where)})" if where else sentence
    return error(message, ledger_id=ledger_id, entry_id=entry_id, bookie_id=bookie_id)


def status_for(error: BaseException) -> Status:
    """Return what a bookie answers when its work ended with this error.

    Whatever is not a definite refusal is an I/O error: it states nothing about what exists.
    """
    for known, status in _STATUSES:
        if isinstance(error, known):
            return status
    return Status.IO_ERROR
