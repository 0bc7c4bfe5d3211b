"""The options of a bookie as a server; a part of ``schema``."""

from __future__ import annotations

from quorumbook.config.options import Kind, Option
from quorumbook.ids import DEFAULT_BOOKIE_PORT, MAX_FRAME_SIZE_BYTES

_KB = 1024
_MB = 1024 * 1024
_GB = 1024 * 1024 * 1024
_MS = 0.001

BOOKIE_OPTIONS = (
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
        "bookie", "labels", Kind.LIST, (),
        "What the bookie carries, as key=value; ledgers can be confined to labels.",
    ),
    Option(
        "bookie", "allow_storage_expansion", Kind.SWITCH, False,
        "Accept new empty ledger directories next to the known ones.",
        peer_key="allowStorageExpansion",
    ),
    Option(
        "bookie", "stamp_missing_cookies", Kind.SWITCH, False,
        "Start where a directory lost its cookie, and perhaps all else: what the bookie lacks is"
        " unknown until it was copied from others.",
        peer_key="dataIntegrityStampMissingCookies",
    ),
    Option(
        "bookie", "max_frame_bytes", Kind.SIZE, MAX_FRAME_SIZE_BYTES,
        "Largest frame to accept.",
        peer_key="nettyMaxFrameSizeBytes", minimum=4 * _KB, maximum=_GB,
    ),
    Option(
        "bookie", "max_connection_add_bytes", Kind.SIZE, 32 * _MB,
        "Adds of one connection not answered yet; above it the connection is not read.",
        minimum=1,
    ),
    Option(
        "bookie", "high_connection_answer_bytes", Kind.SIZE, 4 * _MB,
        "Answers waiting for one client to read them; above it no request is begun.",
        minimum=1,
    ),
    Option(
        "bookie", "max_connection_answer_bytes", Kind.SIZE, 64 * _MB,
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
        "bookie", "max_connections", Kind.INTEGER, 0,
        "Connections in all; 0: as many as the limit of open files allows beside the storage.",
        minimum=0,
    ),
    Option(
        "bookie", "max_connections_by_address", Kind.INTEGER, 0,
        "Connections from one address, or one IPv6 network of 64 bits; 0: half of all.",
        minimum=0,
    ),
    Option(
        "bookie", "max_unproven_connections", Kind.INTEGER, 0,
        "Connections that have not authenticated, or not asked anything yet; above it the oldest "
        "of them goes. 0: half of all.",
        minimum=0,
    ),
    Option(
        "bookie", "max_connection_long_polls", Kind.INTEGER, 10_000,
        "Long polls of one connection that may wait at a time.",
        minimum=0,
    ),
    Option(
        "bookie", "max_long_poll_timeout_s", Kind.DURATION, 300.0,
        "Longest time a long poll waits, whatever it asks for.",
        minimum=0,
    ),
    Option(
        "bookie", "max_long_polls", Kind.INTEGER, 50_000,
        "Long polls of all connections that may wait at a time; 0: none.",
        minimum=0,
    ),
    Option(
        "bookie", "max_add_bytes", Kind.SIZE, 128 * _MB,
        "Adds of all connections that are not answered yet, and large frames that are coming.",
        minimum=1,
    ),
    Option(
        "bookie", "max_answer_bytes", Kind.SIZE, 64 * _MB,
        "Answers of all connections being made or not taken by peers; above it reads wait.",
        minimum=1,
    ),
    Option(
        "bookie", "max_partial_frame_bytes", Kind.SIZE, 128 * _MB,
        "Bytes of begun frames of all connections; above it the oldest frame is given up.",
        minimum=1,
    ),
    Option(
        "bookie", "max_add_delay_s", Kind.DURATION, 10.0,
        "How long an add may wait for room in the write cache before it is refused.",
        peer_key="dbStorage_maxThrottleTimeMs", peer_unit=_MS, minimum=0,
    ),
    Option(
        "bookie", "max_batch_read_bytes", Kind.SIZE, MAX_FRAME_SIZE_BYTES,
        "Bytes of one batch read's answer.",
        peer_key="maxBatchReadSize", minimum=1,
    ),
    Option(
        "bookie", "max_read_bytes", Kind.SIZE, 16 * _MB,
        "Bytes of entries that the reads of one connection may have under way.",
        minimum=1,
    ),
    Option(
        "bookie", "max_read_delay_s", Kind.DURATION, 2.0,
        "How long a read may wait for adds of its ledger on their way before it says no.",
        minimum=0,
    ),
    Option(
        "bookie", "disk_check_interval_s", Kind.DURATION, 10.0,
        "How often the free space of the disks is looked at.",
        peer_key="diskCheckInterval", peer_unit=_MS, minimum=0.01,
    ),
    Option(
        "bookie", "max_disk_usage", Kind.NUMBER, 0.95,
        "A disk that is fuller than this makes the bookie read-only.",
        peer_key="diskUsageThreshold", minimum=0.01, maximum=1,
    ),
    Option(
        "bookie", "disk_usage_writable", Kind.NUMBER, 0.90,
        "The bookie is writable again when all disks are at most this full.",
        peer_key="diskUsageLwmThreshold", minimum=0.01, maximum=1,
    ),
    Option(
        "bookie", "min_high_priority_free_bytes", Kind.SIZE, 64 * _MB,
        "Free space below which even recovery and high-priority adds are refused.",
        peer_key="minUsableSizeForHighPriorityWrites", minimum=0,
    ),
    Option(
        "bookie", "force_read_only", Kind.SWITCH, False,
        "Never take plain adds.",
        peer_key="forceReadOnlyBookie",
    ),
    Option(
        "bookie", "auth_plugin", Kind.PLUG_IN, "",
        "How clients authenticate: shared-secret, certificate-role, sasl-digest-md5, "
        "sasl-kerberos, an installed plug-in, or module:Class; empty: not.",
        peer_key="bookieAuthProviderFactoryClass",
    ),
    Option(
        "bookie", "auth_settings", Kind.TEXT, "",
        "What the plug-in is made with; for shared-secret and sasl-digest-md5 a file of "
        "name:secret:role lines.",
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
        "bookie", "max_login_frame_bytes", Kind.SIZE, 64 * _KB,
        "Largest frame of a connection that has not authenticated.",
        minimum=4 * _KB, maximum=_GB,
    ),
    Option(
        "bookie", "stop_timeout_s", Kind.DURATION, 10.0,
        "How long a clean stop waits for requests under way.",
        minimum=0,
    ),
)  # fmt: skip
