"""Every option, once: the peer's key, our name, type, default, bounds, one sentence.

A peer's key that stands for several of ours, or means something else there, is left out rather
than bent.  The tidy test holds ``docs/configuration.md`` against this table.
"""

from __future__ import annotations

from quorumbook.config.garbage import GC_OPTIONS
from quorumbook.config.options import Kind, Option
from quorumbook.ids import DEFAULT_BOOKIE_PORT, MAX_FRAME_SIZE_BYTES

_KB = 1024
_MB = 1024 * 1024
_GB = 1024 * _MB
_MS = 0.001

_METADATA = (
    Option(
        "metadata", "uri", Kind.TEXT, "sqlite:///quorumbook-data/metadata.db",
        "Where the cluster's metadata is.",
        peer_key="metadataServiceUri",
    ),
    Option(
        "metadata", "session_timeout_s", Kind.DURATION, 10.0,
        "How long a process may be silent before its registration ends.",
        peer_key="zkTimeout", peer_unit=_MS, minimum=0.5, maximum=3600,
    ),
)  # fmt: skip

_BOOKIE = (
    Option(
        "bookie", "host", Kind.TEXT, "127.0.0.1",
        "The address to listen on; 0.0.0.0 is every address of the host.",
    ),
    Option(
        "bookie", "port", Kind.INTEGER, DEFAULT_BOOKIE_PORT,
        "The port to listen on; 0 takes a free one.",
        peer_key="bookiePort", minimum=0, maximum=65535,
    ),
    Option(
        "bookie", "advertised_host", Kind.TEXT, "",
        "What clients connect to, if it is not the address listened on.",
        peer_key="advertisedAddress",
    ),
    Option(
        "bookie", "bookie_id", Kind.TEXT, "",
        "The registered name; empty is advertised host and port.",
        peer_key="bookieId",
    ),
    Option(
        "bookie", "allow_storage_expansion", Kind.SWITCH, False,
        "Accept new empty ledger directories next to the known ones.",
        peer_key="allowStorageExpansion",
    ),
    Option(
        "bookie", "frame_size_bytes_max", Kind.SIZE, MAX_FRAME_SIZE_BYTES,
        "Largest frame to accept.",
        peer_key="nettyMaxFrameSizeBytes", minimum=4 * _KB, maximum=_GB,
    ),
    Option(
        "bookie", "connection_add_bytes_max", Kind.SIZE, 32 * _MB,
        "Adds of one connection not answered yet; above it the connection is not read.",
        minimum=1,
    ),
    Option(
        "bookie", "connection_answer_bytes_high", Kind.SIZE, 4 * _MB,
        "Answers waiting for one client to read them; above it no request is begun.",
        minimum=1,
    ),
    Option(
        "bookie", "connection_answer_bytes_max", Kind.SIZE, 64 * _MB,
        "Answers waiting for one client; above it the connection is closed.",
        minimum=1,
    ),
    Option(
        "bookie", "answer_timeout_s", Kind.DURATION, 30.0,
        "A client that reads none of its answers for this long is closed.",
        minimum=0.001,
    ),
    Option(
        "bookie", "frame_timeout_s", Kind.DURATION, 120.0,
        "A frame that was begun must be complete after this time.",
        minimum=0.001,
    ),
    Option(
        "bookie", "connection_long_polls_max", Kind.INTEGER, 10_000,
        "Long polls of one connection that may wait at a time.",
        minimum=0,
    ),
    Option(
        "bookie", "long_poll_timeout_s_max", Kind.DURATION, 300.0,
        "Longest time a long poll waits, whatever it asks for.",
        minimum=0,
    ),
    Option(
        "bookie", "add_bytes_max", Kind.SIZE, 256 * _MB,
        "Adds of all connections that are not answered yet.",
        minimum=1,
    ),
    Option(
        "bookie", "partial_frame_bytes_max", Kind.SIZE, 256 * _MB,
        "Bytes of begun frames of all connections; above it the oldest frame is given up.",
        minimum=1,
    ),
    Option(
        "bookie", "add_delay_s_max", Kind.DURATION, 10.0,
        "How long an add may wait for room in the write cache before it is refused.",
        peer_key="dbStorage_maxThrottleTimeMs", peer_unit=_MS, minimum=0,
    ),
    Option(
        "bookie", "batch_read_bytes_max", Kind.SIZE, MAX_FRAME_SIZE_BYTES,
        "Bytes of one batch read's answer.",
        peer_key="maxBatchReadSize", minimum=1,
    ),
    Option(
        "bookie", "read_bytes_max", Kind.SIZE, 16 * _MB,
        "Bytes of entries that the reads of one connection may have under way.",
        minimum=1,
    ),
    Option(
        "bookie", "disk_check_interval_s", Kind.DURATION, 10.0,
        "How often the free space of the disks is looked at.",
        peer_key="diskCheckInterval", peer_unit=_MS, minimum=0.01,
    ),
    Option(
        "bookie", "disk_usage_max", Kind.NUMBER, 0.95,
        "A disk that is fuller than this makes the bookie read-only.",
        peer_key="diskUsageThreshold", minimum=0.01, maximum=1,
    ),
    Option(
        "bookie", "disk_usage_writable", Kind.NUMBER, 0.90,
        "The bookie is writable again when all disks are at most this full.",
        peer_key="diskUsageLwmThreshold", minimum=0.01, maximum=1,
    ),
    Option(
        "bookie", "high_priority_free_bytes_min", Kind.SIZE, 64 * _MB,
        "Free space below which even recovery and high-priority adds are refused.",
        peer_key="minUsableSizeForHighPriorityWrites", minimum=0,
    ),
    Option(
        "bookie", "force_read_only", Kind.SWITCH, False,
        "Never take plain adds.",
        peer_key="forceReadOnlyBookie",
    ),
    Option(
        "bookie", "auth_plugin", Kind.TEXT, "",
        "How clients authenticate: shared-secret, certificate-role or module:Class; empty: not.",
        peer_key="bookieAuthProviderFactoryClass",
    ),
    Option(
        "bookie", "auth_settings", Kind.TEXT, "",
        "What the plug-in is made with; for shared-secret a file of name:secret:role lines.",
    ),
    Option(
        "bookie", "authorized_roles", Kind.LIST, (),
        "Roles of which a client must have one; empty: any client that authenticates.",
        peer_key="authorizedRoles",
    ),
    Option(
        "bookie", "login_timeout_s", Kind.DURATION, 10.0,
        "A connection must have switched to TLS and authenticated after this time.",
        minimum=0.001,
    ),
    Option(
        "bookie", "login_frame_size_bytes_max", Kind.SIZE, 64 * _KB,
        "Largest frame of a connection that has not authenticated.",
        minimum=4 * _KB, maximum=_GB,
    ),
    Option(
        "bookie", "stop_timeout_s", Kind.DURATION, 10.0,
        "How long a clean stop waits for requests under way.",
        minimum=0,
    ),
)  # fmt: skip

_STORAGE = (
    Option(
        "storage", "journal_directory", Kind.TEXT, "quorumbook-data/bookie/journal",
        "Where the journal is; a disk of its own is best.",
        peer_key="journalDirectories",
    ),
    Option(
        "storage", "further_journal_directories", Kind.LIST, (),
        "Journal directories beside the first, of a bookie that was the peer's; nothing is "
        "written there.",
    ),
    Option(
        "storage", "index_directories", Kind.LIST, (),
        "Where a bookie that was the peer's kept its index, if not in the ledger directories.",
        peer_key="indexDirectories",
    ),
    Option(
        "storage", "peer_storage", Kind.TEXT, "",
        "The peer's storage that directories come from and go back to; empty finds out.",
        choices=("", "sorted", "db"),
    ),
    Option(
        "storage", "ledger_directories", Kind.LIST, ("quorumbook-data/bookie/ledgers",),
        "Where entry logs are; the index is in the first one.",
        peer_key="ledgerDirectories",
    ),
    Option(
        "storage", "write_cache_size_bytes", Kind.SIZE, 64 * _MB,
        "One write cache; there are two, one that fills and one that a flush writes out.",
        minimum=64 * _KB,
    ),
    Option(
        "storage", "read_cache_size_bytes", Kind.SIZE, 32 * _MB,
        "Entries read from entry logs and kept for the next reader.",
        peer_key="dbStorage_readAheadCacheMaxSizeMb", peer_unit=_MB, minimum=0,
    ),
    Option(
        "storage", "read_ahead_size_bytes", Kind.SIZE, 4 * _MB,
        "Most that may be on its way from the disk ahead of the reader.",
        peer_key="dbStorage_readAheadCacheBatchBytesSize", minimum=0,
    ),
    Option(
        "storage", "flush_interval_s", Kind.DURATION, 60.0,
        "Anything unflushed is flushed after this time.",
        peer_key="flushInterval", peer_unit=_MS, minimum=0.01,
    ),
    Option(
        "storage", "retry_interval_s", Kind.DURATION, 1.0,
        "Pause before a failed flush is tried again.",
        minimum=0.01,
    ),
    Option(
        "storage", "reserve_size_bytes", Kind.SIZE, 8 * _MB,
        "Room beyond the limits for recovery adds and writes of the last add confirmed.",
        minimum=0,
    ),
    Option(
        "storage", "handle_limit", Kind.INTEGER, 20_000,
        "Idle ledgers remembered in memory.",
        minimum=1,
    ),
    Option(
        "storage", "journal_file_size_bytes", Kind.SIZE, 256 * _MB,
        "A new journal file begins at this size.",
        peer_key="journalMaxSizeMB", peer_unit=_MB, minimum=_MB, maximum=2 * _GB,
    ),
    Option(
        "storage", "journal_group_size_bytes", Kind.SIZE, 8 * _MB,
        "Most that one write and sync of the journal takes.",
        minimum=64 * _KB, maximum=_GB,
    ),
    Option(
        "storage", "entry_log_size_bytes", Kind.SIZE, _GB,
        "A new entry log begins at this size.",
        peer_key="logSizeLimit", minimum=_MB, maximum=2 * _GB,
    ),
)  # fmt: skip

_CLIENT = (
    Option(
        "client", "ensemble_size", Kind.INTEGER, 3,
        "Bookies a new ledger is spread over.",
        minimum=1, maximum=1024,
    ),
    Option(
        "client", "write_quorum_size", Kind.INTEGER, 3,
        "Bookies each entry is sent to.",
        minimum=1, maximum=1024,
    ),
    Option(
        "client", "ack_quorum_size", Kind.INTEGER, 2,
        "Bookies that must have synced an entry before it is acknowledged.",
        minimum=1, maximum=1024,
    ),
    Option(
        "client", "digest_type", Kind.TEXT, "crc32c",
        "The integrity code of a new ledger's entries.",
        peer_key="digestType", choices=("crc32c", "crc32", "hmac", "dummy"),
    ),
    Option(
        "client", "connect_timeout_s", Kind.DURATION, 5.0,
        "Longest wait for a TCP connection.",
        peer_key="clientConnectTimeoutMillis", peer_unit=_MS, minimum=0.001,
    ),
    Option(
        "client", "add_timeout_s", Kind.DURATION, 5.0,
        "Longest wait for one bookie's answer to an add; then it is replaced.",
        peer_key="addEntryTimeoutSec", minimum=0.001,
    ),
    Option(
        "client", "add_quorum_timeout_s", Kind.DURATION, 60.0,
        "Longest wait for an entry's ack quorum, replacements included; 0 waits for ever.",
        minimum=0,
    ),
    Option(
        "client", "read_timeout_s", Kind.DURATION, 5.0,
        "Longest wait for one bookie's answer to a read.",
        peer_key="readEntryTimeoutSec", minimum=0.001,
    ),
    Option(
        "client", "request_timeout_s", Kind.DURATION, 5.0,
        "Longest wait for one bookie's answer to any other request.",
        minimum=0.001,
    ),
    Option(
        "client", "operation_timeout_s", Kind.DURATION, 60.0,
        "Longest time a whole operation (create, open, close, delete) takes.",
        minimum=0.001,
    ),
    Option(
        "client", "long_poll_timeout_s", Kind.DURATION, 2.0,
        "How long a bookie may hold a tailing read before it says that nothing came.",
        minimum=0.001,
    ),
    Option(
        "client", "lac_delay_s", Kind.DURATION, 0.01,
        "A writer idle for so long publishes its last add confirmed; 0 never does.",
        peer_key="explicitLacInterval", peer_unit=_MS, minimum=0,
    ),
    Option(
        "client", "max_pending_entries", Kind.INTEGER, 10_000,
        "Entries a writer holds that are not confirmed yet.",
        peer_key="throttle", minimum=1,
    ),
    Option(
        "client", "max_pending_bytes", Kind.SIZE, 64 * _MB,
        "Bytes a writer holds, those a slow bookie has not taken included.",
        minimum=1,
    ),
    Option(
        "client", "read_ahead_bytes", Kind.SIZE, 8 * _MB,
        "Bytes a reader asks for ahead of what was consumed.",
        minimum=1,
    ),
    Option(
        "client", "read_batch_bytes", Kind.SIZE, _MB,
        "Bytes of one batch read.",
        minimum=1,
    ),
    Option(
        "client", "speculative_read_s", Kind.DURATION, 2.0,
        "After this silence a read goes to the next bookie as well; 0 never asks two.",
        peer_key="speculativeReadTimeout", peer_unit=_MS, minimum=0,
    ),
    Option(
        "client", "speculative_read_s_max", Kind.DURATION, 2.0,
        "Longest silence before yet another bookie is asked.",
        peer_key="maxSpeculativeReadTimeout", peer_unit=_MS, minimum=0.001,
    ),
    Option(
        "client", "speculative_read_factor", Kind.NUMBER, 2.0,
        "How many times longer each further silence may last, up to that.",
        peer_key="speculativeReadTimeoutBackoffMultiplier", minimum=1,
    ),
    Option(
        "client", "reorder_reads", Kind.SWITCH, True,
        "Ask bookies that failed, were silent or gave damaged entries lately last.",
        peer_key="reorderReadSequenceEnabled",
    ),
    Option(
        "client", "reorder_pending_reads", Kind.INTEGER, 0,
        "Ask a bookie later that has so many more reads under way than the idlest; 0 never.",
        peer_key="readReorderThresholdPendingRequests", minimum=0,
    ),
    Option(
        "client", "sticky_reads", Kind.SWITCH, False,
        "Read a ledger from one bookie while it answers, not from all in turn.",
        peer_key="stickyReadSEnabled",
    ),
    Option(
        "client", "batch_reads", Kind.SWITCH, True,
        "Ask for many entries with one request, which bookies of the peer know since 4.17.",
        peer_key="batchReadEnabled",
    ),
    Option(
        "client", "recovery_batch_entries", Kind.INTEGER, 64,
        "Entries that a ledger recovery reads and writes back at once.",
        peer_key="recoveryReadBatchSize", minimum=1,
    ),
    Option(
        "client", "delay_ensemble_change", Kind.SWITCH, False,
        "Replace a failed bookie only when an entry can no longer reach its ack quorum.",
        peer_key="delayEnsembleChange",
    ),
    Option(
        "client", "require_replacement", Kind.SWITCH, False,
        "Close the writer when a failed bookie cannot be replaced, as the peer does.",
    ),
    Option(
        "client", "max_ensemble_changes", Kind.INTEGER, 0,
        "Ensemble changes of one writer before it gives up; 0 sets no limit.",
        peer_key="maxNumEnsembleChanges", minimum=0,
    ),
    Option(
        "client", "opportunistic_striping", Kind.SWITCH, False,
        "Where bookies are few, spread a new ledger over fewer, down to its write quorum.",
        peer_key="opportunisticStriping",
    ),
    Option(
        "client", "quarantine_s", Kind.DURATION, 30.0,
        "How long a bookie that failed is not chosen for new ensembles.",
        peer_key="bookieQuarantineTimeSeconds", minimum=0,
    ),
    Option(
        "client", "max_frame_size_bytes", Kind.SIZE, MAX_FRAME_SIZE_BYTES,
        "Largest frame to accept.",
        minimum=4 * _KB, maximum=_GB,
    ),
    Option(
        "client", "auth_plugin", Kind.TEXT, "",
        "How to authenticate at bookies: shared-secret or module:Class; empty: not.",
        peer_key="clientAuthProviderFactoryClass",
    ),
    Option(
        "client", "auth_settings", Kind.TEXT, "",
        "What the plug-in is made with; for shared-secret a file with a name:secret line.",
    ),
)  # fmt: skip

_TLS = (
    Option(
        "tls", "enabled", Kind.SWITCH, False,
        "A bookie offers TLS on its port; a client insists on it.",
    ),
    Option(
        "tls", "certificate_file", Kind.TEXT, "",
        "Our certificate in PEM form, with its intermediate certificates behind it.",
        peer_key="tlsCertificatePath",
    ),
    Option(
        "tls", "key_file", Kind.TEXT, "",
        "Its private key in PEM form.",
        peer_key="tlsKeyStore",
    ),
    Option(
        "tls", "key_format", Kind.TEXT, "PEM",
        "The form of the key; other stores have to be converted.",
        peer_key="tlsKeyStoreType", choices=("PEM",),
    ),
    Option(
        "tls", "key_password_file", Kind.TEXT, "",
        "A file with the password of the key, if it is encrypted.",
        peer_key="tlsKeyStorePasswordPath",
    ),
    Option(
        "tls", "ca_file", Kind.TEXT, "",
        "Who may sign the other side's certificate, in PEM form; empty: whom the system trusts.",
        peer_key="tlsTrustStore",
    ),
    Option(
        "tls", "ca_format", Kind.TEXT, "PEM",
        "The form of that file; other stores have to be converted.",
        peer_key="tlsTrustStoreType", choices=("PEM",),
    ),
    Option(
        "tls", "crl_file", Kind.TEXT, "",
        "Lists of revoked certificates in PEM form; with it, every issuer needs its list there.",
    ),
    Option(
        "tls", "client_authentication", Kind.SWITCH, False,
        "A bookie demands a certificate of clients; a client shows its own.",
        peer_key="tlsClientAuthentication",
    ),
    Option(
        "tls", "require", Kind.SWITCH, False,
        "A bookie carries out nothing for clients that have not switched to TLS.",
    ),
    Option(
        "tls", "verify_host", Kind.SWITCH, True,
        "A client checks that a bookie's certificate is made for the host it connects to.",
        peer_key="tlsHostnameVerificationEnabled",
    ),
    Option(
        "tls", "protocols", Kind.LIST, ("TLSv1.2", "TLSv1.3"),
        "Versions of TLS that are spoken.",
        peer_key="tlsEnabledProtocols",
    ),
    Option(
        "tls", "reload_interval_s", Kind.DURATION, 10.0,
        "How often, at most, the files are looked at for changes; 0 never does.",
        peer_key="tlsCertFilesRefreshDurationSeconds", minimum=0,
    ),
)  # fmt: skip

_HTTP = (
    Option(
        "http", "enabled", Kind.SWITCH, True,
        "Serve /metrics, /heartbeat and /is_ready.",
        peer_key="httpServerEnabled",
    ),
    Option(
        "http", "host", Kind.TEXT, "127.0.0.1",
        "The address they are served on.",
        peer_key="httpServerHost",
    ),
    Option(
        "http", "port", Kind.INTEGER, 0,
        "The port they are served on; 0 takes a free one, which `bookie ls` shows.",
        peer_key="httpServerPort", minimum=0, maximum=65535,
    ),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *_METADATA,
    *_BOOKIE,
    *_STORAGE,
    *GC_OPTIONS,
    *_CLIENT,
    *_TLS,
    *_HTTP,
)
