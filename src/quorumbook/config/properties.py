r"""Java properties files as the peer reads them (Commons Configuration 2, comma-separated lists).

    # comment, ! comment                a line whose first character says so
    key = value, key: value, key value  spaces around key and value don't count
    a line that ends in \               goes on in the next one, without the spaces it starts with
    \t \n \r \f \b \\ \" \' \uXXXX      and \ before : = # ! or a space in a key
    one, two, three                     a list; a key that is there twice is one as well.  A comma
                                        cannot be escaped: the peer splits twice
    ${key} ${env:NAME} ${sys:user.dir}  replaced by the other value; what is not known stays

A file is ISO-8859-1.  What the keys mean is not known here.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from quorumbook.errors import ConfigError

#: What Java takes for white space, which is less than Python does.
_WHITE = " \t\n\v\f\r"
_SEPARATOR = re.compile(rf"[{_WHITE}]*[=:][{_WHITE}]*|[{_WHITE}]+(?:[=:][{_WHITE}]*)?")
_REFERENCE = re.compile(r"\$+\{([^${}]*)\}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "b": "\b"}
_PLAIN = "\\\"'" + ":=#!"
_DEPTH_LIMIT = 20


@dataclass(slots=True)
class Property:
    """A key: the line of its first value, and its values as they stand, split at commas."""

    line: int
    raw: list[str] = field(default_factory=list)


class Properties:
    """What a file says; values come with references replaced."""

    def __init__(self, path: str, variables: Mapping[str, str]) -> None:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or asks for another file.
        """
        self.path = path
        self._variables = variables
        self._properties: dict[str, Property] = {}
        try:
            with open(path, encoding="iso-8859-1") as file:
                #: Of the file that was read, whatever has its name by now.
                self.status = os.fstat(file.fileno())
                text = file.read()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        for number, line in _logical_lines(text):
            key, value = _split(line)
            if key in ("include", "includeOptional", "includeoptional"):
                raise ConfigError(
                    f"{path} line {number}: {key} is not followed; put both files into one"
                )
            found = self._properties.setdefault(key, Property(number))
            found.raw += _list(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __contains__(self, key: str) -> bool:
        return key in self._properties

    def line(self, key: str) -> int:
        """Return the line of a key."""
        return self._properties[key].line

    def values(self, key: str) -> list[str]:
        """Return the values of a key, none if it is not there."""
        return self._resolved(key, 0)

    def _resolved(self, key: str, depth: int) -> list[str]:
        known = self._properties.get(key)
        if known is None:
            return []
        if depth > _DEPTH_LIMIT:
            raise ConfigError(f"{self.path} line {known.line}: {key} refers to itself")
        values: list[str] = []
        for raw in known.raw:
            whole = _REFERENCE.fullmatch(raw)
            if whole and (others := self._lookup(whole[1], depth)):
                values += others
            else:
                values.append(self._replaced(raw, depth))
        return values

    def _replaced(self, raw: str, depth: int) -> str:
        def value_of(match: re.Match[str]) -> str:
            found = self._lookup(match[1], depth)
            return found[0] if found else match[0]

        return _REFERENCE.sub(value_of, raw)

    def _lookup(self, name: str, depth: int) -> list[str]:
        source, colon, rest = name.partition(":")
        if colon and source == "env":
            return [self._variables[rest]] if rest in self._variables else []
        if colon and source == "sys":
            return _system_property(rest)
        return self._resolved(name, depth + 1)


def _system_property(name: str) -> list[str]:
    match name:
        case "user.dir":
            return [os.getcwd()]
        case "user.home":
            return [os.path.expanduser("~")]
        case "java.io.tmpdir":
            return [tempfile.gettempdir()]
    return []


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their number, continuations joined."""
    whole, first = "", 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        stripped = line.lstrip(_WHITE)
        if not whole and (not stripped or stripped[0] in "#!"):
            continue
        first = first if whole else number
        backslashes = len(line.rstrip(_WHITE)) - len(line.rstrip(_WHITE).rstrip("\\"))
        if backslashes % 2 and line.rstrip(_WHITE) == line:
            whole += stripped[:-1]
            continue
        yield first, whole + stripped.rstrip(_WHITE)
        whole = ""
    if whole:
        yield first, whole


def _split(line: str) -> tuple[str, str]:
    """Cut a logical line into key and value, both without escapes."""
    position = 0
    while position < len(line) and line[position] not in f"=:{_WHITE}":
        position += 2 if line[position] == "\\" else 1
    separator = _SEPARATOR.match(line, min(position, len(line)))
    end = separator.end() if separator else len(line)
    key = re.sub(r"\\(.)", r"\1", line[:position])
    return key, _unescaped(line[end:])


def _unescaped(text: str) -> str:
    parts: list[str] = []
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        if letter != "\\" or position == len(text):
            parts.append(letter)
            continue
        escaped = text[position]
        position += 1
        code = text[position : position + 4]
        if escaped == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", code):
            parts.append(chr(int(code, 16)))
            position += 4
        elif escaped in _PLAIN:
            parts.append(escaped)
        else:
            parts.append(_ESCAPES.get(escaped, f"\\{escaped}"))
    return "".join(parts)


def _list(value: str) -> list[str]:
    parts = [part.strip(_WHITE) for part in re.split(r"\\*,", value)]
    return parts if len(parts) > 1 else [value]
