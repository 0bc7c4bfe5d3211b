"""From an exception to one line, what to do about it, and an exit code.

0    done
1    the operation failed
2    wrong use: an unknown option, a bad value, a contradiction in the configuration, or a part
     of the package that is not installed
3    not there: the ledger, the entry, the cluster
4    not possible for now: the same command may succeed later
5    refused: wrong password, fenced, closed, in use by somebody else
6    done, and what was looked for was found: a difference, damage, a gap
70   a bug of ours
130  interrupted with Ctrl-C
141  whoever read the output went away
"""

from __future__ import annotations

import errno
from typing import NamedTuple

import click

from quorumbook import errors as e

FAILED, WRONG_USE, NOT_THERE, NOT_NOW, REFUSED, FOUND, BUG, INTERRUPTED, OUTPUT_GONE = (
    1, 2, 3, 4, 5, 6, 70, 130, 141,
)  # fmt: skip


class DifferenceFoundError(e.QuorumbookError):
    """What was compared differs, or something of it is missing."""

    code = -1


class UnknownNameError(click.UsageError):
    """A name was given of something that is not there."""

    exit_code = NOT_THERE


class Verdict(NamedTuple):
    """How a command ends: exit code, what happened, what to do."""

    code: int
    message: str
    fix: str = ""

    def line(self) -> str:
        """Return both sentences as one line."""
        text = " ".join(self.message.split())
        return f"{text}; {self.fix}" if self.fix and self.fix not in text else text


_COPY_OR_NEW = (
    "bring the file back from a copy, or start a new bookie in another --data-dir on another"
    " --port: the other replicas have its entries"
)
_BOOKIES = "`quorumbook bookie ls` shows which bookies are there"

#: The first class that fits decides.
_FIXES: tuple[tuple[type[BaseException], int, str], ...] = (
    (e.ConfigError, WRONG_USE, ""),
    (e.LocalProtocolError, WRONG_USE, ""),
    (
        e.ClusterNotInitializedError,
        NOT_THERE,
        "`quorumbook standalone` makes one here and runs it",
    ),
    (e.ClusterExistsError, REFUSED, "it can be used as it is"),
    (e.MetadataMoveError, REFUSED, ""),
    (e.ForeignLayoutError, REFUSED, ""),
    (e.NoSuchLedgerInMetadataError, NOT_THERE, "`quorumbook ledger ls` lists the ledgers"),
    (e.NoSuchEntryError, NOT_THERE, "`quorumbook ledger show ID` says what the ledger holds"),
    (e.NoSuchLedgerError, NOT_THERE, "`quorumbook ledger show ID` says who should hold it"),
    (e.NoSuchNodeError, NOT_THERE, ""),
    (e.NoSuchBookieError, NOT_THERE, _BOOKIES),
    (DifferenceFoundError, FOUND, ""),
    (
        e.NotEnoughBookiesError,
        NOT_NOW,
        "start another bookie (`quorumbook bookie ls` shows those that are there), or use fewer: a"
        " ledger by --ensemble-size, --write-quorum and --ack-quorum, a stream by its policy",
    ),
    (
        e.MetadataUnavailableError,
        NOT_NOW,
        "check --metadata, and that what it names can be reached",
    ),
    (e.SessionExpiredError, NOT_NOW, "this process was paused for too long; run it again"),
    (e.NoAuditorError, NOT_NOW, "`quorumbook recovery status` says how it stands"),
    (
        e.NotAdmittedError,
        REFUSED,
        "say how to come in by tls.enabled and tls.ca_file, or client.auth_plugin and"
        " client.auth_settings",
    ),
    (e.UnauthorizedError, REFUSED, "give the ledger's password with --password"),
    (e.LedgerFencedError, REFUSED, "somebody opened the ledger with recovery; write a new one"),
    (e.LedgerClosedError, REFUSED, "`quorumbook ledger write` without an id makes a new one"),
    (e.LedgerExistsError, REFUSED, "give another --ledger-id, or none to have one chosen"),
    (e.DirectoryLockedError, REFUSED, "stop it, or use another --data-dir"),
    (e.CookieError, REFUSED, ""),
    (e.ForeignDirectoryError, REFUSED, ""),
    (e.CorruptJournalError, FAILED, _COPY_OR_NEW),
    (e.CorruptEntryLogError, FAILED, _COPY_OR_NEW),
    (e.CorruptStateError, FAILED, ""),
    (e.MissingEntryLogError, NOT_THERE, ""),
    (e.MetadataFormatError, FAILED, "check --metadata, or bring the file back from a copy"),
    (e.ReadOnlyBookieError, NOT_NOW, _BOOKIES),
    (e.SecurityError, REFUSED, ""),
    (e.BookieUnavailableError, NOT_NOW, _BOOKIES),
    (e.ReadFailedError, NOT_NOW, _BOOKIES),
    (e.LedgerRecoveryError, NOT_NOW, _BOOKIES),
    (e.DiskFullError, NOT_NOW, "free some space"),
    (e.InternalError, BUG, "run it again with -v and report the trace"),
)

#: Errors of streams, by the peer's status: their classes are not imported for other commands.
_STREAM_STATUSES = {
    403: REFUSED,
    504: REFUSED,
    506: NOT_THERE,
    510: NOT_THERE,
    512: REFUSED,
    522: REFUSED,
    527: NOT_THERE,
    602: WRONG_USE,
    603: REFUSED,
    630: NOT_THERE,
    631: REFUSED,
    632: REFUSED,
}


def verdict(error: BaseException) -> Verdict:
    """Judge an exception."""
    if isinstance(error, KeyboardInterrupt):
        return Verdict(INTERRUPTED, "interrupted")
    for kind, code, fix in _FIXES:
        if isinstance(error, kind):
            return Verdict(code, str(error), fix)
    if isinstance(error, e.QuorumbookError):
        code = NOT_NOW if error.retriable else FAILED
        return Verdict(_STREAM_STATUSES.get(error.code, code), str(error))
    if isinstance(error, BrokenPipeError):
        return Verdict(OUTPUT_GONE, "")
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, MemoryError):
        return Verdict(FAILED, "out of memory", "free some, or write and read smaller portions")
    return Verdict(
        BUG,
        f"{type(error).__name__}: {error}",
        "this is a bug; run it again with -v and report the trace",
    )


def _system_error(error: OSError) -> Verdict:
    reason = error.strerror or str(error) or "the other side did not answer in time"
    if error.errno == errno.EADDRINUSE:
        return Verdict(REFUSED, reason, "choose another port with --port")
    if error.filename:
        return Verdict(FAILED, f"{error.filename}: {reason}")
    if error.errno == errno.ENOSPC:
        return Verdict(FAILED, f"the output cannot be written: {reason}", "free some space")
    return Verdict(FAILED, reason)
