"""What jobs about streams share: how they are told which ones, and which of them there are."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from quorumbook.errors import ConfigError
from quorumbook.streams import Namespace
from quorumbook.streams.partitions.partition_node import partition_count, partitioned_among
from quorumbook.streams.partitions.partitioning import partition_name
from quorumbook.streams.stream_context import stream_context

_PREFIX = "stream:"


def is_stream(text: str) -> bool:
    """Tell whether streams are named, whatever else may be given in their place."""
    return text.startswith(_PREFIX)


def stream_names(option: str, text: str, how: str = "stream:NAME,NAME") -> list[str]:
    """Read ``stream:NAME,NAME``.

    Args:
        option: Who says it, such as ``--from``.
        text: What is said.
        how: What may be.

    Raises:
        ConfigError: it is something else.
    """
    names = [name.strip() for name in text.removeprefix(_PREFIX).split(",") if name.strip()]
    if not is_stream(text) or not names:
        raise ConfigError(f"{option} {text}: {how}")
    return names


def stream_name(option: str, text: str, how: str = "stream:NAME") -> str:
    """Read ``stream:NAME``; see ``stream_names``."""
    names = stream_names(option, text, how)
    if len(names) > 1:
        raise ConfigError(f"{option} {text}: {how}")
    return names[0]


def some_or_all(option: str, text: str, how: str = "stream:NAME,NAME or stream:*") -> Sequence[str]:
    """Read ``stream:NAME,NAME``, or ``stream:*``, which is no name; see ``chosen_streams``."""
    names = stream_names(option, text, how)
    return () if names == ["*"] else names


class Chosen(NamedTuple):
    """A stream that a job is about."""

    name: str
    #: What it is called in rows: a partition as its stream.
    title: str
    #: Which one of a partitioned stream; below 0: it is none.
    partition: int = -1


async def chosen(namespace: Namespace, names: Sequence[str]) -> list[Chosen]:
    """Return the streams that a job is about; without names, all.

    A partitioned stream's name stands for all its partitions; one that is named by itself has
    its own name in rows.

    Raises:
        StreamNotFoundError: one that is named is not there.
    """
    if not names:
        names = [name async for name in namespace.streams()]
        above = set(await partitioned_among(namespace, names))
        return [_as_partition(name, above) for name in names]
    found: list[Chosen] = []
    for name in names:
        count = await partition_count(namespace, name)
        if count is not None:
            found += [Chosen(partition_name(name, n), name, n) for n in range(count)]
            continue
        # Says so if there is none.
        await stream_context(namespace.stream(name)).nodes.max_txid()
        found.append(Chosen(name, name))
    return found


async def chosen_streams(namespace: Namespace, names: Sequence[str]) -> list[str]:
    """Return the names of the same."""
    return [each.name for each in await chosen(namespace, names)]


def _as_partition(name: str, partitioned: Collection[str]) -> Chosen:
    above, _, part = name.rpartition("/")
    if above not in partitioned or not re.fullmatch("p[0-9]+", part):
        return Chosen(name, name)
    return Chosen(name, above, int(part[1:]))
