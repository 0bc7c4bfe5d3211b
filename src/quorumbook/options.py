"""What an option is, where one is declared, and how text becomes its value.

An option is declared once, as a field of the class that uses it:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ScrubOptions(Options):
        SECTION: ClassVar = "scrub"
        interval_s: float = option(86400.0, "Time from one scrub to the next; 0: none.", minimum=0)

Its type follows from the field's, and from the unit that its name ends with.  Keys of files,
variables, ``config show``, the documentation and the keywords of ``connect`` come of these
fields; values are checked against them wherever they come from.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from quorumbook.errors import ConfigError

#: What an option can hold.  Lists are tuples of text, labels are what stands behind each key.
Value: TypeAlias = bool | int | float | str | tuple[str, ...] | Mapping[str, str]

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
P = ParamSpec("P")
Self_ = TypeVar("Self_", bound="Options")

#: A millisecond in seconds, for options that the peer keeps in milliseconds.
MS = 0.001

_UNIT_BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
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
    LABELS = "list of key=value"
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
    #: An object of options may leave it open, as None.
    is_inherited: bool = False
    #: It has no default: somebody has to say it.
    is_required: bool = False
    #: Its name on a command line, where that does not follow from ``name``.
    word: str = ""
    #: What stands for its value in the help of a command, where its kind does not say enough.
    metavar: str = ""

    @property
    def key(self) -> str:
        """The full name: ``section.name``, or its flag where it is a command's alone."""
        return f"{self.section}.{self.name}" if self.section else self.flag

    @property
    def flag(self) -> str:
        """Its name on a command line: the unit is left out where a value may have its own."""
        name = self.name.removesuffix("_s") if self.kind is Kind.DURATION else self.name
        return self.word or "--" + name.replace("_", "-")

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
        if isinstance(value, Mapping):
            return ",".join(f"{key}={each}" for key, each in value.items())
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
        self._check_bounds(value, raw, source)
        return value

    def check(self, value: object, *, source: str) -> None:
        """Refuse what is not of this option's type, or out of bounds; texts are not read.

        Raises:
            ConfigError: names option, value, bounds and source.
        """
        if not _FITS[self.kind](value):
            raise self._refused(value, source, f"is not {_NAMES[self.kind]}")
        self._check_bounds(value, value, source)

    def _check_bounds(self, value: object, raw: object, source: str) -> None:
        if self.choices and value not in self.choices:
            raise self._refused(raw, source, f"is not {self.bounds()}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.minimum is not None and value < self.minimum
            high = self.maximum is not None and value > self.maximum
            if low or high:
                raise self._refused(raw, source, f"is out of bounds ({self.bounds()})")

    def _convert(self, raw: object, unit: float) -> Value:
        match self.kind:
            case Kind.TEXT | Kind.PLUG_IN | Kind.PROGRAM:
                return _text(raw)
            case Kind.LIST:
                return _list(raw)
            case Kind.LABELS:
                return _labels(raw)
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


def option(
    default: T,
    help: str,  # noqa: A002 - what it is called everywhere
    *,
    kind: Kind | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    peer_key: str = "",
    peer_unit: float = 1,
    section: str = "",
    word: str = "",
    metavar: str = "",
    is_secret: bool = False,
) -> T:
    """Declare an option as a field of a class of ``Options``; see ``Option`` for what is said."""
    said = {
        "help": help, "minimum": minimum, "maximum": maximum, "choices": choices,
        "peer_key": peer_key, "peer_unit": peer_unit, "word": word, "metavar": metavar,
    }  # fmt: skip
    metadata = {_SAID: said, _SECTION: section, _KIND: kind}
    if isinstance(default, Mapping):
        return cast("T", dataclasses.field(default_factory=lambda: default, metadata=metadata))
    return dataclasses.field(default=default, repr=not is_secret, metadata=metadata)


def required(
    help: str,  # noqa: A002 - what it is called everywhere
    *,
    choices: tuple[str, ...] = (),
    word: str = "",
    metavar: str = "",
) -> str:
    """Declare a text that somebody has to say."""
    said = {
        "help": help, "choices": choices, "word": word, "metavar": metavar, "is_required": True,
    }  # fmt: skip
    metadata = {_SAID: said, _SECTION: "", _KIND: Kind.TEXT, _DEFAULT: ""}
    return cast("str", dataclasses.field(metadata=metadata))


def inherited(
    default: T,
    help: str,  # noqa: A002 - what it is called everywhere
    *,
    kind: Kind | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> T | None:
    """Declare an option that is None until somebody says something; then what is said here."""
    said = {
        "help": help, "minimum": minimum, "maximum": maximum, "choices": choices,
        "is_inherited": True,
    }  # fmt: skip
    metadata = {_SAID: said, _SECTION: "", _KIND: kind, _DEFAULT: default}
    return cast("T | None", dataclasses.field(default=None, metadata=metadata))


def inherited_as(kind: type[Options], name: str) -> Any:
    """Declare the same as an option of another class, None until somebody says something."""
    there = next(each for each in kind.declared() if each.name == name)
    return inherited(
        there.default, there.help,
        kind=there.kind, minimum=there.minimum, maximum=there.maximum, choices=there.choices,
    )  # fmt: skip


_SAID, _SECTION, _KIND, _DEFAULT = "said", "section", "kind", "default"


class Options:
    """A frozen dataclass whose fields are options; each value is checked when one is made."""

    __slots__ = ()

    #: Where the fields stand in a file.
    SECTION: ClassVar[str]

    def __post_init__(self) -> None:
        for declared in self.declared():
            value = getattr(self, declared.name)
            if value is not None or not declared.is_inherited:
                declared.check(value, source=f"{declared.name}=")
        self.check_together()

    def check_together(self) -> None:
        """Refuse values that contradict each other.

        Raises:
            ConfigError: names both options.
        """

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """Return the options of this class, in the order of their fields."""
        known = _DECLARED.get(cls)
        if known is None:
            known = _DECLARED[cls] = tuple(
                _declared(cls, each)
                for each in dataclasses.fields(cast("Any", cls))
                if _SAID in each.metadata
            )
        return known

    def keywords(self) -> dict[str, Any]:
        """Return every field by its name, as the constructor takes it."""
        return {
            each.name: getattr(self, each.name) for each in dataclasses.fields(cast("Any", self))
        }

    @classmethod
    def of(cls: type[Self_], given: Mapping[str, object]) -> Self_:
        """Build from keywords.

        Raises:
            ConfigError: there is no such option; it names the nearest.
        """
        names = [each.name for each in dataclasses.fields(cast("Any", cls))]
        for name in given:
            if name not in names:
                raise no_such_option(name, names)
        return cls(**given)


def no_such_option(name: str, names: Sequence[str]) -> ConfigError:
    """Return the error for a name that is none of these; it names the nearest."""
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"there is no option {name}{hint}")


_DECLARED: dict[type[Options], tuple[Option, ...]] = {}


def _declared(cls: type[Options], field: dataclasses.Field[Any]) -> Option:
    default: Any = field.metadata.get(_DEFAULT, field.default)
    if default is dataclasses.MISSING:
        default = cast("Any", field).default_factory()
    kind = field.metadata[_KIND] or _kind_of(field.name, default)
    section = field.metadata[_SECTION] or cls.SECTION
    return Option(section, field.name, kind, default, **field.metadata[_SAID])


def _kind_of(name: str, default: object) -> Kind:
    """Tell an option's kind by its default and by the unit in its name."""
    if isinstance(default, bool):
        return Kind.SWITCH
    if isinstance(default, int | float):
        if name.endswith("_s") and not name.endswith("_per_s"):
            return Kind.DURATION
        if name.endswith("_bytes"):
            return Kind.SIZE
        return Kind.INTEGER if isinstance(default, int) else Kind.NUMBER
    if isinstance(default, Mapping):
        return Kind.LABELS
    return Kind.LIST if isinstance(default, tuple) else Kind.TEXT


def takes(
    options: Callable[P, object],
) -> Callable[[Callable[Concatenate[S, ...], R]], Callable[Concatenate[S, P], R]]:
    """Give a function the keywords of a class of options, for type checkers, editors and help.

    Its own first parameter stays, and has to be given by its place.
    """

    def typed(function: Callable[Concatenate[S, ...], R]) -> Callable[Concatenate[S, P], R]:
        own = inspect.signature(function)
        first = next(iter(own.parameters.values()))
        keywords = inspect.signature(options).parameters.values()
        function.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[first.replace(kind=first.POSITIONAL_ONLY), *keywords]
        )
        return cast("Callable[Concatenate[S, P], R]", function)

    return typed


_NAMES = {
    Kind.TEXT: "a text",
    Kind.PLUG_IN: "a text",
    Kind.PROGRAM: "a text",
    Kind.LIST: "a list of texts",
    Kind.LABELS: "a list of key=value, each key once",
    Kind.SWITCH: "true or false",
    Kind.INTEGER: "an integer",
    Kind.NUMBER: "a number",
    Kind.SIZE: "a size (a number of bytes, or a number with K, M, G or T)",
    Kind.DURATION: "a duration (a number of seconds, or a number with ms, s, m, h or d)",
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


def _are_labels(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(each, str) for pair in value.items() for each in pair
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_FITS: dict[Kind, Callable[[object], bool]] = {
    Kind.TEXT: _is_text,
    Kind.PLUG_IN: _is_text,
    Kind.PROGRAM: _is_text,
    Kind.LIST: _are_texts,
    Kind.LABELS: _are_labels,
    Kind.SWITCH: lambda value: isinstance(value, bool),
    Kind.INTEGER: _is_integer,
    Kind.NUMBER: _is_number,
    Kind.SIZE: _is_integer,
    Kind.DURATION: _is_number,
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


def _labels(raw: object) -> dict[str, str]:
    if isinstance(raw, Mapping):
        return {_text(key): _text(value) for key, value in raw.items()}
    found: dict[str, str] = {}
    for part in _list(raw):
        key, equals, value = part.partition("=")
        if not equals or key in found:
            raise ValueError(part)
        found[key] = value
    return found


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
    bare = raw.strip().lstrip("-").replace(".", "").isdigit()
    return int(float(match[1]) * (unit if bare else _UNIT_BYTES[letter]))


def _duration(raw: object, unit: float) -> float:
    if not isinstance(raw, str):
        return _number(raw) * unit
    match = _DURATION.fullmatch(raw)
    if match is None or match[2].lower() not in _UNIT_SECONDS:
        raise ValueError(raw)
    number = _number(match[1])
    return number * (_UNIT_SECONDS[match[2].lower()] if match[2] else unit)
