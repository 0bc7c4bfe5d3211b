"""What can be set on a bookie's server side, with units in the names and safe defaults.

Pure values: the configuration room reads files and maps the peer's keys onto these fields; the
options of journal, index and caches belong to the storage and travel in ``storage``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quorumbook.env import TlsOptions
from quorumbook.errors import ConfigError
from quorumbook.ids import DEFAULT_BOOKIE_PORT, MAX_FRAME_SIZE_BYTES, BookieId
from quorumbook.storage.gc.decisions import GcOptions
from quorumbook.storage.options import StorageOptions
from quorumbook.storage.scrub.decisions import ScrubOptions

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions:
    """One bookie: where it listens, where it keeps its data, and all its limits."""

    # Where the data is.
    #: Each best on a disk of its own, in the order of their marks; ledgers are spread over them.
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    #: Where a bookie that was the peer's kept its index, by its cookie; nothing is written there.
    index_directories: tuple[str, ...] = ()
    #: Journal and cache sizes, flush interval and so on.
    storage: StorageOptions = field(default_factory=StorageOptions)
    #: Garbage collection and compaction.
    gc: GcOptions = field(default_factory=GcOptions)
    #: The search for damage, and how it is followed up.
    scrub: ScrubOptions = field(default_factory=ScrubOptions)

    # Where it is found.  Port 0 takes a free one.
    host: str = "127.0.0.1"
    port: int = DEFAULT_BOOKIE_PORT
    #: What clients connect to, if it is not ``host`` (which may be 0.0.0.0).
    advertised_host: str | None = None
    #: The registered name; None: ``<advertised host>:<port>``.
    bookie_id: BookieId | None = None
    #: What it carries, for ledgers that are confined to labels.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Accept new empty ledger directories next to the known ones.
    allow_storage_expansion: bool = False
    #: Go on where a known directory lost its cookie, and perhaps all else.
    stamp_missing_cookies: bool = False

    # Metrics and health over HTTP; None or 0: off.  -1 takes a free port.
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    #: Further names by which requests may ask for it, and the file with tokens for changes.
    http_names: tuple[str, ...] = ()
    http_token_file: str = field(default="", repr=False)

    # Who may come in.
    #: None: TLS is not offered.
    tls: TlsOptions | None = None
    #: An authentication plug-in's name, or ``module:Class``; empty: everybody may come in.
    auth_plugin: str = ""
    #: What the plug-in is made with.
    auth_settings: str = field(default="", repr=False)
    #: Roles of which a principal must have one; empty: any will do.
    authorized_roles: tuple[str, ...] = ()
    #: A connection must have switched to TLS and authenticated after this time.
    login_timeout_s: float = 10.0
    #: The largest frame before that.
    max_login_frame_bytes: int = 64 * 1024

    # Limits of one connection.
    max_frame_bytes: int = MAX_FRAME_SIZE_BYTES
    #: Adds of one connection that are not answered yet; above it the connection is not read.
    max_connection_add_bytes: int = 32 * _MB
    #: Answers of one connection that may wait for its peer; above it no request is begun.
    high_connection_answer_bytes: int = 4 * _MB
    #: Above it the peer is given up.
    max_connection_answer_bytes: int = 64 * _MB
    #: Without any progress in reading its answers for this long, the peer is given up.
    answer_timeout_s: float = 30.0
    #: A frame that was begun must be complete after this time.
    frame_timeout_s: float = 120.0
    #: Long polls of one connection that may wait at a time.
    max_connection_long_polls: int = 10_000
    #: Longest time a long poll waits, whatever it asks for.
    max_long_poll_timeout_s: float = 300.0

    # Limits of the bookie.
    #: Connections in all, from one address, and without a request so far; 0: by the descriptors
    #: that the operating system allows (``places.py``).
    max_connections: int = 0
    max_connections_by_address: int = 0
    max_unproven_connections: int = 0
    #: Long polls of all connections that may wait at a time.
    max_long_polls: int = 50_000
    #: Adds of all connections that are not answered yet.
    max_add_bytes: int = 128 * _MB
    #: Answers of all connections that are being made or that their peers have not taken.
    max_answer_bytes: int = 64 * _MB
    #: Bytes of begun frames of all connections; above it the oldest begun frame is given up.
    max_partial_frame_bytes: int = 128 * _MB
    #: How long an add may wait for room in the write cache before "too many requests".
    max_add_delay_s: float = 10.0
    #: Bytes of one batch read's answer.
    max_batch_read_bytes: int = MAX_FRAME_SIZE_BYTES
    #: Bytes of entries that the reads of one connection may have under way.
    max_read_bytes: int = 16 * _MB
    #: How long a read that finds nothing may wait for adds on their way before it is denied.
    max_read_delay_s: float = 2.0

    # Disks.
    disk_check_interval_s: float = 10.0
    #: A disk that is fuller than this makes the bookie read-only.
    max_disk_usage: float = 0.95
    #: It is writable again when all disks are at most this full.
    disk_usage_writable: float = 0.90
    #: Free space below which even recovery and high-priority adds are refused.
    min_high_priority_free_bytes: int = 64 * _MB
    #: Never take plain adds.
    force_read_only: bool = False

    #: How long a clean stop waits for requests under way.
    stop_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse values that contradict each other."""
        if not self.journal_directories or not self.ledger_directories:
            raise ConfigError("a bookie needs at least one journal and one ledger directory")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not between 0 and 65535")
        if not 0 < self.disk_usage_writable <= self.max_disk_usage <= 1:
            raise ConfigError(
                "disk_usage_writable must be above 0 and at most max_disk_usage, which is at most 1"
            )
        for name in (
            "max_connection_add_bytes",
            "max_add_bytes",
            "max_answer_bytes",
            "max_batch_read_bytes",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0")
        if self.high_connection_answer_bytes > self.max_connection_answer_bytes:
            raise ConfigError(
                "high_connection_answer_bytes must be at most max_connection_answer_bytes"
            )
