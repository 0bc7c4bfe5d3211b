"""Values on a command line: read by the same parser, and refused with the same words, as anywhere.

An option that is declared in a class of ``Options`` becomes an option of click by ``derived``; a
command's own amount, which has a unit, is of type ``Written``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import click

from quorumbook.errors import ConfigError
from quorumbook.options import Kind, Option, Options

_SOURCE = "command line"
_METAVARS = {Kind.DURATION: "DURATION", Kind.SIZE: "SIZE", Kind.INTEGER: "N", Kind.NUMBER: "N"}
_UNITS: dict[Kind, tuple[tuple[str, int], ...]] = {
    Kind.DURATION: (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)),
    Kind.SIZE: (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)),
}


class Written(click.ParamType[Any]):
    """A value of an option as somebody writes it: ``7d``, ``500ms``, ``64M``."""

    def __init__(self, option: Option) -> None:
        """Take the option; its messages name the flag that it was given by."""
        self.name = _METAVARS.get(option.kind, "TEXT").lower()
        self._option = option

    @classmethod
    def amount(
        cls, kind: Kind, *, minimum: float | None = None, maximum: float | None = None
    ) -> Written:
        """Return the type of an amount within bounds."""
        return cls(Option("", "", kind, 0, "", minimum=minimum, maximum=maximum))

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Return the value of a text."""
        if not isinstance(value, str):
            return value
        flag = ""
        if param is not None:
            is_option = isinstance(param, click.Option)
            flag = param.opts[0] if is_option else param.human_readable_name.strip("[]")
        option = dataclasses.replace(self._option, section="", word=flag)
        try:
            return option.parse(value, source=_SOURCE)
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error


def duration(
    flag: str,
    name: str,
    default: str | None,
    text: str,
    *,
    minimum: float = 0,
    maximum: float | None = None,
) -> Callable[[Any], Any]:
    """Declare a command's own option that is a time, in seconds unless a unit stands behind it."""
    kind = Written.amount(Kind.DURATION, minimum=minimum, maximum=maximum)
    return click.option(
        flag, name, type=kind, metavar="DURATION", default=default, show_default=True, help=text
    )


def with_unit(kind: Kind, value: float) -> str:
    """Return an amount in the largest unit that makes a whole number of it."""
    for letter, amount in _UNITS.get(kind, ()):
        if value and value % amount == 0:
            return f"{value // amount:.0f}{letter}"
    return f"{value:g}"


def derived(options: type[Options]) -> list[click.Option]:
    """Return the options of click that a class declares: its own, then those of its bases."""
    names = [name for kind in options.__mro__ for name in inspect.get_annotations(kind)]
    declared = sorted(options.declared(), key=lambda each: names.index(each.name))
    return [_as_click(each) for each in declared]


def _as_click(option: Option) -> click.Option:
    said: dict[str, Any] = {"help": option.help, "required": option.is_required}
    if option.kind is Kind.SWITCH:
        return click.Option([option.flag, option.name], is_flag=True, **said)
    default: Any = option.default
    if option.kind in (Kind.LIST, Kind.LABELS):
        said |= {"multiple": True, "callback": _together(option)}
        if option.kind is Kind.LABELS:
            default = [f"{key}={value}" for key, value in option.default.items()]  # type: ignore[union-attr]
    elif option.choices:
        said["type"] = click.Choice(option.choices)
    elif option.kind is not Kind.TEXT:
        said["type"] = Written(option)
        default = with_unit(option.kind, default)
    if not option.is_required:
        said |= {"default": default, "show_default": bool(option.default)}
    metavar = option.metavar or _METAVARS.get(option.kind)
    return click.Option([option.flag, option.name], metavar=metavar, **said)


def _together(option: Option) -> Callable[..., object]:
    """Return what makes one value of everything an option was given with."""

    def convert(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> object:
        del param
        try:
            return option.parse(list(words), source=_SOURCE)
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error

    return convert
