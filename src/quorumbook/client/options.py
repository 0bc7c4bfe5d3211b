"""What a client can be told; every duration is in seconds, every size in bytes.

One frozen object goes through the whole room, so that a default stands in one place.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from quorumbook.env import TlsOptions
from quorumbook.errors import ConfigError
from quorumbook.ids import MAX_FRAME_SIZE_BYTES
from quorumbook.ledger.placement.labels import checked_labels
from quorumbook.ledger.placement.options import PlacementOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of ``connect``.

    Attributes:
        connect_timeout_s: Longest wait for a TCP connection.
        add_timeout_s: Longest wait for one bookie's answer to an add; then it is replaced.
        add_quorum_timeout_s: Longest wait for an entry's ack quorum, replacements included;
            then the writer fails.  0 waits for ever.
        read_timeout_s: Longest wait for one bookie's answer to a read.
        request_timeout_s: Longest wait for one bookie's answer to any other request.
        operation_timeout_s: Longest time a whole operation (create, open, close, delete) takes.
        long_poll_timeout_s: How long a bookie may hold a tailing read before it says "nothing".
        lac_delay_s: A writer idle for so long publishes its last add confirmed; 0 never does.
        max_pending_entries: Entries a writer holds that are not confirmed yet.
        max_pending_bytes: Bytes a writer holds, those a slow bookie has not taken included.
        read_ahead_bytes: Bytes a reader asks for ahead of what was consumed.
        read_batch_bytes: Bytes of one batch read.
        speculative_read_s: After this silence a read goes to the next bookie as well; 0: never.
        max_speculative_read_s: Longest wait before yet another bookie is asked …
        speculative_read_factor: … each of which is so many times the one before.
        reorder_reads: Ask bookies that failed, were silent or gave damaged entries lately last.
        reorder_pending_reads: Ask a bookie later that has so many more reads under way than the
            idlest one; 0: never.
        sticky_reads: Read a ledger from one bookie while it answers, so that its read-ahead
            serves; otherwise from all in turn.
        batch_reads: Ask for many entries with one request.  Where bookies of the peer older than
            4.17 are, False spares them a request at which they close the connection.
        recovery_batch_entries: Entries that a recovery reads and writes back at once.
        delay_ensemble_change: Replace a failed bookie only when an entry can no longer reach
            its ack quorum.
        require_replacement: Close the writer when a failed bookie cannot be replaced, as the
            peer does, instead of going on with fewer bookies.
        max_ensemble_changes: Ensemble changes of one writer before it gives up.
        opportunistic_striping: Create a ledger over fewer bookies than its ensemble size, down
            to its write quorum size, where no more are there.
        quarantine_s: How long a bookie that failed is not chosen for new ensembles.
        session_timeout_s: The metadata session's lease.
        max_frame_bytes: Largest frame to accept.
        tls: Certificates and rules; None connects in the clear.
        auth_plugin: An authentication plug-in's name, or ``module:Class``; empty uses none.
        auth_settings: What the plug-in is made with.
        bookie_labels: Labels that every bookie of a new ledger must carry, now and for ever.
        placement: Which bookies are chosen and read first; of the client as a whole.
    """

    connect_timeout_s: float = 5.0
    add_timeout_s: float = 5.0
    add_quorum_timeout_s: float = 60.0
    read_timeout_s: float = 5.0
    request_timeout_s: float = 5.0
    operation_timeout_s: float = 60.0
    long_poll_timeout_s: float = 2.0
    lac_delay_s: float = 0.01
    max_pending_entries: int = 10_000
    max_pending_bytes: int = 64 * 1024 * 1024
    read_ahead_bytes: int = 8 * 1024 * 1024
    read_batch_bytes: int = 1024 * 1024
    speculative_read_s: float = 2.0
    max_speculative_read_s: float = 2.0
    speculative_read_factor: float = 2.0
    reorder_reads: bool = True
    reorder_pending_reads: int = 0
    sticky_reads: bool = False
    batch_reads: bool = True
    recovery_batch_entries: int = 64
    delay_ensemble_change: bool = False
    require_replacement: bool = False
    max_ensemble_changes: int | None = None
    opportunistic_striping: bool = False
    quarantine_s: float = 30.0
    session_timeout_s: float = 10.0
    max_frame_bytes: int = MAX_FRAME_SIZE_BYTES
    tls: TlsOptions | None = None
    auth_plugin: str = ""
    auth_settings: str = field(default="", repr=False)
    bookie_labels: Mapping[str, str] = field(default_factory=dict)
    placement: PlacementOptions = field(default_factory=PlacementOptions)

    def __post_init__(self) -> None:
        checked_labels(self.bookie_labels, "bookie_labels")
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name in _MAY_BE_ZERO:
                if value < 0:
                    raise ConfigError(f"{each.name} must not be negative, not {value}")
            elif isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"{each.name} must be above zero, not {value}")

    @classmethod
    def of(cls, given: dict[str, object]) -> ClientOptions:
        """Build from keyword arguments; an unknown name is an error that suggests one."""
        names = [each.name for each in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"unknown client option {name}{hint}")
        return cls(**given)  # type: ignore[arg-type]


_MAY_BE_ZERO = frozenset(
    {
        "lac_delay_s",
        "add_quorum_timeout_s",
        "quarantine_s",
        "speculative_read_s",
        "reorder_pending_reads",
    }
)
