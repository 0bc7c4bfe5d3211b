"""What jobs about streams share: how they are told which ones, and which of them there are."""

from __future__ import annotations

from collections.abc import Sequence

from quorumbook.env.tasks import of_each
from quorumbook.errors import ConfigError
from quorumbook.streams import Namespace
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


async def chosen_streams(namespace: Namespace, names: Sequence[str]) -> Sequence[str]:
    """Return the streams that a job is about; without names, all.

    Raises:
        StreamNotFoundError: one that is named is not there.
    """
    if not names:
        return [name async for name in namespace.streams()]
    # Says so if there is none.
    await of_each(lambda name: stream_context(namespace.stream(name)).nodes.max_txid(), names)
    return names
