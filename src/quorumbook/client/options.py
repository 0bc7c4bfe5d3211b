"""What a client and a new ledger can be told.

One frozen object goes through the whole room.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict

from quorumbook.env import TlsOptions
from quorumbook.errors import ConfigError
from quorumbook.ids import MAX_FRAME_SIZE_BYTES
from quorumbook.ledger.placement.labels import checked_labels
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.options import MS, Kind, Options, no_such_option, option

_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """The options of ``connect``."""

    SECTION: ClassVar[str] = "client"

    # fmt: off
    bookie_labels: Mapping[str, str] = option(
        {}, "Labels that every bookie of a new ledger must carry, as key=value.",
    )
    connect_timeout_s: float = option(
        5.0, "Longest wait for a TCP connection.",
        minimum=0.001, peer_key="clientConnectTimeoutMillis", peer_unit=MS,
    )
    add_timeout_s: float = option(
        5.0, "Longest wait for one bookie's answer to an add; then it is replaced.",
        minimum=0.001, peer_key="addEntryTimeoutSec",
    )
    add_quorum_timeout_s: float = option(
        60.0, "Longest wait for an entry's ack quorum, replacements included; 0 waits forever.",
        minimum=0,
    )
    read_timeout_s: float = option(
        5.0, "Longest wait for one bookie's answer to a read.",
        minimum=0.001, peer_key="readEntryTimeoutSec",
    )
    request_timeout_s: float = option(
        5.0, "Longest wait for one bookie's answer to any other request.",
        minimum=0.001,
    )
    operation_timeout_s: float = option(
        60.0, "Longest time a whole operation (create, open, close, delete) takes.",
        minimum=0.001,
    )
    long_poll_timeout_s: float = option(
        2.0, "How long a bookie may hold a tailing read before it says that nothing came.",
        minimum=0.001,
    )
    lac_delay_s: float = option(
        0.01, "A writer idle for so long publishes its last add confirmed; 0 never does.",
        minimum=0, peer_key="explicitLacInterval", peer_unit=MS,
    )
    max_pending_entries: int = option(
        10000, "Entries a writer holds that are not confirmed yet.",
        minimum=1, peer_key="throttle",
    )
    max_pending_bytes: int = option(
        64 * _MB, "Bytes a writer holds, those a slow bookie has not taken included.",
        minimum=1,
    )
    read_ahead_bytes: int = option(
        8 * _MB, "Bytes a reader asks for ahead of what was consumed.",
        minimum=1,
    )
    read_batch_bytes: int = option(
        _MB, "Bytes of one batch read.",
        minimum=1,
    )
    speculative_read_s: float = option(
        2.0, "After this silence a read goes to the next bookie as well; 0 never asks two.",
        minimum=0, peer_key="speculativeReadTimeout", peer_unit=MS,
    )
    max_speculative_read_s: float = option(
        2.0, "Longest silence before yet another bookie is asked.",
        minimum=0.001, peer_key="maxSpeculativeReadTimeout", peer_unit=MS,
    )
    speculative_read_factor: float = option(
        2.0, "How many times longer each further silence may last, up to that.",
        minimum=1, peer_key="speculativeReadTimeoutBackoffMultiplier",
    )
    reorder_reads: bool = option(
        True, "Ask bookies that failed, were silent or gave damaged entries lately last.",
        peer_key="reorderReadSequenceEnabled",
    )
    reorder_pending_reads: int = option(
        0, "Ask a bookie later if it has this many more reads under way than the idlest; 0 never.",
        minimum=0, peer_key="readReorderThresholdPendingRequests",
    )
    sticky_reads: bool = option(
        False, "Read a ledger from one bookie while it answers, not from all in turn.",
        peer_key="stickyReadSEnabled",
    )
    batch_reads: bool = option(
        True, "Ask for many entries with one request, which Java bookies know since 4.17.",
        peer_key="batchReadEnabled",
    )
    recovery_batch_entries: int = option(
        64, "Entries that a ledger recovery reads and writes back at once.",
        minimum=1, peer_key="recoveryReadBatchSize",
    )
    delay_ensemble_change: bool = option(
        False, "Replace a failed bookie only when an entry can no longer reach its ack quorum.",
        peer_key="delayEnsembleChange",
    )
    require_replacement: bool = option(
        False, "Close the writer when a failed bookie cannot be replaced, as the Java client does.",
    )
    max_ensemble_changes: int = option(
        0, "Ensemble changes of one writer before it gives up; 0 sets no limit.",
        minimum=0, peer_key="maxNumEnsembleChanges",
    )
    opportunistic_striping: bool = option(
        False, "Where bookies are few, spread a new ledger over fewer, down to its write quorum.",
        peer_key="opportunisticStriping",
    )
    quarantine_s: float = option(
        30.0, "How long a bookie that failed is not chosen for new ensembles.",
        minimum=0, peer_key="bookieQuarantineTimeSeconds",
    )
    max_frame_bytes: int = option(
        MAX_FRAME_SIZE_BYTES, "Largest frame to accept.",
        minimum=4 * _KB, maximum=_GB,
    )
    auth_plugin: str = option(
        "",
        "How to authenticate at bookies: shared-secret, sasl-digest-md5, sasl-kerberos, an "
        "installed plug-in, or module:Class; empty: not.",
        kind=Kind.PLUG_IN, peer_key="clientAuthProviderFactoryClass",
    )
    auth_settings: str = option(
        "",
        "The text that the plug-in is given; for shared-secret and sasl-digest-md5 a file with a "
        "name:secret line.",
        is_secret=True,
    )
    session_timeout_s: float = option(
        10.0, "How long a process may be silent before its registration ends.",
        minimum=0.5, maximum=3600, peer_key="zkTimeout", peer_unit=MS, section="metadata",
    )
    # fmt: on
    #: Certificates and rules; None connects in the clear.
    tls: TlsOptions | None = None
    #: Which bookies are chosen and read first; of the client as a whole.
    placement: PlacementOptions = field(default_factory=PlacementOptions)

    def check_together(self) -> None:
        """Refuse invalid labels."""
        checked_labels(self.bookie_labels, "bookie_labels")


class LedgerWriterKeywords(TypedDict, total=False):
    """The options of ``ClientOptions`` that one ledger's writer may have otherwise."""

    add_timeout_s: float
    add_quorum_timeout_s: float
    lac_delay_s: float
    max_pending_entries: int
    max_pending_bytes: int
    delay_ensemble_change: bool
    require_replacement: bool
    max_ensemble_changes: int
    opportunistic_striping: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLedgerOptions(Options):
    """How a new ledger is spread, and how its entries prove themselves."""

    SECTION: ClassVar[str] = "client"

    # fmt: off
    ensemble_size: int = option(
        3, "Bookies a new ledger is spread over.",
        minimum=1, maximum=1024,
    )
    write_quorum_size: int = option(
        3, "Bookies each entry is sent to.",
        minimum=1, maximum=1024,
    )
    ack_quorum_size: int = option(
        2, "Bookies that must have synced an entry before it is acknowledged.",
        minimum=1, maximum=1024,
    )
    digest_type: str = option(
        "crc32c", "The integrity code of a new ledger's entries.",
        choices=("crc32c", "crc32", "hmac", "dummy"), peer_key="digestType",
    )
    # fmt: on

    def check_together(self) -> None:
        """Refuse quorums that do not fit into each other."""
        for small, large in _DESCENDING:
            value, most = getattr(self, small), getattr(self, large)
            if value > most:
                raise ConfigError(
                    f"client.{small}: {value} ({small}=) is out of bounds"
                    f" (1 to client.{large}, which is {most})"
                )


_DESCENDING = (("ack_quorum_size", "write_quorum_size"), ("write_quorum_size", "ensemble_size"))


def with_keywords(
    options: ClientOptions,
    keywords: LedgerWriterKeywords,
    bookie_labels: Mapping[str, str] | None = None,
) -> ClientOptions:
    """Return a client's options with what one ledger's writer has otherwise.

    Raises:
        ConfigError: a keyword is not an option, or not one of a writer.
    """
    if not keywords and bookie_labels is None:
        return options
    of_writers = LedgerWriterKeywords.__annotations__.keys()
    for name in keywords.keys() - of_writers:
        if name in options.keywords():
            raise ConfigError(f"{name} is an option of connect, not of one ledger's writer")
        of_new = (each.name for each in dataclasses.fields(NewLedgerOptions))
        raise no_such_option(name, (*of_new, *of_writers))
    labels = options.bookie_labels if bookie_labels is None else bookie_labels
    return dataclasses.replace(options, bookie_labels=labels, **keywords)
