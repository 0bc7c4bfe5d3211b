"""Checks values against a JSON Schema (draft 2020-12) that has no references left; pure.

A schema is compiled once to a list of checks, each of which says at the first value that breaks
it where that is and why.  Packages that do this build a text of the whole value for every branch
that does not fit, and match patterns with backtracking: a record of a megabyte holds them up for
minutes.  Here each check is counted (``limits.MAX_STEPS``), and RE2 matches in linear time.

Annotations, ``format`` and ``content…`` say nothing of what is valid, as the draft has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.streams.schemas.limits import MAX_STEPS, StepBudget, cut, short

#: Returns where and why a value is not valid; None: it is.
Check: TypeAlias = Callable[[Any, StepBudget, str], "str | None"]

_RULE_STEPS = 10
TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}  # fmt: skip


def check_of(schema: Any) -> Check:
    """Compile a schema without references.

    Raises:
        ValueError: a keyword has a value that it cannot have, or is not known.
    """
    if schema is True:
        return lambda value, budget, where: None
    if schema is False:
        return lambda value, budget, where: f"{where} may not be there"
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object, true or false, not {short(schema)}")
    checks = [_RULES[name](schema[name], schema) for name in schema if name in _RULES]
    unknown = sorted(set(schema) - set(_RULES) - _HELPERS)
    if unknown:
        raise ValueError(f"the keyword {unknown[0]!r} is not supported")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        for each in checks:
            budget.take(_RULE_STEPS)
            if (found := each(value, budget, where)) is not None:
                return found
        return None

    return check


def problem_of(check: Check, value: Any) -> str | None:
    """Return where and why a record is not valid; None: it is.

    Raises:
        TooMuchError: finding out takes more than ``MAX_STEPS``.
    """
    return check(value, StepBudget(MAX_STEPS, "steps to validate a record"), "$")


# What a value is -----------------------------------------------------------------------------


def _type(given: Any, _: Any) -> Check:
    names = given if isinstance(given, list) else [given]
    for name in names:
        if name not in TYPES:
            raise ValueError(f"type must be one of {', '.join(TYPES)}, not {short(name)}")
    tests = [TYPES[name] for name in names]
    said = " or ".join(names)

    def check(value: Any, _: StepBudget, where: str) -> str | None:
        for test in tests:
            if test(value):
                return None
        return f"{where} is {short(value)}, not {said}"

    return check


def canonical(value: Any, budget: StepBudget | None = None) -> str:
    """Return a text that two values share if JSON Schema takes them for equal."""

    def even(part: Any) -> Any:
        if budget is not None:
            budget.take(_RULE_STEPS)
        if isinstance(part, dict):
            return {name: even(each) for name, each in part.items()}
        if isinstance(part, list):
            return [even(each) for each in part]
        return int(part) if isinstance(part, float) and part.is_integer() else part

    return json.dumps(even(value), sort_keys=True)


def _enum(given: Any, _: Any) -> Check:
    if not isinstance(given, list):
        raise ValueError("enum must be a list")
    known = {canonical(each) for each in given}

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if canonical(value, budget) in known:
            return None
        return f"{where} is {short(value)}, which its enum does not have"

    return check


def _const(given: Any, _: Any) -> Check:
    return _enum([given], None)


# Numbers, texts ------------------------------------------------------------------------------


def _bound(word: str, is_broken: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Check]:
    def rule(given: Any, _: Any) -> Check:
        if not TYPES["number"](given):
            raise ValueError(f"a bound of numbers must be a number, not {short(given)}")

        def check(value: Any, _: StepBudget, where: str) -> str | None:
            if TYPES["number"](value) and is_broken(value, given):
                return f"{where} is {short(value)}, {word} {given}"
            return None

        return check

    return rule


def _multiple(given: Any, _: Any) -> Check:
    if not TYPES["number"](given) or given <= 0:
        raise ValueError("multipleOf must be a number above 0")
    unit = Fraction(str(given))

    def check(value: Any, _: StepBudget, where: str) -> str | None:
        if TYPES["number"](value) and Fraction(str(value)) % unit:
            return f"{where} is {short(value)}, not a multiple of {given}"
        return None

    return check


def _size(
    kind: type, word: str, is_broken: Callable[[int, int], bool]
) -> Callable[[Any, Any], Check]:
    def rule(given: Any, _: Any) -> Check:
        if not TYPES["integer"](given) or given < 0:
            raise ValueError(f"a bound of sizes must be 0 or a larger number, not {short(given)}")

        def check(value: Any, _: StepBudget, where: str) -> str | None:
            if isinstance(value, kind) and is_broken(len(value), given):  # type: ignore[arg-type]
                return f"{where} has {len(value)} {word} {given}"  # type: ignore[arg-type]
            return None

        return check

    return rule


def _matcher(pattern: Any) -> Callable[[str], bool]:
    with needs_extra("'quorumbook[schema]'"):
        import re2  # noqa: PLC0415
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(pattern, options).search  # type: ignore[no-any-return]
    except (re2.error, TypeError) as error:
        raise ValueError(
            f"the pattern {short(pattern)} is not one of RE2, which matches in linear time: {error}"
        ) from error


def _search_steps(text: str) -> int:
    return len(text) // 16


def _pattern(given: Any, _: Any) -> Check:
    matches = _matcher(given)

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, str):
            return None
        budget.take(_search_steps(value))
        if _found(matches, value):
            return None
        return f"{where} is {short(value)}, which does not match {short(given)}"

    return check


def _found(matches: Callable[[str], bool], text: str) -> bool:
    try:
        return bool(matches(text))
    except UnicodeEncodeError:
        return False  # half a surrogate pair matches nothing


# Lists ---------------------------------------------------------------------------------------


def _items(given: Any, schema: Any) -> Check:
    each = check_of(given)
    first = len(schema.get("prefixItems", ()))

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, list):
            return None
        for index in range(first, len(value)):
            if (found := each(value[index], budget, f"{where}[{index}]")) is not None:
                return found
        return None

    return check


def _prefix(given: Any, _: Any) -> Check:
    checks = _checks_of(given, "prefixItems")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, list):
            return None
        for index, (each, item) in enumerate(zip(checks, value, strict=False)):
            if (found := each(item, budget, f"{where}[{index}]")) is not None:
                return found
        return None

    return check


def _contains(given: Any, schema: Any) -> Check:
    each = check_of(given)
    low, high = schema.get("minContains", 1), schema.get("maxContains", math.inf)
    if not (TYPES["number"](low) and TYPES["number"](high)):
        raise ValueError("minContains and maxContains must be numbers")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, list):
            return None
        count = sum(each(item, budget, where) is None for item in value)
        return None if low <= count <= high else f"{where} has {count} items that it must contain"

    return check


def _unique(given: Any, _: Any) -> Check:
    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not given or not isinstance(value, list):
            return None
        known = {canonical(item, budget) for item in value}
        return None if len(known) == len(value) else f"{where} has an item twice"

    return check


# Objects -------------------------------------------------------------------------------------


def _properties(given: Any, _: Any) -> Check:
    checks = {name: check_of(each) for name, each in _named(given, "properties").items()}

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, dict):
            return None
        budget.take(len(checks))
        for name, each in checks.items():
            if (
                name in value
                and (found := each(value[name], budget, f"{where}.{name}")) is not None
            ):
                return found
        return None

    return check


def _pattern_properties(given: Any, _: Any) -> Check:
    checks = [
        (_matcher(pattern), check_of(each))
        for pattern, each in _named(given, "patternProperties").items()
    ]

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, dict):
            return None
        for matches, each in checks:
            for name, item in value.items():
                budget.take(1 + _search_steps(name))
                if not _found(matches, name):
                    continue
                if (found := each(item, budget, f"{where}.{cut(name)}")) is not None:
                    return found
        return None

    return check


def _additional(given: Any, schema: Any) -> Check:
    each = check_of(given)
    known = set(schema.get("properties", ()))
    patterns = [_matcher(pattern) for pattern in schema.get("patternProperties", ())]

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, dict):
            return None
        for name, item in value.items():
            budget.take(1 + len(patterns) * (1 + _search_steps(name)))
            if name in known or any(_found(matches, name) for matches in patterns):
                continue
            if (found := each(item, budget, f"{where}.{cut(name)}")) is not None:
                return found
        return None

    return check


def _names(given: Any, _: Any) -> Check:
    each = check_of(given)

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, dict):
            return None
        for name in value:
            if (found := each(name, budget, f"a name in {where}")) is not None:
                return found
        return None

    return check


def _required(given: Any, _: Any) -> Check:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ValueError("required must be a list of names")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, dict):
            return None
        budget.take(len(given))
        for name in given:
            if name not in value:
                return f"{where}.{name} is missing"
        return None

    return check


def _dependent(given: Any, _: Any) -> Check:
    checks = {
        name: _required(names, None) for name, names in _named(given, "dependentRequired").items()
    }

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if not isinstance(value, dict):
            return None
        budget.take(len(checks))
        for name, each in checks.items():
            if name in value and (found := each(value, budget, where)) is not None:
                return found
        return None

    return check


# Schemas together ----------------------------------------------------------------------------


def _all(given: Any, _: Any) -> Check:
    checks = _checks_of(given, "allOf")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        for each in checks:
            if (found := each(value, budget, where)) is not None:
                return found
        return None

    return check


def _any(given: Any, _: Any) -> Check:
    checks = _checks_of(given, "anyOf")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        for each in checks:
            if each(value, budget, where) is None:
                return None
        return f"{where} is {short(value)}, which fits none of anyOf"

    return check


def _one(given: Any, _: Any) -> Check:
    checks = _checks_of(given, "oneOf")

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        count = sum(each(value, budget, where) is None for each in checks)
        return None if count == 1 else f"{where} fits {count} of oneOf"

    return check


def _not(given: Any, _: Any) -> Check:
    inner = check_of(given)

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        if inner(value, budget, where) is not None:
            return None
        return f"{where} is {short(value)}, which its schema excludes"

    return check


def _if(given: Any, schema: Any) -> Check:
    test = check_of(given)
    then, other = check_of(schema.get("then", True)), check_of(schema.get("else", True))

    def check(value: Any, budget: StepBudget, where: str) -> str | None:
        chosen = then if test(value, budget, where) is None else other
        return chosen(value, budget, where)

    return check


def _checks_of(given: Any, name: str) -> list[Check]:
    if not isinstance(given, list) or not given:
        raise ValueError(f"{name} must be a list of schemas")
    return [check_of(each) for each in given]


def _named(given: Any, name: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{name} must be an object of schemas")
    return given


_RULES: Mapping[str, Callable[[Any, Any], Check]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _bound("below", lambda value, bound: value < bound),
    "exclusiveMinimum": _bound("not above", lambda value, bound: value <= bound),
    "maximum": _bound("above", lambda value, bound: value > bound),
    "exclusiveMaximum": _bound("not below", lambda value, bound: value >= bound),
    "multipleOf": _multiple,
    "minLength": _size(str, "characters, fewer than", lambda size, bound: size < bound),
    "maxLength": _size(str, "characters, more than", lambda size, bound: size > bound),
    "pattern": _pattern,
    "minItems": _size(list, "items, fewer than", lambda size, bound: size < bound),
    "maxItems": _size(list, "items, more than", lambda size, bound: size > bound),
    "items": _items,
    "prefixItems": _prefix,
    "contains": _contains,
    "uniqueItems": _unique,
    "minProperties": _size(dict, "names, fewer than", lambda size, bound: size < bound),
    "maxProperties": _size(dict, "names, more than", lambda size, bound: size > bound),
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _names,
    "dependentRequired": _dependent,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
}
#: What other rules look at.
_HELPERS = {"then", "else", "minContains", "maxContains"}
