"""Which partition a record goes to, and positions over partitions; pure."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

from quorumbook.errors import LocalProtocolError, QuorumbookError
from quorumbook.streams.errors import PartlySealedError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.position import Position, parse_position
from quorumbook.streams.writing.appended import Appended

T = TypeVar("T")


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition that a key's records are in: as librdkafka's clients of Kafka do it."""
    return zlib.crc32(key) % partition_count


def partition_name(name: str, number: int) -> str:
    """Return the name of the stream that is a partition."""
    return f"{name}/p{number}"


def bare_name(name: str, number: int) -> str:
    """Return the name of the stream whose partition one is; a number below 0: it is none."""
    return name.removesuffix(f"/p{number}") if number >= 0 else name


class StreamCut(dict[int, Position]):
    """A cut through a partitioned stream: positions by partition."""

    def to_json(self) -> dict[str, str]:
        """Return what ``from_json`` takes, made of strings."""
        return {str(number): str(position) for number, position in sorted(self.items())}

    @classmethod
    def from_json(cls, data: dict[str, str]) -> StreamCut:
        """Return the cut that ``to_json`` was called on."""
        return cls((int(number), parse_position(text)) for number, text in data.items())


class PartitionAppended(NamedTuple):
    """Where a record of a partitioned stream is."""

    partition: int
    appended: Appended


class Partitioner:
    """Says where records go: to their key's partition, without a key to the next in turn."""

    def __init__(self, name: str, partition_count: int, held: Collection[int]) -> None:
        """Take the stream's name and the partitions that can be written."""
        self._name = name
        self._partition_count = partition_count
        self._held = sorted(held)
        self._turn = -1

    def choose(self, key: bytes | None, partition: int | None = None) -> int:
        """Return the partition of a record.

        Raises:
            LocalProtocolError: it is not held.
        """
        if partition is not None:
            number = partition
        elif key is not None:
            number = partition_of(key, self._partition_count)
        else:
            self._turn = (self._turn + 1) % len(self._held)
            number = self._held[self._turn]
        if number not in self._held:
            raise LocalProtocolError(
                f"partition {number} of stream {self._name} is not among those that this writer "
                f"holds: {', '.join(map(str, self._held))}"
            )
        return number

    def parts(
        self, count: int, attributes: Sequence[Attributes | None] | None
    ) -> dict[int, list[int]]:
        """Return which of so many records go to each partition; without any key all to one."""
        if attributes is None:
            return {self.choose(None): list(range(count))} if count else {}
        if len(attributes) != count:
            raise LocalProtocolError(f"{len(attributes)} keys were given for {count} records")
        keys = [None if each is None else each.key for each in attributes]
        found: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            found.setdefault(self.choose(key), []).append(index)
        return found


def keyed(key: bytes | None) -> Attributes | None:
    """Return what a record carries beside its payload: its key."""
    return None if key is None else Attributes(key=key)


def chosen(items: Sequence[T], indexes: Sequence[int]) -> list[T]:
    """Return the items at some indexes."""
    return [items[index] for index in indexes]


def in_order(
    parts: Mapping[int, Sequence[int]], stored: Mapping[int, Sequence[Appended]]
) -> list[PartitionAppended]:
    """Return where the records of a batch are, in the order they were given."""
    found = [
        (index, PartitionAppended(number, appended))
        for number, indexes in parts.items()
        for index, appended in zip(indexes, stored[number], strict=True)
    ]
    return [appended for _, appended in sorted(found)]


def check_sealed(name: str, count: int, failed: dict[int, QuorumbookError]) -> None:
    """Raise PartlySealedError if some of so many partitions could not be sealed."""
    if failed:
        reasons = "; ".join(f"p{number}: {error}" for number, error in failed.items())
        raise PartlySealedError(
            f"{len(failed)} of {count} partitions of stream {name} were not sealed, {reasons}; "
            "seal it again",
            failed=failed,
        )
