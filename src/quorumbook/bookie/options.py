"""What can be set on a bookie's server side, with units in the names and safe defaults.

Pure values, declared once for files, commands and documentation; the options of journal, index
and caches belong to the storage and travel in ``storage``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from quorumbook.env import TlsOptions
from quorumbook.errors import ConfigError
from quorumbook.ids import DEFAULT_BOOKIE_PORT, MAX_FRAME_SIZE_BYTES
from quorumbook.options import MS, Kind, Options, option
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions

_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions(Options):
    """Where metrics, health and pages are served."""

    SECTION: ClassVar[str] = "http"

    # fmt: off
    host: str = option(
        "127.0.0.1", "The address they are served on.",
        peer_key="httpServerHost",
    )
    port: int = option(
        0, "The port they are served on; 0 takes a free one, which `bookie ls` shows.",
        minimum=0, maximum=65535, peer_key="httpServerPort",
    )
    names: tuple[str, ...] = option(
        (),
        "Further names by which requests may ask for this server in Host, such as a load "
        "balancer's; its own addresses, http.host and bookie.advertised_host are accepted "
        "anyway.",
    )
    token_file: str = option(
        "",
        "A file with a token on each line. A change over HTTP then carries one, and commands "
        "send the first. Empty: only a server on loopback changes anything.",
        is_secret=True,
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieOptions(Options):
    """One bookie: where it listens, where it keeps its data, and all its limits."""

    SECTION: ClassVar[str] = "bookie"

    # fmt: off
    journal_directories: tuple[str, ...] = option(
        ("quorumbook-data/bookie/journal",),
        "Where journals are, best on disks of their own; ledgers are spread over them by id.",
        peer_key="journalDirectories", section="storage",
    )
    index_directories: tuple[str, ...] = option(
        (), "Where an adopted Java bookie kept its index, if not in the ledger directories.",
        peer_key="indexDirectories", section="storage",
    )
    ledger_directories: tuple[str, ...] = option(
        ("quorumbook-data/bookie/ledgers",), "Where entry logs are; the index is in the first one.",
        peer_key="ledgerDirectories", section="storage",
    )
    host: str = option(
        "127.0.0.1", "The address to listen on; 0.0.0.0 is every address of the host.",
    )
    port: int = option(
        DEFAULT_BOOKIE_PORT, "The port to listen on; 0 takes a free one.",
        minimum=0, maximum=65535, peer_key="bookiePort",
    )
    advertised_host: str = option(
        "", "What clients connect to, if it is not the address listened on.",
        peer_key="advertisedAddress",
    )
    bookie_id: str = option(
        "", "The registered name; empty is advertised host and port.",
        peer_key="bookieId",
    )
    labels: Mapping[str, str] = option(
        {}, "Labels of the bookie, as key=value; a ledger can be confined to bookies with"
            " certain labels.",
    )
    machine: str = option(
        "",
        "The machine that this bookie shares with other bookies, which name the same: writers "
        "never put two replicas of an entry on one machine. Empty: it shares none. "
        "`bookie run --processes` sets it to the advertised host.",
    )
    allow_storage_expansion: bool = option(
        False, "Accept new empty ledger directories next to the known ones.",
        peer_key="allowStorageExpansion",
    )
    stamp_missing_cookies: bool = option(
        False,
        "Start where a directory lost its cookie, and perhaps all else: what the bookie lacks "
        "is unknown until it was copied from others.",
        peer_key="dataIntegrityStampMissingCookies",
    )
    max_frame_bytes: int = option(
        MAX_FRAME_SIZE_BYTES, "Largest frame to accept.",
        minimum=4 * _KB, maximum=_GB, peer_key="nettyMaxFrameSizeBytes",
    )
    max_connection_add_bytes: int = option(
        32 * _MB, "Adds of one connection not answered yet; above it the connection is not read.",
        minimum=1,
    )
    high_connection_answer_bytes: int = option(
        4 * _MB,
        "Bytes of answers that may wait for one client to read them; above it, no further"
        " request of that client begins.",
        minimum=1,
    )
    max_connection_answer_bytes: int = option(
        64 * _MB, "Bytes of answers that may wait for one client to read them; above it, its"
                  " connection is closed.",
        minimum=1,
    )
    answer_timeout_s: float = option(
        30.0, "The connection of a client that reads none of its answers for this long is closed.",
        minimum=0.001,
    )
    frame_timeout_s: float = option(
        120.0, "A frame that was begun must be complete after this time.",
        minimum=0.001,
    )
    idle_timeout_s: float = option(
        0.0,
        "A connection that has asked nothing for this long, and waits for nothing, is closed. 0 "
        "closes none, so clients that write rarely stay connected. Peers that are gone are found "
        "by TCP keep-alive. At max_connections, connections that never asked anything make room "
        "first, then those that rest.",
        minimum=0,
    )
    max_connections: int = option(
        0,
        "Connections in all; 0: as many as the limit of open files allows beside the storage, "
        "up to 20,000.",
        minimum=0,
    )
    max_connections_by_address: int = option(
        0, "Connections from one address, or one IPv6 network of 64 bits; 0: half of all.",
        minimum=0,
    )
    max_unproven_connections: int = option(
        0,
        "Connections that have not authenticated, or not asked anything yet; above it the "
        "oldest goes, of the address with most of them. 0: half of all, up to 4,000.",
        minimum=0,
    )
    max_connection_long_polls: int = option(
        10000, "Long polls of one connection that may wait at a time.",
        minimum=0,
    )
    max_long_poll_timeout_s: float = option(
        300.0, "Longest time a long poll waits, whatever it asks for.",
        minimum=0,
    )
    max_long_polls: int = option(
        50000, "Long polls of all connections that may wait at a time; 0: none.",
        minimum=0,
    )
    max_add_bytes: int = option(
        128 * _MB,
        "Adds of all connections that are not answered yet, and large frames that are coming.",
        minimum=1,
    )
    max_answer_bytes: int = option(
        64 * _MB,
        "Bytes of answers that may be in the making, or wait for clients to read them, over all"
        " connections; above, reads wait.",
        minimum=1,
    )
    max_partial_frame_bytes: int = option(
        128 * _MB,
        "Bytes of begun frames of all connections; above it the oldest frame of the address with "
        "most of them is given up, of connections that have not asked anything yet first.",
        minimum=1,
    )
    max_add_delay_s: float = option(
        10.0, "How long an add may wait for room in the write cache before it is refused.",
        minimum=0, peer_key="dbStorage_maxThrottleTimeMs", peer_unit=MS,
    )
    max_batch_read_bytes: int = option(
        MAX_FRAME_SIZE_BYTES, "Bytes of one batch read's answer.",
        minimum=1, peer_key="maxBatchReadSize",
    )
    max_read_bytes: int = option(
        16 * _MB, "Bytes of entries that the reads of one connection may have under way.",
        minimum=1,
    )
    max_read_delay_s: float = option(
        2.0, "How long a read may wait for adds of its ledger on their way before it says no.",
        minimum=0,
    )
    disk_check_interval_s: float = option(
        10.0, "How often the free space of the disks is looked at.",
        minimum=0.01, peer_key="diskCheckInterval", peer_unit=MS,
    )
    max_disk_usage: float = option(
        0.95, "A disk that is fuller than this makes the bookie read-only.",
        minimum=0.01, maximum=1, peer_key="diskUsageThreshold",
    )
    disk_usage_writable: float = option(
        0.9, "The bookie is writable again when all disks are at most this full.",
        minimum=0.01, maximum=1, peer_key="diskUsageLwmThreshold",
    )
    min_high_priority_free_bytes: int = option(
        64 * _MB, "Free space below which even recovery and high-priority adds are refused.",
        minimum=0, peer_key="minUsableSizeForHighPriorityWrites",
    )
    force_read_only: bool = option(
        False, "Never take plain adds.",
        peer_key="forceReadOnlyBookie",
    )
    auth_plugin: str = option(
        "",
        "How clients authenticate: shared-secret, certificate-role, sasl-digest-md5, "
        "sasl-kerberos, the name of an installed plug-in, or a class as module:Class. If it is "
        "empty, clients do not authenticate.",
        kind=Kind.PLUG_IN, peer_key="bookieAuthProviderFactoryClass",
    )
    auth_settings: str = option(
        "",
        "The text that the plug-in is given; for shared-secret and sasl-digest-md5 a file of "
        "name:secret:role lines.",
        is_secret=True,
    )
    authorized_roles: tuple[str, ...] = option(
        (), "Roles of which a client must have one; empty: any client that authenticates.",
        peer_key="authorizedRoles",
    )
    login_timeout_s: float = option(
        10.0, "A connection must have switched to TLS and authenticated after this time.",
        minimum=0.001,
    )
    max_login_frame_bytes: int = option(
        64 * _KB, "Largest frame of a connection that has not authenticated.",
        minimum=4 * _KB, maximum=_GB,
    )
    stop_timeout_s: float = option(
        10.0, "How long a clean stop waits for requests under way.",
        minimum=0,
    )
    # fmt: on
    #: Journal and cache sizes, flush interval and so on.
    storage: StorageOptions = field(default_factory=StorageOptions)
    #: Garbage collection and compaction.
    gc: GcOptions = field(default_factory=GcOptions)
    #: The search for damage, and how it is followed up.
    scrub: ScrubOptions = field(default_factory=ScrubOptions)
    #: None: nothing is served over HTTP.
    http: HttpOptions | None = None
    #: None: TLS is not offered.
    tls: TlsOptions | None = None

    def check_together(self) -> None:
        """Refuse values that contradict each other."""
        if not self.journal_directories or not self.ledger_directories:
            raise ConfigError("a bookie needs at least one journal and one ledger directory")
        if self.disk_usage_writable > self.max_disk_usage:
            raise ConfigError("bookie.disk_usage_writable is above bookie.max_disk_usage")
        if self.high_connection_answer_bytes > self.max_connection_answer_bytes:
            raise ConfigError(
                "bookie.high_connection_answer_bytes is above bookie.max_connection_answer_bytes"
            )
