"""What ``.option(...)`` can say: names, types and defaults; pure.

Names are Kafka's where the meaning is equal, and case does not matter, as Spark has it.  Options
that begin with ``client.``, ``tls.`` or ``placement.`` are those of docs/configuration.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quorumbook.config import Kind, Option, Value
from quorumbook.errors import ConfigError

#: Options of the configuration, by their section.
PASSED_ON = ("client.", "tls.", "placement.")
#: What Spark adds by itself.
_OF_SPARK = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
_SECRETS = frozenset({"password", "digestpassword", "secret", "token"})
#: What Spark hands over of a table of its catalog, instead of the options that were given for it.
_OF_TABLES = frozenset({"provider", "owner", "location", "is_managed_location", "comment"})
#: What stands here for options of Kafka's source and sink that have another name.
_OF_KAFKA = {
    "assign": "load('stream:orders/p0,orders/p1') reads some partitions",
    "groupidprefix": "cursor names the durable cursor of a query",
    "kafka.bootstrap.servers": "metadataServiceUri says where the cluster is",
    "kafka.group.id": "cursor names the durable cursor of a query",
    "maxoffsetspertrigger": "maxRecordsPerTrigger limits a batch",
    "minoffsetspertrigger": "minEntriesPerTrigger is what a batch waits for",
    "subscribe": "load('stream:NAME,NAME') says what is read",
    "subscribepattern": "streamPattern says what is read",
    "topic": "save('stream:NAME') says where all rows go, or a column stream or topic",
}


class Use(Enum):
    """What an option can be given to."""

    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READS = (Use.READ, Use.READ_STREAM)
WRITES = (Use.WRITE, Use.WRITE_STREAM)


@dataclass(frozen=True, slots=True)
class SourceOption(Option):
    """One option of the data source."""

    uses: tuple[Use, ...] = tuple(Use)

    @property
    def key(self) -> str:
        """The name that people write."""
        return self.name


def option(
    name: str,
    kind: Kind,
    default: Value,
    text: str,
    uses: Sequence[Use] = tuple(Use),
    **bounds: Any,
) -> SourceOption:
    """Return an option."""
    return SourceOption("", name, kind, default, text, uses=tuple(uses), **bounds)


class SourceOptions:
    """The values of all options for one use; ``options["maxBatchRows"]``."""

    def __init__(
        self, values: Mapping[str, Value], given: frozenset[str], passed_on: tuple[str, ...]
    ) -> None:
        """Take what ``parse`` found."""
        self._values = values
        self._given = given
        #: ``KEY=VALUE`` of the configuration's options.
        self.passed_on = passed_on

    def is_given(self, name: str) -> bool:
        """Tell whether somebody said it."""
        return name in self._given

    def text(self, name: str) -> str:
        """Return the value of a text option."""
        value = self._values[name]
        assert isinstance(value, str), name
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the value of a list option."""
        value = self._values[name]
        assert isinstance(value, tuple), name
        return value

    def integer(self, name: str) -> int:
        """Return the value of an integer or size option."""
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def seconds(self, name: str) -> float:
        """Return the value of a duration option."""
        value = self._values[name]
        assert isinstance(value, int | float), name
        return float(value)

    def flag(self, name: str) -> bool:
        """Return the value of a switch."""
        value = self._values[name]
        assert isinstance(value, bool), name
        return value


def parse(
    given: Mapping[str, str], table: Sequence[SourceOption], use: Use | None = None
) -> SourceOptions:
    """Read options.

    Args:
        given: As Spark hands them over; case does not matter.
        table: All options there are.
        use: What they are for; None: that is not known yet, and all are accepted.

    Raises:
        ConfigError: one is unknown (the nearest names are in the message), not for this use, or
            its value is none.
    """
    known = {each.name.lower(): each for each in table}
    values: dict[str, Value] = {each.name: each.default for each in table}
    said: set[str] = set()
    passed_on = []
    for name, raw in given.items():
        lower = name.lower()
        if lower.startswith(PASSED_ON):
            passed_on.append(f"{lower}={raw}")
        elif lower in known:
            found = known[lower]
            if use is not None and use not in found.uses:
                uses = " and ".join(each.value for each in found.uses)
                raise ConfigError(f"option {found.name} is for {uses}, not for {use.value}")
            values[found.name] = found.parse(raw, source="option")
            said.add(found.name)
        elif lower not in _OF_SPARK:
            raise _unknown(name, [each.name for each in table if use is None or use in each.uses])
    return SourceOptions(values, frozenset(said), tuple(sorted(passed_on)))


def _unknown(name: str, names: Sequence[str]) -> ConfigError:
    if name.lower() in _SECRETS:
        return ConfigError(
            f"option {name} would show a secret in Spark's plans and logs; give passwordFile (a "
            "file on every executor) or passwordEnv (a variable of their environment)"
        )
    if name.lower() in _OF_TABLES:
        return ConfigError(
            "CREATE TABLE cannot be used: Spark 4.3 forgets the options of a table whose source is "
            "in Python. CREATE TEMPORARY VIEW v USING quorumbook OPTIONS (path 'stream:NAME', "
            "metadataServiceUri '...') keeps them; so does SELECT ... FROM a table WITH (...), "
            "made with columns and without options"
        )
    instead = _OF_KAFKA.get(name.lower())
    if instead is None and name.lower().startswith("kafka."):
        instead = "what begins with client. or tls. says how connections are made"
    if instead is not None:
        return ConfigError(f"there is no option {name}; {instead}")
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_lower, 3, 0.5)
    hint = f"; the nearest are {', '.join(by_lower[each] for each in near)}" if near else ""
    return ConfigError(f"there is no option {name}{hint}")
