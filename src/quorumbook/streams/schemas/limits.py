"""What a schema or a record may ask of whoever decodes it; pure.

Everybody who may write a stream, or set its schema, can send what was made to hurt.  The limits
count bytes, levels and steps, never seconds: a record that is refused is refused again on every
machine, so that a batch which is run again has the same good and bad records.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

#: Of one record that is decoded.
MAX_RECORD_BYTES = 1 << 20
#: How deep values, and schemas, lie in each other.
MAX_DEPTH = 64
#: Types of a schema, each counted as often as it is used.
MAX_TYPES = 2_000
#: Of all defaults of a schema together: a record of a few bytes is given them.
MAX_DEFAULT_BYTES = 4_096
#: Values of one record: numbers, texts, lists, objects.
MAX_VALUES = 100_000
#: Of all texts and bytes of one record that becomes a row: symbols and defaults are in none of its
#: bytes, and there may be many of them.
MAX_TEXT_BYTES = 1 << 24
#: What the rules of a JSON Schema look at for one record, a rule counting ten.
MAX_STEPS = 10_000_000

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


class TooMuchError(ValueError):
    """A schema or a record asks for more than a limit allows."""


class StepBudget:
    """Counts something down, and raises when none of it is left."""

    __slots__ = ("_left", "_what")

    def __init__(self, limit: int, what: str) -> None:
        """Take how many there may be, and what to say when there are more."""
        self._left = limit
        self._what = f"more than {limit} {what}"

    def take(self, count: int = 1) -> None:
        """Count one, or several."""
        self._left -= count
        if self._left < 0:
            raise TooMuchError(self._what)


def check_depth(depth: int) -> None:
    """Raise TooMuchError where something lies deeper than ``MAX_DEPTH``."""
    if depth > MAX_DEPTH:
        raise TooMuchError(f"more than {MAX_DEPTH} levels in each other")


def parse_json(data: bytes) -> Any:
    """Read JSON, strictly: no NaN, no infinity, no name twice in an object.

    Raises:
        ValueError: it is not JSON, or it lies too deep in itself.
    """
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_json_depth(data)
    return json.loads(data, parse_constant=_refuse, parse_float=_float, object_pairs_hook=_object)


def _check_json_depth(data: bytes) -> None:
    # json.loads would find that out too, but where depends on how deep its caller is.
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", data)):
        if bracket[0] in b"[{":
            depth += 1
            check_depth(depth)
        else:
            depth -= 1


def _float(text: str) -> float:
    value = float(text)
    if value in (math.inf, -math.inf):
        raise ValueError(f"{text[:40]} is beyond the range of numbers")
    return value


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counted.items() if count > 1)
        raise ValueError(f"{twice[:40]!r} stands twice in an object")
    return found


def short(value: object) -> str:
    """Return a few characters of a value of JSON, without a text of all of it."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return repr(cut(value))
    if isinstance(value, int) and value.bit_length() > 100:
        return "a large number"
    return json.dumps(value)


def cut(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= 40 else f"{text[:40]}…"
