"""How far a query has read, as the JSON that Spark keeps in its checkpoint; pure.

    {"c": "<instance id>", "s": {"eu/orders": [birth, segment, entry]}, "t": {}, "v": 1}
    {"c": "<id>", "h": 57, "l": {"12": 40}, "m": [[50, 52]], "t": {"12": [30, 15]}, "v": 1}

``s`` has streams: which one of this name it is and of its segments' numberings (``birth_of``), and
the entry that is read next; a fourth number is the slot in it, where a query began in the middle of
an entry, and a fifth the ledger that has the entry before, by which it is found where segments were
merged (``relocation``).  ``l`` has ledgers and their next entries; those up to ``h`` that are not
in it are finished, but for those from first to last in ``m``, which were not there yet: somebody
takes an id a while before it has a ledger.  ``t`` has the tasks of the batch that ends here, so
that it is cut alike when it is done again, whatever sizes are known and options are given then: at
how many entries before the end of a stream or ledger a task begins (``planning.cut``).  Spark
compares the text, so keys are sorted and there are only integers.  What is read always ends between
two entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quorumbook.errors import ConfigError
from quorumbook.spark.request.planning import Cuts

_VERSION = 1
_STREAM_BITS = 64
#: So many of the newest ids may get their ledgers late; a checkpoint is bounded by them.
LATE_IDS = 1000


def birth_of(stream: int, numbering: int) -> int:
    """Return the number for one stream, as its segments are numbered.

    Args:
        stream: Another one for a stream that is deleted and made again.
        numbering: Another one after segments were merged; 0: none ever were.
    """
    return numbering << _STREAM_BITS | stream


def is_same_stream(birth: int, other: int) -> bool:
    """Tell whether two are of one stream, whatever was merged between."""
    return not (birth ^ other) & (1 << _STREAM_BITS) - 1


class Offset(NamedTuple):
    """The next record of one stream or ledger."""

    #: Which stream of its name it is, and which numbering, see ``birth_of``; 0: ledgers.
    birth: int
    segment: int
    entry: int
    slot: int = 0
    #: Which has the entry before; below 0: not known.
    ledger: int = -1

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it is; places of one stream are ordered."""
        return self[1:4]


@dataclass(frozen=True, slots=True)
class Offsets:
    """The next records of everything that a query reads."""

    cluster: str
    streams: Mapping[str, Offset] = field(default_factory=dict)
    #: By id, as text.
    ledgers: Mapping[str, Offset] = field(default_factory=dict)
    #: The highest ledger seen; -1 of a query of streams.
    highest_ledger: int = -1
    #: Where tasks of the batch that ends here begin; None: nothing was planned.
    cuts: Cuts | None = None
    #: Ids up to the highest that had no ledger yet.
    missing: frozenset[int] = frozenset()

    def is_new(self, ledger_id: int) -> bool:
        """Tell whether a ledger was not there before."""
        return ledger_id > self.highest_ledger or ledger_id in self.missing

    def missing_up_to(self, highest: int, there: Collection[int]) -> frozenset[int]:
        """Return which ids up to the highest still have no ledger.

        Args:
            highest: The highest that was seen by now.
            there: Those that were seen.
        """
        window = range(max(highest - LATE_IDS, -1) + 1, highest + 1)
        return frozenset(n for n in window if self.is_new(n)).difference(there)

    def encode(self) -> dict[str, Any]:
        """Return what is stored; equal offsets make equal texts."""
        found: dict[str, Any] = {"c": self.cluster}
        if self.highest_ledger >= 0:
            found["h"] = self.highest_ledger
        if self.ledgers or self.highest_ledger >= 0:
            by_id = sorted(self.ledgers, key=int)
            found["l"] = {ledger_id: self.ledgers[ledger_id].entry for ledger_id in by_id}
        else:
            found["s"] = {name: _numbers(self.streams[name]) for name in sorted(self.streams)}
        if self.missing:
            found["m"] = _ranges(self.missing)
        if self.cuts is not None:
            found["t"] = {name: list(cuts) for name, cuts in self.cuts.items()}
        found["v"] = _VERSION
        return found

    @classmethod
    def decode(cls, stored: Mapping[str, Any], cluster: str) -> Offsets:
        """Read what is stored.

        Raises:
            ConfigError: it is of another cluster or a newer release, or none of ours.
        """
        try:
            version = stored["v"]
            if version != _VERSION:
                raise ConfigError(
                    f"the checkpoint's offsets are of version {version}, this release reads "
                    f"{_VERSION}: run the query with a newer release"
                )
            if stored["c"] != cluster:
                raise ConfigError(
                    f"the checkpoint is of cluster {stored['c']}, but the metadata URI leads to "
                    f"cluster {cluster}: correct the URI, or begin with another checkpoint"
                )
            highest = int(stored.get("h", -1))
            return cls(
                cluster,
                {name: parse_offset(numbers) for name, numbers in stored.get("s", {}).items()},
                {
                    str(int(ledger_id)): Offset(0, 0, _natural(entry))
                    for ledger_id, entry in stored.get("l", {}).items()
                },
                highest,
                _parse_cuts(stored["t"]) if "t" in stored else None,
                _parse_ranges(stored.get("m", []), highest),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{stored!r} are not offsets of this data source") from error


def parse_offset(numbers: Any) -> Offset:
    """Read ``[birth, segment, entry]``, with slot and ledger if they are there.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(numbers, list) or not 3 <= len(numbers) <= 5:
        raise ValueError(f"{numbers!r} is not an offset")
    return Offset(*map(_natural, numbers))


def _natural(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r} is not a natural number")
    return number


def _parse_cuts(stored: Mapping[str, Any]) -> Cuts:
    return {name: tuple(map(_natural, cuts)) for name, cuts in stored.items()}


def _ranges(numbers: Collection[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def _parse_ranges(stored: Any, highest: int) -> frozenset[int]:
    found: set[int] = set()
    for first, last in stored:
        if not _natural(first) <= _natural(last) <= highest:
            raise ValueError(f"{first} to {last} are not ids up to {highest}")
        found.update(range(max(first, highest - LATE_IDS + 1), last + 1))
    return frozenset(found)


def _numbers(offset: Offset) -> list[int]:
    return list(offset if offset.ledger >= 0 else offset[:4] if offset.slot else offset[:3])


def fair_shares(available: Mapping[str, int], limit: int, turn: int = 0) -> dict[str, int]:
    """Divide a limit so that nobody gets less than another but for having less to give.

    Args:
        available: How much there is of each.
        limit: How much is taken at most, altogether.
        turn: Where there is less than one for each, whose turn it is.
    """
    shares = dict.fromkeys(available, 0)
    waiting = sorted((count, name) for name, count in available.items() if count > 0)
    for taken, (count, name) in enumerate(waiting):
        left = len(waiting) - taken
        if count * left <= limit:
            shares[name] = count
            limit -= count
            continue
        level, rest = divmod(limit, left)
        hungry = sorted(name for _, name in waiting[taken:])
        for place, each in enumerate(hungry):
            shares[each] = level + ((place - turn) % left < rest)
        break
    return shares


class Reached(NamedTuple):
    """How far a stream was read."""

    #: Which stream of its name it is: one that is made again has another.
    birth: int
    #: Of the record that comes next.
    sequence_id: int
