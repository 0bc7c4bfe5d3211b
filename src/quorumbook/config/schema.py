"""Every option, once: the peer's key, our name, type, default, bounds, one sentence.

A peer's key that stands for several of ours, or means something else there, is left out rather
than bent.  The tidy test holds ``docs/configuration.md`` against this table.
"""

from __future__ import annotations

from quorumbook.config.bookie import BOOKIE_OPTIONS
from quorumbook.config.garbage import BACKGROUND_OPTIONS, GC_OPTIONS
from quorumbook.config.options import Kind, Option
from quorumbook.config.placement import PLACEMENT_OPTIONS
from quorumbook.config.recovery import RECOVERY_OPTIONS
from quorumbook.config.scrub import SCRUB_OPTIONS
from quorumbook.ids import MAX_FRAME_SIZE_BYTES

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

_STORAGE = (
    Option(
        "storage", "journal_directories", Kind.LIST, ("quorumbook-data/bookie/journal",),
        "Where journals are, best on disks of their own; ledgers are spread over them by id.",
        peer_key="journalDirectories",
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
        "storage", "max_idle_handles", Kind.INTEGER, 20_000,
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
        "client", "bookie_labels", Kind.LIST, (),
        "Labels that every bookie of a new ledger must carry, as key=value.",
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
        "client", "max_speculative_read_s", Kind.DURATION, 2.0,
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
        "client", "max_frame_bytes", Kind.SIZE, MAX_FRAME_SIZE_BYTES,
        "Largest frame to accept.",
        minimum=4 * _KB, maximum=_GB,
    ),
    Option(
        "client", "auth_plugin", Kind.PLUG_IN, "",
        "How to authenticate at bookies: shared-secret, sasl-digest-md5, sasl-kerberos, an "
        "installed plug-in, or module:Class; empty: not.",
        peer_key="clientAuthProviderFactoryClass",
    ),
    Option(
        "client", "auth_settings", Kind.TEXT, "",
        "What the plug-in is made with; for shared-secret and sasl-digest-md5 a file with a "
        "name:secret line.",
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
    Option(
        "http", "names", Kind.LIST, (),
        "Further names by which requests may ask for this server in Host, such as a load "
        "balancer's; its own addresses, http.host and bookie.advertised_host are accepted anyway.",
    ),
    Option(
        "http", "token_file", Kind.TEXT, "",
        "A file with a token on each line. A change over HTTP then carries one, and commands send "
        "the first. Empty: only a server on loopback changes anything.",
    ),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *_METADATA,
    *BOOKIE_OPTIONS,
    *_STORAGE,
    *GC_OPTIONS,
    *SCRUB_OPTIONS,
    *BACKGROUND_OPTIONS,
    *RECOVERY_OPTIONS,
    *_CLIENT,
    *PLACEMENT_OPTIONS,
    *_TLS,
    *_HTTP,
)
