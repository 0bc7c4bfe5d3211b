"""What Spark's checkpoint says of a batch: the offsets between which its rows are.

    <checkpoint>/offsets/<batch>    a line with a version, a line with times and settings, and
                                    a line for each source: where the batch ends in it

Spark writes this file before it plans the batch, and reads it when it does the batch again.  So a
batch whose offsets are others than those it was committed with is another one under an old number,
as a checkpoint has it that lost its newest files or was put back.  The sink is told by Spark where
the checkpoint is, but not how Spark reads it: what cannot be read here has no digest.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.streams.tier.places import below, file_system

_DIGEST_BYTES = 16
#: The lines of the version, and of what two plans of one batch may have different.
_HEAD_LINES = 2


def batch_digest(checkpoint: str, batch: int) -> str:
    """Return a digest of a batch's offsets, where it begins and ends; empty: they are not known."""
    if not checkpoint:
        return ""
    try:
        system, path = file_system(below(re.sub("^file:/+", "/", checkpoint), "offsets"))
        ends = [_sources(system, f"{path}/{number}") for number in (batch - 1, batch)]
    except (ConfigError, OSError):
        return ""
    if ends[1] is None:
        return ""
    return hashlib.blake2b(repr(ends).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _sources(system: Any, path: str) -> list[bytes] | None:
    """Return the lines of all sources; None: there is no such batch."""
    try:
        with system.open_input_stream(path) as file:
            found: bytes = file.read()
    except FileNotFoundError:
        return None
    return found.splitlines()[_HEAD_LINES:]
