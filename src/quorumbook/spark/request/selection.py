"""What is read: ``stream:eu/orders``, ``ledger:12,40-55`` or ``meta:ledgers``, the path of a load.

``pulsar:public/default/orders`` is the fourth kind.  The first two can be said by options as well:
``stream``, ``streams``, ``streamPattern``, ``ledgerIds`` and ``ledgerFilter``.  Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from quorumbook.errors import ConfigError
from quorumbook.pulsar.names import TopicName
from quorumbook.spark.options import SourceOptions
from quorumbook.streams.format.names import check_stream_name

_HOW = (
    "load('stream:NAME'), load('ledger:ID,FIRST-LAST'), load('pulsar:TENANT/NAMESPACE/TOPIC') or "
    "load('meta:TABLE')"
)
MAX_LEDGER_ID = 2**63 - 1
_RANGE = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")

META_TABLES = (
    "cluster",
    "bookies",
    "ledgers",
    "fragments",
    "replicas",
    "entries",
    "under_replicated",
    "streams",
    "segments",
    "cursors",
    "txns",
    "storage_usage",
)


class Selected(Enum):
    """The kinds of what can be read."""

    STREAM = "stream"
    LEDGER = "ledger"
    META = "meta"
    #: Topics of Apache Pulsar, which are streams to a query, and ledgers segments of them.
    PULSAR = "pulsar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is read; which fields count follows from the kind."""

    kind: Selected
    #: Streams by name …
    streams: tuple[str, ...] = ()
    #: … or all whose whole name a regular expression matches.
    stream_pattern: str = ""
    #: Ledgers: first and last id of each range …
    ledgers: tuple[tuple[int, int], ...] = ()
    #: … and, or, what their custom metadata must have.
    ledger_filter: Mapping[str, bytes] = field(default_factory=dict)
    table: str = ""
    #: Topics of Pulsar, each with its partitions if it has any.
    topics: tuple[str, ...] = ()

    def selects(self, name: str) -> bool:
        """Tell whether a stream, a partition of one or a ledger is meant, there or not.

        Which custom metadata a ledger has does not count here.
        """
        if self.kind is Selected.LEDGER:
            return any(first <= int(name) <= last for first, last in self.ledgers)
        if self.kind is Selected.PULSAR:
            return not {name, str(TopicName.parse(name).bare)}.isdisjoint(self.topics)
        above, _, number = name.rpartition("/p")
        names = {name, above} if number.isdecimal() else {name}
        if self.stream_pattern:
            return any(re.fullmatch(self.stream_pattern, each) for each in names)
        return not names.isdisjoint(self.streams)

    def __str__(self) -> str:
        if self.kind is Selected.LEDGER:
            ranges = (f"{a}" if a == b else f"{a}-{b}" for a, b in self.ledgers)
            return "ledger:" + ",".join(ranges)
        if self.kind is Selected.PULSAR:
            return "pulsar:" + ",".join(self.topics)
        return f"stream:{self.stream_pattern or ','.join(self.streams)}"


def parse_selection(path: str, options: SourceOptions) -> Selection:
    """Read what ``load`` and the options say.

    Raises:
        ConfigError: they say nothing, or contradict each other.
    """
    kind, colon, rest = path.partition(":")
    if path and not colon:
        raise ConfigError(f"path {path!r} does not say what is read: {_HOW}")
    named = {
        name: options.text(name)
        for name in ("stream", "streams", "streamPattern", "ledgerIds", "ledgerFilter")
        if options.is_given(name)
    }
    if path:
        option = {
            "stream": "streams", "ledger": "ledgerIds", "meta": "meta", "pulsar": "pulsar"
        }.get(kind)  # fmt: skip
        if option is None:
            raise ConfigError(f"path {path!r}: there is no {kind!r} to read: {_HOW}")
        if option in named or (kind == "stream" and named.keys() & {"stream", "streamPattern"}):
            raise ConfigError(f"path {path!r} and an option both say which {kind} is read")
        named[option] = rest
    return _selection(named)


def _selection(named: Mapping[str, str]) -> Selection:
    streams = named.keys() & {"stream", "streams", "streamPattern"}
    ledgers = named.keys() & {"ledgerIds", "ledgerFilter"}
    if not named:
        raise ConfigError(f"nothing says what is read: {_HOW}")
    others = named.keys() & {"meta", "pulsar"}
    if bool(streams) + bool(ledgers) + bool(others) > 1 or len(streams) > 1:
        raise ConfigError(f"{' and '.join(sorted(named))} contradict each other")
    if "meta" in named:
        return Selection(kind=Selected.META, table=_table(named["meta"]))
    if "pulsar" in named:
        parts = filter(None, map(str.strip, named["pulsar"].split(",")))
        topics = dict.fromkeys(str(TopicName.parse(part)) for part in parts)
        if not topics:
            raise ConfigError(f"nothing says which topic is read: {_HOW}")
        return Selection(kind=Selected.PULSAR, topics=tuple(topics))
    if ledgers:
        wanted = _filter(named.get("ledgerFilter", ""))
        ids = parse_ledger_ids(named.get("ledgerIds", "*" if wanted else ""))
        if not ids:
            raise ConfigError(f"{' and '.join(sorted(named))} name no ledger; * stands for all")
        return Selection(kind=Selected.LEDGER, ledgers=ids, ledger_filter=wanted)
    if "streamPattern" in named:
        return Selection(kind=Selected.STREAM, stream_pattern=_pattern(named["streamPattern"]))
    (option,) = streams
    texts = [named[option]] if option == "stream" else named[option].split(",")
    names = [check_stream_name(text.strip()) for text in texts if text.strip()]
    if not names:
        raise ConfigError(f"{option} names no stream")
    return Selection(kind=Selected.STREAM, streams=tuple(dict.fromkeys(names)))


def parse_ledger_ids(text: str) -> tuple[tuple[int, int], ...]:
    """Read ``12,40-55``, or ``*`` for all; the ranges come back ascending and disjoint.

    Raises:
        ConfigError: it is not of that form.
    """
    if text.strip() == "*":
        return ((0, MAX_LEDGER_ID),)
    found: list[tuple[int, int]] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"ledgerIds: {part!r} is neither an id nor FIRST-LAST")
        found.append((int(match[1]), int(match[2] or match[1])))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _filter(text: str) -> dict[str, bytes]:
    found = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"ledgerFilter: {part!r} is not of the form KEY=VALUE")
        found[key.strip()] = value.strip().encode()
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"streamPattern {text!r} is not a regular expression: {error}") from None
    return text


def _table(name: str) -> str:
    if name not in META_TABLES:
        near = difflib.get_close_matches(name, META_TABLES, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(META_TABLES)}"
        raise ConfigError(f"there is no table meta:{name}{hint}")
    return name
