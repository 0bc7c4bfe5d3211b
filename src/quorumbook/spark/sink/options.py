"""What writing can be told; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quorumbook.config import Kind
from quorumbook.errors import ConfigError
from quorumbook.protocol.digest import DigestType
from quorumbook.spark.connection import CONNECTION_OPTIONS, Connection
from quorumbook.spark.options import WRITES, Use, option, parse
from quorumbook.spark.request.read_options import STREAM, TXN_ROOT
from quorumbook.streams.format.names import check_stream_name
from quorumbook.streams.transactions import CommitOptions, DraftOptions

_MB = 1024 * 1024
#: What a task has no more of than this goes to the driver with its message, which may be one of ten
#: thousand.
HANDED_BYTES = 64 * 1024

WRITE_OPTIONS = (
    STREAM,
    option(
        "target", Kind.TEXT, "stream",
        "Whether rows become records of streams, or entries of ledgers of their own.",
        WRITES, choices=("stream", "ledger"),
    ),
    option(
        "delivery", Kind.TEXT, "transaction",
        "Whether all rows of a batch appear in one step, or are **append**ed as they come, "
        "each of them once.",
        WRITES, choices=("transaction", "append"),
    ),
    option(
        "txnAppId", Kind.TEXT, "",
        "The application that batches are counted for; a streaming query's id if not given.",
        WRITES,
    ),
    option(
        "txnVersion", Kind.INTEGER, -1,
        "With txnAppId: the batch's number; one that is not above the last one is not written.",
        (Use.WRITE,), minimum=-1,
    ),
    option(
        "txnReset", Kind.SWITCH, False,
        "Use a `txnAppId` that another query or another checkpoint has used before.",
        WRITES,
    ),
    TXN_ROOT,
    option(
        "attemptTtl", Kind.DURATION, 24 * 3600.0,
        "Ledgers that a task has written to more recently are kept when a later commit cleans up.",
        WRITES, minimum=1,
    ),
    option(
        "lockWait", Kind.DURATION, 60.0,
        "How long other writers may keep a stream's lock.", WRITES, minimum=0,
    ),
    option(
        "takeover", Kind.SWITCH, False,
        "Complete a segment that another writer left in progress, by fencing that writer out, "
        "also one that keeps the lock beyond `lockWait`; otherwise it is an error.", WRITES,
    ),
    option(
        "replace", Kind.SWITCH, False,
        "What the streams that get rows had before is truncated in the same step.", (Use.WRITE,),
    ),
    option(
        "createStream", Kind.SWITCH, False, "Make streams that are missing.", WRITES,
    ),
    option(
        "cutTimestamps", Kind.SWITCH, False,
        "Event times are cut to the milliseconds that records keep; otherwise a finer one is an "
        "error.", WRITES,
    ),
    option(
        "entryTargetBytes", Kind.SIZE, 64 * 1024,
        "Records are packed into entries of about this many bytes.", WRITES,
        minimum=1, maximum=1_000_000,
    ),
    option(
        "maxPendingBytes", Kind.SIZE, 16 * _MB,
        "How much a task has on its way to bookies at most.", WRITES, minimum=2 * _MB,
    ),
    option(
        "maxLedgerBytes", Kind.SIZE, 1024 * _MB,
        "A task begins another ledger when one has this many bytes.", WRITES, minimum=1,
    ),
    option(
        "ensembleSize", Kind.INTEGER, 3,
        "With target=ledger: bookies that share a ledger.", WRITES, minimum=1,
    ),
    option(
        "writeQuorum", Kind.INTEGER, 3,
        "With target=ledger: bookies that store each entry.", WRITES, minimum=1,
    ),
    option(
        "ackQuorum", Kind.INTEGER, 2,
        "With target=ledger: bookies that must have synced an entry.", WRITES, minimum=1,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one writer; no secret in it."""

    connection: Connection
    target: Literal["stream", "ledger"]
    #: Whether rows are appended as they come.
    is_appending: bool
    #: All rows go to this one; empty: the column ``stream`` says where.
    stream: str
    application: str
    #: -1: not given.
    version: int
    root: str
    #: Where the query keeps how far it is; empty: it is a frame, or Spark's configuration says it.
    checkpoint: str
    #: Whether event times lose what is finer than records keep.
    cuts_times: bool
    attempt_ttl_s: float
    commit: CommitOptions
    drafts: DraftOptions

    @classmethod
    def of(cls, given: Mapping[str, str], use: Use) -> WriteOptions:
        """Read them.

        Raises:
            ConfigError: see ``options.parse``; or they contradict each other.
        """
        options = parse(given, (*CONNECTION_OPTIONS, *WRITE_OPTIONS), use)
        target: Literal["stream", "ledger"]
        target = "ledger" if options.text("target") == "ledger" else "stream"
        path = _of_spark(given, "path")
        stream = _stream_of(path, options.text("stream"))
        if target == "ledger" and stream:
            raise ConfigError("target=ledger makes ledgers of rows; it takes no stream")
        is_appending = options.text("delivery") == "append"
        if target == "ledger" and is_appending:
            raise ConfigError("delivery=append is for streams; target=ledger makes transactions")
        application, version = options.text("txnAppId"), options.integer("txnVersion")
        if use is Use.WRITE and bool(application) != (version >= 0):
            raise ConfigError(
                "a batch that may be written again needs both txnAppId and txnVersion (0 and up)"
            )
        digest = options.text("digestType")
        return cls(
            connection=Connection.of(options),
            target=target,
            is_appending=is_appending,
            stream=stream,
            application=application,
            version=version,
            root=options.text("txnRoot"),
            checkpoint=_of_spark(given, "checkpointlocation"),
            cuts_times=options.flag("cutTimestamps"),
            attempt_ttl_s=options.seconds("attemptTtl"),
            commit=CommitOptions(
                may_reset=options.flag("txnReset"),
                lock_wait_s=options.seconds("lockWait"),
                takes_over=options.flag("takeover"),
                is_final=use is Use.WRITE and not application,
                replaces=use is Use.WRITE and options.flag("replace"),
            ),
            drafts=DraftOptions(
                entry_bytes=options.integer("entryTargetBytes"),
                max_ledger_bytes=options.integer("maxLedgerBytes"),
                max_pending_bytes=options.integer("maxPendingBytes"),
                handed_bytes=HANDED_BYTES,
                creates_streams=options.flag("createStream"),
                shape=(
                    options.integer("ensembleSize"),
                    options.integer("writeQuorum"),
                    options.integer("ackQuorum"),
                ),
                digest_type=DigestType[digest.upper()] if digest else DigestType.CRC32C,
            ),
        )


def _of_spark(given: Mapping[str, str], name: str) -> str:
    """Return an option of Spark's own, however it is written; empty: it is not given."""
    return next((value for each, value in given.items() if each.lower() == name), "")


def _stream_of(path: str, named: str) -> str:
    kind, _, name = path.partition(":")
    if path and kind != "stream":
        raise ConfigError(f"path {path!r} is nothing to write to: save('stream:NAME')")
    if "://" in name + named:
        raise ConfigError(
            f"stream {name or named!r} is an address: all rows go to streams of one namespace, "
            "since one step cannot change several metadata stores; give its address as "
            "metadataServiceUri, and the stream by name"
        )
    if name and named:
        raise ConfigError(f"path {path!r} and the option stream both say where rows go")
    return check_stream_name(name or named) if name or named else ""
