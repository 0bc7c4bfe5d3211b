"""Where a query begins and a batch ends, as the options say it; pure.

    startingOffsets   earliest | latest | {"eu/orders": 17, "b": -2} | the JSON of a checkpoint
                      {"orders": {"0": 17, "1": -2}} by partitions
                      {"eu/orders": "txid:5000"}, the first record with this id or a larger one
                      {"public/default/orders": "12:40"}, ledger and entry of a topic of Pulsar
    startingTimestamp, startingOffsetsByTimestamp {"eu/orders": 1700000000000}

Numbers are sequence ids of streams and entry ids of ledgers; -2 is the earliest, -1 the latest, as
Kafka's source has it, and a time wins over an offset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from quorumbook.errors import ConfigError
from quorumbook.spark.request.offsets import Offset, Offsets, parse_offset
from quorumbook.streams.partitions.partitioning import partition_name

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}

_TXID = re.compile(r"txid:(\d{1,19})")
_MESSAGE = re.compile(r"(\d{1,18}):(\d{1,18})(?::(\d{1,9}))?")


class MessagePlace(NamedTuple):
    """Where a message of a topic of Pulsar is: ledger, entry, which one of its batch."""

    ledger_id: int
    entry_id: int
    batch_index: int


class TxidPlace(NamedTuple):
    """The first record of a stream with a transaction id, or with a larger one."""

    txid: int


#: A sequence or entry id, EARLIEST, LATEST, what a checkpoint has, or what is said in words.
Place: TypeAlias = int | Offset | TxidPlace | MessagePlace


@dataclass(frozen=True, slots=True)
class Where:
    """One end of what is read: of everything, or of each stream or ledger by name."""

    #: The option it comes from; for messages.
    option: str
    default: int
    places: Mapping[str, Place]
    #: Milliseconds since 1970, of each …
    times_ms: Mapping[str, int]
    #: … or of all; None: no time is given.
    time_ms: int | None = None

    def time_of(self, name: str, title: str) -> int | None:
        """Return the time that stands for a name, or for the stream whose partition it is."""
        return self.times_ms.get(name, self.times_ms.get(title, self.time_ms))

    def place_of(self, name: str, title: str) -> Place:
        """Return the place that does."""
        return self.places.get(name, self.places.get(title, self.default))


def parse_where(
    option: str, offsets: str, times: str, time_ms: int | None, *, default: int
) -> Where:
    """Read the options of one end.

    Args:
        option: ``starting`` or ``ending``.
        offsets: ``startingOffsets``; empty if not given.
        times: ``startingOffsetsByTimestamp``.
        time_ms: ``startingTimestamp``.
        default: EARLIEST or LATEST.

    Raises:
        ConfigError: one is neither a word nor such JSON.
    """
    name = f"{option}Offsets"
    if offsets.lower() in _WORDS:
        default, offsets = _WORDS[offsets.lower()], ""
    if option == "ending" and default == EARLIEST:
        raise ConfigError("endingOffsets: a batch that ends at the earliest has nothing in it")
    places: dict[str, Place] = {}
    try:
        found = _object(offsets)
        if "v" in found and "c" in found:
            stored = Offsets.decode(found, str(found["c"]))
            places = {**stored.streams, **stored.ledgers}
        else:
            places = {key: _place(value) for key, value in _by_partition(found)}
        by_time = {key: _time(value) for key, value in _by_partition(_object(times))}
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{name}{'ByTimestamp' if times else ''}: {error}; write earliest, latest, or JSON "
            'such as {"eu/orders": 17}'
        ) from error
    return Where(name, default, places, by_time, time_ms)


def _object(text: str) -> dict[str, Any]:
    if not text:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"{text!r} is not a JSON object")
    return found


def _by_partition(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is said of each name, with partitions by their own names."""
    for name, value in found.items():
        if not isinstance(value, dict):
            yield name, value
            continue
        for number, each in value.items():
            if not number.isdecimal():
                raise ValueError(f"{number!r} is not a partition of {name}")
            yield partition_name(name, int(number)), each


def _place(value: Any) -> Place:
    if isinstance(value, list):
        return parse_offset(value)
    if isinstance(value, str):
        match = _TXID.fullmatch(value)
        if match is not None:
            return TxidPlace(int(match[1]))
        match = _MESSAGE.fullmatch(value)
        if match is None:
            raise ValueError(
                f"{value!r} is not an offset (streams have txid:NUMBER besides, topics of Pulsar "
                "LEDGER:ENTRY)"
            )
        return MessagePlace(int(match[1]), int(match[2]), int(match[3] or 0))
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError(f"{value!r} is not an offset")
    return value


def _time(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a time in milliseconds")
    return value


def check_names(where: Where, titles: Mapping[str, str]) -> None:
    """Raise ConfigError unless a JSON object speaks of what is read, and of all of it.

    Args:
        where: With the JSON objects.
        titles: By the names of what is read; a partition may be spoken of by its stream's.
    """
    for given in (where.places, where.times_ms):
        strange = sorted(given.keys() - titles.keys() - {*titles.values()})
        if strange:
            raise ConfigError(f"{where.option} names {', '.join(strange)}, which is not read")
        missing = sorted(name for name in titles if not {name, titles[name]} & given.keys())
        if given and missing:
            raise ConfigError(
                f"{where.option} says nothing of {', '.join(missing[:5])}: name all that is read; "
                "-2 stands for the earliest, -1 for the latest"
            )
