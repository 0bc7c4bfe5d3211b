"""What an endpoint takes, declared once: checked here, and written into the OpenAPI document."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorumbook.admin.http.problems import ApiError

ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter of a query, a path or a body."""

    #: ``integer``, ``number``, ``boolean``, ``string``, ``array`` or ``object``.
    kind: str
    #: What it is for, in a sentence.
    text: str
    default: Any = None
    is_required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    #: Of a string or an array.
    max_length: int = 4096
    #: What the OpenAPI document gives for one, and a test sends.
    example: Any = None

    def schema(self) -> dict[str, object]:
        """Return its JSON schema."""
        schema: dict[str, object] = {"type": self.kind, "description": self.text}
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.maximum is not None:
            schema["maximum"] = self.maximum
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        if self.kind == "string":
            schema["maxLength"] = self.max_length
        if self.kind == "array":
            schema |= {"items": {}, "maxItems": self.max_length}
        return schema

    def read(self, name: str, value: object, *, is_text: bool) -> Any:
        """Return the value that was given.

        Args:
            name: The parameter's, for the message.
            value: What came.
            is_text: It came in a query or a path, where everything is text.

        Raises:
            ApiError: It is not of its kind.
        """
        if is_text and isinstance(value, str):
            value = _from_text(self.kind, value)
        match self.kind:
            case "integer":
                is_good = isinstance(value, int) and not isinstance(value, bool)
            case "number":
                is_good = isinstance(value, int | float) and not isinstance(value, bool)
                is_good = is_good and (isinstance(value, int) or math.isfinite(value))  # type: ignore[arg-type]
            case "boolean":
                is_good = isinstance(value, bool)
            case "string":
                is_good = isinstance(value, str) and "\0" not in value and _is_unicode(value)
            case "array":
                is_good = isinstance(value, list)
            case _:
                is_good = isinstance(value, dict) and _is_unicode_throughout(value)
        if not is_good:
            raise bad_parameter(f"{name} must be {_article(self.kind)}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(name, value)
        if isinstance(value, str | list) and len(value) > self.max_length:
            raise bad_parameter(f"{name} is longer than {self.max_length:,}")
        if self.choices and value not in self.choices:
            raise bad_parameter(f"{name} must be one of {', '.join(self.choices)}")
        return value

    def _check_bounds(self, name: str, value: float) -> None:
        if self.minimum is not None and value < self.minimum:
            raise bad_parameter(f"{name} must be at least {self.minimum:.15g}")
        if self.maximum is not None and value > self.maximum:
            raise bad_parameter(f"{name} must be at most {self.maximum:.15g}")


def _is_unicode(text: str) -> bool:
    """Tell whether a text can be encoded; JSON can write half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_unicode_throughout(value: object) -> bool:
    try:
        return _is_unicode(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return False


def bad_parameter(detail: str) -> ApiError:
    """Return the answer to a parameter that is not as declared."""
    return ApiError(400, "bad-parameter", detail)


def read_all(
    fields: Mapping[str, Field], given: Mapping[str, object], *, is_text: bool, where: str
) -> dict[str, Any]:
    """Return all values, defaults included.

    Raises:
        ApiError: One is not as declared, lacks, or is not known.
    """
    for name in given:
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise ApiError(
                400, "unknown-parameter", f"{name[:80]!r} is not a {where} here; there are: {known}"
            )
    found = {}
    for name, field in fields.items():
        if given.get(name) is not None:
            found[name] = field.read(name, given[name], is_text=is_text)
        elif field.is_required:
            raise bad_parameter(f"{name} is missing")
        else:
            found[name] = field.default
    return found


def _from_text(kind: str, text: str) -> object:
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if kind == "integer":
        # The length first: to read a number of many digits takes long.
        digits = text.removeprefix("-")
        return int(text) if len(digits) <= 19 and digits.isascii() and digits.isdigit() else text
    if kind == "number":
        try:
            return float(text) if len(text) <= 40 else text
        except ValueError:
            return text
    return text


def _article(kind: str) -> str:
    return {"integer": "a whole number", "number": "a number", "boolean": "true or false",
            "string": "text", "array": "a list", "object": "an object"}[kind]  # fmt: skip
