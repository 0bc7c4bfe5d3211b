"""What an option is, and how text becomes its value.

The options themselves stand in ``schema.py``; where their values come from is decided in
``load.py``.  Nothing here knows what an option is for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from quorumbook.errors import ConfigError

#: What an option can hold.  Lists are tuples of text.
Value: TypeAlias = bool | int | float | str | tuple[str, ...]

_UNIT_BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_BOOLEANS = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


class Kind(Enum):
    """The type of an option, named as the documentation prints it."""

    TEXT = "text"
    #: What a plug-in is called, or where its code is.
    PLUG_IN = "plug-in or module:Class"
    PROGRAM = "path of a program"
    LIST = "list of text"
    SWITCH = "true or false"
    INTEGER = "integer"
    NUMBER = "number"
    SIZE = "bytes"
    DURATION = "seconds"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its names, type, default, bounds, and one sentence for people."""

    #: The table it stands in, such as ``bookie``.
    section: str
    #: Our name within the section; a unit is its last word.
    name: str
    kind: Kind
    default: Value
    help: str
    #: The same option in the peer's files, or "" where the peer has none.
    peer_key: str = ""
    #: One of the peer's units in ours: a key in megabytes has 1048576, one in milliseconds 0.001.
    peer_unit: float = 1
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The full name, ``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"QUORUMBOOK_{self.section}_{self.name}".upper()

    def names_code(self, value: Value) -> bool:
        """Tell whether a value has code run that is not installed under a plug-in's name."""
        if self.kind is Kind.PLUG_IN:
            return ":" in str(value)
        return self.kind is Kind.PROGRAM and bool(value)

    def as_text(self, value: Value) -> str:
        """Return the text that ``parse`` makes a value of."""
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def bounds(self) -> str:
        """Say in words what values are allowed; "" if all are."""
        if self.choices:
            return "one of " + ", ".join(choice or "empty" for choice in self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"{self.minimum:.12g} to {self.maximum:.12g}"
        if self.minimum is not None:
            return f"at least {self.minimum:.12g}"
        if self.maximum is not None:
            return f"at most {self.maximum:.12g}"
        return ""

    def parse(self, raw: object, *, source: str, is_peer_unit: bool = False) -> Value:
        """Turn text or a TOML value into this option's value.

        Args:
            raw: what was written.
            source: where it was written, for the message.
            is_peer_unit: it stood under the peer's key, so a bare number has the peer's unit.

        Raises:
            ConfigError: it is no value of this type, or out of bounds.
        """
        try:
            value = self._convert(raw, self.peer_unit if is_peer_unit else 1)
        except (ValueError, TypeError, OverflowError):
            raise self._refused(raw, source, f"is not {_NAMES[self.kind]}") from None
        if self.choices and value not in self.choices:
            raise self._refused(raw, source, f"is not {self.bounds()}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.minimum is not None and value < self.minimum
            high = self.maximum is not None and value > self.maximum
            if low or high:
                raise self._refused(raw, source, f"is out of bounds ({self.bounds()})")
        return value

    def _convert(self, raw: object, unit: float) -> Value:
        match self.kind:
            case Kind.TEXT | Kind.PLUG_IN | Kind.PROGRAM:
                return _text(raw)
            case Kind.LIST:
                return _list(raw)
            case Kind.SWITCH:
                return raw if isinstance(raw, bool) else _BOOLEANS[_lower(raw)]
            case Kind.INTEGER:
                return _integer(raw)
            case Kind.NUMBER:
                return _number(raw)
            case Kind.SIZE:
                return _size(raw, unit)
            case Kind.DURATION:
                return _duration(raw, unit)

    def _refused(self, raw: object, source: str, why: str) -> ConfigError:
        return ConfigError(f"{self.key}: {raw!r} ({source}) {why}")


_NAMES = {
    Kind.TEXT: "a text",
    Kind.PLUG_IN: "a text",
    Kind.PROGRAM: "a text",
    Kind.LIST: "a list of texts",
    Kind.SWITCH: "true or false",
    Kind.INTEGER: "an integer",
    Kind.NUMBER: "a number",
    Kind.SIZE: "a size (a number of bytes, or a number with K, M, G or T)",
    Kind.DURATION: "a duration (a number of seconds, or a number with ms, s, m, h or d)",
}


def _lower(raw: object) -> str:
    lowered = _text(raw).strip().lower()
    if lowered not in _BOOLEANS:
        raise ValueError(lowered)
    return lowered


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(raw)
    return raw


def _list(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if not isinstance(raw, list | tuple):
        raise TypeError(raw)
    return tuple(_text(part) for part in raw)


def _integer(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise TypeError(raw)
    return int(raw)


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise TypeError(raw)
    value = float(raw)
    if value - value != 0:  # not a number, or infinite
        raise ValueError(raw)
    return value


def _size(raw: object, unit: float) -> int:
    if not isinstance(raw, str):
        return int(_number(raw) * unit)
    match = _SIZE.fullmatch(raw)
    if match is None:
        raise ValueError(raw)
    letter = match[2].upper()
    bare = raw.strip().replace(".", "").isdigit()
    return int(float(match[1]) * (unit if bare else _UNIT_BYTES[letter]))


def _duration(raw: object, unit: float) -> float:
    if not isinstance(raw, str):
        return _number(raw) * unit
    match = _DURATION.fullmatch(raw)
    if match is None or match[2].lower() not in _UNIT_SECONDS:
        raise ValueError(raw)
    number = _number(match[1])
    return number * (_UNIT_SECONDS[match[2].lower()] if match[2] else unit)
