"""Every option there is, in the order of the documentation.

Each is declared where it is used, as a field of a class of ``Options``; those that only choose
what a command does are declared here.  A peer's key that stands for several of ours, or means
something else there, is left out rather than bent.  The tidy test holds
``docs/configuration.md`` against this table.
"""

from __future__ import annotations

from quorumbook.admin.options import AdminOptions
from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions, WorkerOptions
from quorumbook.bookie.options import BookieOptions, HttpOptions
from quorumbook.client.options import ClientOptions, NewLedgerOptions
from quorumbook.env.tls import TlsOptions
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.options import Kind, Option, Options
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions

_MB = 1024 * 1024

#: What makes a bookie, auto-recovery and a client.
CLASSES: tuple[type[Options], ...] = (
    BookieOptions, StorageOptions, GcOptions, ScrubOptions, RecoveryOptions, AuditorOptions,
    WorkerOptions, NewLedgerOptions, ClientOptions, PlacementOptions, TlsOptions, HttpOptions,
    AdminOptions,
)  # fmt: skip

_OF_COMMANDS = (
    Option(
        "metadata", "uri", Kind.TEXT, "sqlite:///quorumbook-data/metadata.db",
        "Where the cluster's metadata is.",
        peer_key="metadataServiceUri",
    ),
    Option(
        "storage", "peer_storage", Kind.TEXT, "",
        "The storage of the Java bookie that the directories come from and go back to; empty:"
        " it is found out.",
        choices=("", "sorted", "db"),
    ),
    Option(
        "background", "io_rate_bytes", Kind.SIZE, 20 * _MB,
        "Bytes a second that compaction, scrubbing and replication may read and write together; "
        "0: no limit.",
        minimum=0,
    ),
    Option(
        "recovery", "in_bookie", Kind.SWITCH, False,
        "Whether `bookie run` runs auto-recovery in its own process as well.",
        peer_key="autoRecoveryDaemonEnabled",
    ),
    Option(
        "admin", "in_bookie", Kind.SWITCH, False,
        "Whether `bookie run` serves the HTTP API and the console as well, in a process beside the "
        "bookie.",
    ),
    Option(
        "tls", "enabled", Kind.SWITCH, False,
        "A bookie offers TLS on its port; a client insists on it.",
    ),
    Option(
        "tls", "key_format", Kind.TEXT, "PEM",
        "The form of the key; other stores have to be converted.",
        peer_key="tlsKeyStoreType", choices=("PEM",),
    ),
    Option(
        "tls", "ca_format", Kind.TEXT, "PEM",
        "The form of that file; other stores have to be converted.",
        peer_key="tlsTrustStoreType", choices=("PEM",),
    ),
    Option(
        "http", "enabled", Kind.SWITCH, True,
        "Serve /metrics, /heartbeat and /is_ready.",
        peer_key="httpServerEnabled",
    ),
    Option(
        "log", "format", Kind.TEXT, "text",
        "How a line is written: for people, or as a JSON object.",
        choices=("text", "json"),
    ),
    Option(
        "log", "level", Kind.LIST, (),
        "From which level on lines are written, debug, info, warning or error, and ROOM=LEVEL for "
        "one room; empty: info.",
    ),
)  # fmt: skip

_SECTIONS = (
    "metadata", "bookie", "storage", "gc", "scrub", "background", "recovery", "client",
    "placement", "tls", "http", "admin", "log",
)  # fmt: skip

OPTIONS: tuple[Option, ...] = tuple(
    sorted(
        (*_OF_COMMANDS, *(each for kind in CLASSES for each in kind.declared())),
        key=lambda each: _SECTIONS.index(each.section),
    )
)
