"""Every error Quorumbook raises, in one tree, with the result codes of the Java client.

    QuorumbookError
    ├── ConfigError                    an option is unknown, out of bounds or contradicts another
    ├── ProtocolError
    │   ├── LocalProtocolError         we, or our caller, asked for something illegal
    │   └── RemoteProtocolError        the other side broke the protocol
    │       └── FrameTooLargeError
    ├── BookieError                    a bookie refused: one class for each wire status
    │   ├── BadRequestError  NoSuchLedgerError  NoSuchEntryError  BookieIOError
    │   ├── UnauthorizedError (NotAdmittedError)  UnsupportedVersionError  LedgerFencedError
    │   └── ReadOnlyBookieError  TooManyRequestsError  UnknownLedgerStateError
    ├── BookieUnavailableError         no answer at all
    │   ├── ConnectFailedError  ConnectionLostError
    │   └── RequestTimeoutError  SecurityError
    ├── LedgerError                    the outcome of an operation over several bookies
    │   ├── NotEnoughBookiesError  AddQuorumTimeoutError  ReadFailedError  WriteFailedError
    │   ├── LedgerClosedError  LedgerExistsError  DuplicateEntryIdError  LedgerIdOverflowError
    │   └── LedgerRecoveryError  UnclosedFragmentError  DigestMismatchError  ClientClosedError
    │       BackpressureError
    ├── MetadataError                  the metadata store
    │   ├── NoSuchNodeError  NodeExistsError  NodeNotEmptyError  MetadataVersionConflict
    │   ├── NoSuchLedgerInMetadataError
    │   ├── MetadataFormatError  SessionExpiredError  MetadataUnavailableError
    │   ├── MetadataUnauthorizedError  MetadataFateUnknownError
    │   ├── ClusterNotInitializedError  ClusterExistsError  MetadataMoveError
    │   └── ForeignLayoutError
    ├── NoSuchBookieError              nothing in the cluster knows the bookie
    ├── NoAuditorError                 nobody looks after the cluster's ledgers, or may
    ├── StorageError                   a bookie's own disk, with path and offset
    │   ├── CorruptJournalError  CorruptEntryLogError  CorruptIndexError  CorruptStateError
    │   ├── MissingEntryLogError  ShortReadError  DiskFullError
    │   ├── NoWritableDirectoryError  DirectoryLockedError
    │   └── CookieError ── CookieMismatchError  CookieMissingError
    └── InternalError                  an invariant of ours does not hold: a bug

What a caller does with them: ``BookieError | BookieUnavailableError`` means try another bookie;
``LedgerFencedError`` means another client took the ledger over, stop; ``MetadataVersionConflict``
means read again and decide; ``retriable`` is true where the same call may succeed later.

A code of the Java client that no class stands for folds into the nearest class, and the received
number stays on the instance as ``code``.
"""

from __future__ import annotations

from typing import ClassVar

from quorumbook.ids import BookieId, EntryId, LedgerId


class QuorumbookError(Exception):
    """Base of all; ``code`` is the result code of the Java client."""

    code: int = -999
    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        ledger_id: LedgerId | None = None,
        entry_id: EntryId | None = None,
        bookie_id: BookieId | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message or type(self).__name__)
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie_id = bookie_id
        if code is not None:
            self.code = code


class ConfigError(QuorumbookError):
    """An option is unknown, has a bad value, or contradicts another; the message names it."""

    code = -14


class ProtocolError(QuorumbookError):
    """Bytes or calls that the protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """The program, or the library itself, asked for something that is never allowed."""

    code = -100


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol; its connection is closed."""

    code = -8


class FrameTooLargeError(RemoteProtocolError):
    """A frame announces more bytes than allowed."""


class BookieError(QuorumbookError):
    """A bookie answered with a refusal."""


class BadRequestError(BookieError):
    """EBADREQ: the bookie does not understand or support the request."""

    code = -14


class NoSuchLedgerError(BookieError):
    """ENOLEDGER: the bookie states that it holds nothing of the ledger."""

    code = -7


class NoSuchEntryError(BookieError):
    """ENOENTRY: the bookie states that it does not hold the entry."""

    code = -13


class BookieIOError(BookieError):
    """EIO: the bookie could not read or write; it says nothing about what exists."""

    code = -1
    retriable = True


class UnauthorizedError(BookieError):
    """EUA: wrong password, or not authenticated."""

    code = -102


class NotAdmittedError(UnauthorizedError):
    """A bookie's EUA: it wants TLS or authentication, or has another key of the ledger.

    The client compares passwords with the metadata before it asks, so a wrong one seldom is it.
    """


class UnsupportedVersionError(BookieError):
    """EBADVERSION: protocol version not spoken."""

    code = -16


class LedgerFencedError(BookieError):
    """EFENCED: another client opened the ledger with recovery; this writer must stop.

    The outcome of adds in flight is unknown: recovery may have kept them.
    """

    code = -101


class ReadOnlyBookieError(BookieError):
    """EREADONLY: the bookie takes no new entries."""

    code = -104
    retriable = True


class TooManyRequestsError(BookieError):
    """ETOOMANYREQUESTS: the bookie sheds load."""

    code = -105
    retriable = True


class UnknownLedgerStateError(BookieError):
    """EUNKNOWNLEDGERSTATE: the bookie may have lost data of this ledger and will not guess."""

    code = -108
    retriable = True


class BookieUnavailableError(QuorumbookError):
    """No answer from a bookie; the request may or may not have been carried out."""

    code = -8
    retriable = True


class ConnectFailedError(BookieUnavailableError):
    """The connection could not be made, or the bookie is not registered."""


class ConnectionLostError(BookieUnavailableError):
    """The connection broke while the request was under way."""


class RequestTimeoutError(BookieUnavailableError, TimeoutError):
    """The bookie did not answer in time."""

    code = -23


class SecurityError(BookieUnavailableError):
    """TLS or authentication failed; the message names the cause and what to do about it."""

    code = -24
    retriable = False


class LedgerError(QuorumbookError):
    """The outcome of a client operation over several bookies."""


class NotEnoughBookiesError(LedgerError):
    """Too few writable bookies for the ensemble, or too few left to replace a failed one."""

    code = -6
    retriable = True


class AddQuorumTimeoutError(LedgerError, TimeoutError):
    """An add did not reach its ack quorum in time; its outcome is unknown."""

    code = -21


class ReadFailedError(LedgerError):
    """No replica gave the entry, and not all of them deny having it."""

    code = -1
    retriable = True


class WriteFailedError(LedgerError):
    """An add failed for good."""

    code = -12


class LedgerClosedError(LedgerError):
    """The ledger is closed, or this handle is."""

    code = -11


class LedgerExistsError(LedgerError):
    """A ledger of this id exists already."""

    code = -20


class DuplicateEntryIdError(LedgerError):
    """The writer used an entry id twice."""

    code = -22


class LedgerIdOverflowError(LedgerError):
    """All ledger ids of this width have been used."""

    code = -106


class LedgerRecoveryError(LedgerError):
    """The ledger could not be recovered now: too few bookies gave a definite answer."""

    code = -10
    retriable = True


class UnclosedFragmentError(LedgerError):
    """The fragment is still being written."""

    code = -103


class DigestMismatchError(LedgerError):
    """An entry's bytes do not match its digest, or it is not the entry that was asked for."""

    code = -5


class ClientClosedError(LedgerError):
    """The client is closed."""

    code = -19


class BackpressureError(LedgerError):
    """The append window is full; wait with ``drain()`` and try again."""

    code = -105
    retriable = True


class MetadataError(QuorumbookError):
    """The metadata store refused or failed."""

    code = -18


class NoSuchNodeError(MetadataError):
    """The metadata node does not exist."""


class NodeExistsError(MetadataError):
    """The metadata node exists already."""


class NodeNotEmptyError(MetadataError):
    """The metadata node still has children."""


class NoSuchLedgerInMetadataError(MetadataError):
    """There is no ledger of this id (deleted, or never created)."""

    code = -25


class MetadataVersionConflict(MetadataError):  # noqa: N818 - a conflict to decide on, not a defect
    """Somebody else changed the node first; read again and decide."""

    code = -17
    retriable = True


class MetadataFormatError(MetadataError):
    """The bytes of a metadata node cannot be understood."""

    code = -107


class SessionExpiredError(MetadataError):
    """The session with the metadata store has ended, and what it registered there is gone."""

    code = -9


class MetadataUnavailableError(MetadataError):
    """The metadata store cannot be reached."""

    code = -9
    retriable = True


class MetadataFateUnknownError(MetadataUnavailableError):
    """The store answers again, but nothing tells whether a write whose answer was lost was done.

    Reading what stands there now, and deciding on that, is the way on.
    """


class MetadataUnauthorizedError(MetadataError):
    """The metadata store refuses our credentials, or does not let us use this node."""

    code = -102


class ClusterNotInitializedError(MetadataError):
    """The metadata store holds no cluster; the message names the command that makes one."""


class ClusterExistsError(MetadataError):
    """The metadata store already holds a cluster."""


class ForeignLayoutError(MetadataError):
    """Ledgers lie where the cluster's layout expects none, so lists of ledgers are incomplete."""


class MetadataMoveError(MetadataError):
    """Metadata cannot be moved: the source is in use, or the target is not empty."""


class NoSuchBookieError(QuorumbookError):
    """Nothing in the cluster knows the bookie: it is not registered, and has no cookie."""


class NoAuditorError(QuorumbookError):
    """Nobody audits the cluster's ledgers now, or auditing is switched off."""

    retriable = True


class StorageError(QuorumbookError):
    """A bookie's own disk; ``path`` and ``offset`` say where."""

    code = -1

    def __init__(self, message: str = "", *, path: str = "", offset: int | None = None) -> None:
        where = f" ({path}{f' at byte {offset}' if offset is not None else ''})" if path else ""
        super().__init__(f"{message}{where}")
        self.path = path
        self.offset = offset


class CorruptJournalError(StorageError):
    """A journal is damaged in a way that a crash cannot explain."""


class CorruptEntryLogError(StorageError):
    """An entry log holds bytes that differ from what was written."""


class CorruptIndexError(StorageError):
    """The index is damaged, or of a newer release."""


class CorruptStateError(StorageError):
    """A mark, state or cookie file is damaged."""


class MissingEntryLogError(StorageError):
    """No ledger directory has the entry log: it was compacted away, or is lost."""


class ShortReadError(StorageError):
    """A file ends before the bytes that must be there."""


class DiskFullError(StorageError):
    """No space is left on the device."""

    retriable = True


class NoWritableDirectoryError(StorageError):
    """No configured directory can take data."""


class DirectoryLockedError(StorageError):
    """Another bookie runs on this directory."""


class ForeignDirectoryError(StorageError):
    """A Java bookie keeps the directories, or a take-over was not finished."""


class CookieError(StorageError):
    """The bookie's identity does not fit."""


class CookieMismatchError(CookieError):
    """A cookie names another bookie, other directories or another cluster."""


class CookieMissingError(CookieError):
    """A cookie that must be there is missing."""


class InternalError(QuorumbookError):
    """Something that must always be true is not. Please report this bug with its stack trace."""
