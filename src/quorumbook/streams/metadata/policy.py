"""Policies: what a namespace says for all its streams, and a stream for itself; pure.

As JSON with a version, ``{"version": 1, "ensemble_size": 3, ...}``, in the node ``.policies`` of
the namespace and in the stream's own node.  What is left out is inherited: from the namespace, and
in the end from ``DEFAULTS``.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass
from typing import Any, TypeVar

from quorumbook.errors import ConfigError
from quorumbook.ledger.placement.labels import parse_labels
from quorumbook.ledger.placement.own import CUSTOM_KEY as PLACEMENT_KEY
from quorumbook.ledger.placement.own import LEDGER_OPTIONS, encode_options
from quorumbook.streams.errors import UnsupportedFormatError
from quorumbook.streams.format.binding import AccessControl
from quorumbook.streams.format.compression import Codec

_VERSION = 1
_COMPRESSIONS = ("none", "lz4")
_DENIALS = ("write", "truncate", "delete", "acquire", "release")
_TXIDS = ("free", "monotonic", "timestamp")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy:
    """How a stream is stored, rolled, kept and limited; None inherits.

    Attributes:
        ensemble_size: Bookies that share a segment.
        write_quorum_size: Bookies that store each entry.
        ack_quorum_size: Bookies that must have synced an entry before it is acknowledged.
        digest: ``CRC32`` (what a Java client expects), ``CRC32C``, ``HMAC`` or ``DUMMY``.
        compression: ``none`` or ``lz4``.
        roll_bytes: A segment of so many bytes is followed by the next …
        roll_entries: … or of so many entries …
        roll_interval_s: … or after so long, also when nothing is written; 0: never.
        retain_time_s: Segments go so long after they were completed …
        retain_bytes: … or when so many bytes are kept behind them …
        retain_records: … or so many records, whichever comes first; 0: never.
        retain_unconsumed: Every cursor holds what it has not passed, not only those that were
            made to; without other limits segments go when all have passed them.
        retain_hard_time_s: What cursors hold goes nevertheless after so long …
        retain_hard_bytes: … or when more than so many bytes are kept; 0: never.
        max_record_bytes: Refuse a larger record, with what it carries.  One of more than 1,040,364
            bytes is stored in chunks, which a Java reader gets one by one.
        max_total_bytes: Refuse appends to a stream that holds so much; 0: no limit.
        max_records_per_s: A writer's records wait for each other above this rate; 0: never.
        max_bytes_per_s: The same by the bytes of entries.
        placement: How bookies are chosen: ``rack-aware``, ``region-aware``, ``zone-aware`` or
            ``random``; empty: as the client has it.
        min_racks, enforce_racks, regions, disallowed_regions, min_regions,
        enforce_regions_in_replacement, min_zones, desired_zones, enforce_zones,
        enforce_ack_domains: What that goes by, as in ``PlacementOptions``; regions with commas
            between.  What nobody says is as the client has it.
        bookie_labels: What the bookies of segments must carry, as ``zone=eu,disk=ssd``.
        denied: What nobody may do, of ``write``, ``truncate``, ``delete``, ``acquire`` and
            ``release``, with commas; in addition to the namespace's access control, which is all
            that a Java client heeds.
        txid: ``monotonic`` (never below the one before), ``timestamp`` (the wall clock's
            milliseconds where none is given, and monotonic) or ``free``.
    """

    ensemble_size: int | None = None
    write_quorum_size: int | None = None
    ack_quorum_size: int | None = None
    digest: str | None = None
    compression: str | None = None
    roll_bytes: int | None = None
    roll_entries: int | None = None
    roll_interval_s: float | None = None
    retain_time_s: float | None = None
    retain_bytes: int | None = None
    retain_records: int | None = None
    retain_unconsumed: bool | None = None
    retain_hard_time_s: float | None = None
    retain_hard_bytes: int | None = None
    max_record_bytes: int | None = None
    max_total_bytes: int | None = None
    max_records_per_s: float | None = None
    max_bytes_per_s: float | None = None
    placement: str | None = None
    min_racks: int | None = None
    enforce_racks: bool | None = None
    regions: str | None = None
    disallowed_regions: str | None = None
    min_regions: int | None = None
    enforce_regions_in_replacement: bool | None = None
    min_zones: int | None = None
    desired_zones: int | None = None
    enforce_zones: bool | None = None
    enforce_ack_domains: bool | None = None
    bookie_labels: str | None = None
    denied: str | None = None
    txid: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("compression", _COMPRESSIONS),
            ("txid", _TXIDS),
            ("digest", ("CRC32", "CRC32C", "HMAC", "DUMMY")),
        ):
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise ConfigError(f"{name} is one of {', '.join(allowed)}, not {value!r}")
        for name, what in (("bookie_labels", self.labels), ("denied", self.denials)):
            if getattr(self, name) is not None:
                what()
        self.placement_metadata()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value < 0:
                raise ConfigError(f"{field.name} must not be negative, not {value}")

    def over(self, inherited: StreamPolicy) -> StreamPolicy:
        """Return this policy with what it leaves out taken from another."""
        mine = _given(self)
        return dataclasses.replace(inherited, **mine)

    def labels(self) -> dict[str, str]:
        """Return what the bookies of segments must carry."""
        texts = [each for each in (self.bookie_labels or "").split(",") if each]
        return parse_labels(texts, "bookie_labels")

    def placement_metadata(self) -> dict[str, bytes]:
        """Return what is in the custom metadata of segments' ledgers about where they lie.

        Raises:
            ConfigError: it is no placement.
        """
        given: dict[str, Any] = {}
        for name, kind in LEDGER_OPTIONS.items():
            value = getattr(self, "placement" if name == "policy" else name)
            if value is not None and value != "":
                given[name] = _words(str(value)) if kind is list else value
        return {PLACEMENT_KEY: encode_options(given)} if given else {}

    def denials(self) -> AccessControl:
        """Return what nobody may do."""
        words = _words(self.denied or "")
        unknown = [word for word in words if word not in _DENIALS]
        if unknown:
            raise ConfigError(f"denied is made of {', '.join(_DENIALS)}, not {unknown[0]!r}")
        return AccessControl(**{f"denies_{word}": True for word in words})

    @property
    def codec(self) -> Codec:
        """The codec of new entries."""
        return Codec.LZ4 if self.compression == "lz4" else Codec.NONE

    def given(self) -> dict[str, Any]:
        """Return what is not inherited."""
        return _given(self)

    def encode(self) -> bytes:
        """Return the data of a node; none where everything is inherited."""
        given = _given(self)
        if not given:
            return b""
        return json.dumps({"version": _VERSION, **given}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> StreamPolicy:
        """Read the data of a node.

        Raises:
            UnsupportedFormatError: of a newer release.
            ConfigError: it has a value that is none.
        """
        if not cls.is_in(data):
            return cls()  # an application's own data, which the peer leaves room for here
        found = json.loads(data)
        version = found.pop("version")
        if version != _VERSION:
            raise UnsupportedFormatError(f"the policy at {path} is of version {version}, not 1")
        return cls.of(found)

    @staticmethod
    def is_in(data: bytes) -> bool:
        """Tell whether a node's data are a policy."""
        try:
            found = json.loads(data or b"{}")
        except ValueError:
            return False
        return isinstance(found, dict) and "version" in found

    @classmethod
    def of(cls, given: dict[str, Any]) -> StreamPolicy:
        """Build from names and values; an unknown name is an error that suggests one."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"unknown policy {name}{hint}")
        return cls(**given)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _given(policy: StreamPolicy) -> dict[str, Any]:
    values = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    return {name: value for name, value in values.items() if value is not None}


def known(value: T | None) -> T:
    """Return a value of a policy that was filled up from ``DEFAULTS``."""
    assert value is not None
    return value


#: What holds where neither stream nor namespace says anything; the peer's where it has one.
DEFAULTS = StreamPolicy(
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    digest="CRC32",
    compression="none",
    roll_bytes=256 * 1024 * 1024,
    roll_entries=0,
    roll_interval_s=7200.0,
    retain_time_s=0.0,
    retain_bytes=0,
    retain_records=0,
    retain_unconsumed=False,
    retain_hard_time_s=0.0,
    retain_hard_bytes=0,
    max_record_bytes=64 * 1024 * 1024,
    max_total_bytes=0,
    max_records_per_s=0.0,
    max_bytes_per_s=0.0,
    placement="",
    bookie_labels="",
    denied="",
    txid="monotonic",
)
