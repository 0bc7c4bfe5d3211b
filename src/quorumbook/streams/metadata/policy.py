"""Policies: what a namespace says for all its streams, and a stream for itself; pure.

As JSON with a version, ``{"version": 1, "ensemble_size": 3, ...}``, in the node ``.policies`` of
the namespace and in the stream's own node.  What is left out is inherited: from the namespace, and
in the end from ``DEFAULTS``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, TypeVar

from quorumbook.errors import ConfigError
from quorumbook.ledger.placement.labels import parse_labels
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.ledger.placement.own import CUSTOM_KEY as PLACEMENT_KEY
from quorumbook.ledger.placement.own import LEDGER_OPTIONS, encode_options
from quorumbook.options import Options, inherited, inherited_as
from quorumbook.protocol.digest import DigestType
from quorumbook.streams.errors import UnsupportedFormatError
from quorumbook.streams.format.binding import AccessControl
from quorumbook.streams.format.compression import Codec

_VERSION = 1
_MB = 1 << 20
_DENIALS = ("write", "truncate", "delete", "acquire", "release")
T = TypeVar("T")


class LedgerKeywords(TypedDict):
    """What a policy says of new ledgers, as ``create_ledger`` takes it."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: DigestType
    custom_metadata: dict[str, bytes]
    bookie_labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy(Options):
    """How a stream is stored, rolled, kept and limited; None inherits."""

    SECTION: ClassVar[str] = "policy"

    # fmt: off
    ensemble_size: int | None = inherited(
        3, "Bookies that share a segment.", minimum=1, maximum=1024,
    )
    write_quorum_size: int | None = inherited(
        3, "Bookies that store each entry.", minimum=1, maximum=1024,
    )
    ack_quorum_size: int | None = inherited(
        2, "Bookies that must have synced an entry before it is acknowledged.",
        minimum=1, maximum=1024,
    )
    digest: str | None = inherited(
        "CRC32", "The integrity code of entries; CRC32 is what a Java client expects.",
        choices=("CRC32", "CRC32C", "HMAC", "DUMMY"),
    )
    compression: str | None = inherited(
        "none", "How entries are compressed.", choices=("none", "lz4"),
    )
    roll_bytes: int | None = inherited(
        256 * _MB, "Begin the next segment when one has this many bytes; 0: never.", minimum=0,
    )
    roll_entries: int | None = inherited(
        0, "Begin the next segment when one has this many entries; 0: never.", minimum=0,
    )
    roll_interval_s: float | None = inherited(
        7200.0,
        "Begin the next segment when one is this old, also when nothing is written; 0: never.",
        minimum=0,
    )
    retain_time_s: float | None = inherited(
        0.0, "Delete segments this long after they were completed; 0: never.", minimum=0,
    )
    retain_bytes: int | None = inherited(
        0, "Delete segments when the ones after them have this many bytes; 0: never.", minimum=0,
    )
    retain_records: int | None = inherited(
        0, "Delete segments when the ones after them have this many records; 0: never.", minimum=0,
    )
    retain_unconsumed: bool | None = inherited(
        False,
        "Every cursor holds what it has not passed, not only those that were made to; without "
        "other limits segments go when all have passed them.",
    )
    retain_hard_time_s: float | None = inherited(
        0.0, "Delete segments at this age, even if cursors hold them; 0: never.", minimum=0,
    )
    retain_hard_bytes: int | None = inherited(
        0, "Delete segments above this many bytes, even if cursors hold them; 0: never.", minimum=0,
    )
    max_record_bytes: int | None = inherited(
        64 * _MB,
        "Refuse a larger record, with what it carries. One of more than 1,040,364 bytes is stored "
        "in chunks, which a Java reader gets one by one.",
        minimum=0,
    )
    max_total_bytes: int | None = inherited(
        0, "Refuse appends to a stream that holds so much; 0: no limit.", minimum=0,
    )
    max_records_per_s: float | None = inherited(
        0.0, "A writer's records wait for each other above this rate; 0: never.", minimum=0,
    )
    max_bytes_per_s: float | None = inherited(
        0.0, "The same by the bytes of entries.", minimum=0,
    )
    placement: str | None = inherited(
        "", "How bookies are chosen; empty: as the client has it.",
        choices=("", "rack-aware", "region-aware", "zone-aware", "random"),
    )
    min_racks: int | None = inherited_as(PlacementOptions, "min_racks")
    enforce_racks: bool | None = inherited_as(PlacementOptions, "enforce_racks")
    regions: str | None = inherited(
        "", "The regions that are written to, with commas between; empty: all.",
    )
    disallowed_regions: str | None = inherited(
        "", "Regions that get no new copies, with commas between.",
    )
    min_regions: int | None = inherited_as(PlacementOptions, "min_regions")
    enforce_regions_in_replacement: bool | None = inherited_as(
        PlacementOptions, "enforce_regions_in_replacement",
    )
    min_zones: int | None = inherited_as(PlacementOptions, "min_zones")
    desired_zones: int | None = inherited_as(PlacementOptions, "desired_zones")
    enforce_zones: bool | None = inherited_as(PlacementOptions, "enforce_zones")
    enforce_ack_domains: bool | None = inherited_as(PlacementOptions, "enforce_ack_domains")
    bookie_labels: str | None = inherited(
        "", "What the bookies of segments must carry, as zone=eu,disk=ssd.",
    )
    denied: str | None = inherited(
        "",
        "What nobody may do, of write, truncate, delete, acquire and release, with commas between; "
        "in addition to the namespace's access control, which is all that a Java client heeds.",
    )
    txid: str | None = inherited(
        "monotonic",
        "monotonic (never below the one before), timestamp (the wall clock's milliseconds where "
        "none is given, and monotonic) or free.",
        choices=("free", "monotonic", "timestamp"),
    )
    # fmt: on

    def check_together(self) -> None:
        """Refuse what contradicts itself."""
        self.labels()
        self.denials()
        self.placement_metadata()
        sizes = (self.ack_quorum_size, self.write_quorum_size, self.ensemble_size)
        said = [size for size in sizes if size is not None]
        if said != sorted(said):
            raise ConfigError(
                "policy.ack_quorum_size <= policy.write_quorum_size <= policy.ensemble_size"
                f" does not hold: {' <= '.join(map(str, said))}"
            )

    def over(self, inherited: StreamPolicy) -> StreamPolicy:
        """Return this policy; values that it leaves out are taken from another policy."""
        mine = _given(self)
        return dataclasses.replace(inherited, **mine)

    def labels(self) -> dict[str, str]:
        """Return the labels that the bookies of segments must carry."""
        texts = [each for each in (self.bookie_labels or "").split(",") if each]
        return parse_labels(texts, "bookie_labels")

    def placement_metadata(self) -> dict[str, bytes]:
        """Return the custom metadata that tell how the ledgers of segments are placed.

        Raises:
            ConfigError: it is no placement.
        """
        given: dict[str, Any] = {}
        for name, kind in LEDGER_OPTIONS.items():
            value = getattr(self, "placement" if name == "policy" else name)
            if value is not None and value != "":
                given[name] = _words(str(value)) if kind is list else value
        return {PLACEMENT_KEY: encode_options(given)} if given else {}

    def ledger_keywords(self, custom_metadata: Mapping[str, bytes]) -> LedgerKeywords:
        """Return the keywords of ``create_ledger`` for this policy, which must be complete."""
        return {
            "ensemble_size": known(self.ensemble_size),
            "write_quorum_size": known(self.write_quorum_size),
            "ack_quorum_size": known(self.ack_quorum_size),
            "digest_type": DigestType[known(self.digest)],
            "custom_metadata": {**custom_metadata, **self.placement_metadata()},
            "bookie_labels": self.labels() or None,
        }

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
        """Return the data of a node; empty if everything is inherited."""
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
        try:
            return cls.of(found)
        except ConfigError as error:
            raise ConfigError(f"the policy at {path} is invalid: {error}") from error

    @staticmethod
    def is_in(data: bytes) -> bool:
        """Tell whether a node's data are a policy."""
        try:
            found = json.loads(data or b"{}")
        except ValueError:
            return False
        return isinstance(found, dict) and "version" in found

    @classmethod
    def parse(cls, texts: Mapping[str, str], source: str) -> StreamPolicy:
        """Build from what a person wrote, units included.

        Raises:
            ConfigError: a name or a value is not valid.
        """
        known = {each.name: each for each in cls.declared()}
        read = {
            name: known[name].parse(text, source=source) if name in known else text
            for name, text in texts.items()
        }
        return cls.of(read)


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
DEFAULTS = StreamPolicy.of(
    {each.name: each.default for each in StreamPolicy.declared() if each.name not in LEDGER_OPTIONS}
)
