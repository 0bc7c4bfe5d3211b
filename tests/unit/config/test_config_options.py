"""An option is declared once, and held wherever its value comes from."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import quorumbook
import quorumbook.sync
from quorumbook.bookie.options import BookieOptions
from quorumbook.client.options import ClientOptions
from quorumbook.config import load
from quorumbook.config.schema import CLASSES
from quorumbook.errors import ConfigError
from quorumbook.options import Kind, Option, Options

DECLARED = [(kind, option) for kind in CLASSES for option in kind.declared()]
WRONG: dict[Kind, Any] = {
    Kind.TEXT: 7, Kind.PLUG_IN: None, Kind.PROGRAM: b"x", Kind.LIST: "a,b", Kind.LABELS: ("a=b",),
    Kind.SWITCH: "yes", Kind.INTEGER: 1.5, Kind.NUMBER: True, Kind.SIZE: "1M",
    Kind.DURATION: float("nan"),
}  # fmt: skip


def _id(pair: tuple[type[Options], Option]) -> str:
    return pair[1].key


def _beyond(option: Option) -> list[Any]:
    found: list[Any] = ["no such choice"] if option.choices else []
    if option.minimum is not None:
        found.append(option.minimum - 1)
    if option.maximum is not None:
        found.append(option.maximum + 1)
    return [int(each) if option.kind in (Kind.INTEGER, Kind.SIZE) else each for each in found]


@pytest.mark.parametrize("pair", DECLARED, ids=_id)
def test_bounds_are_the_same_in_files_and_in_programs(pair):
    kind, option = pair
    for value in _beyond(option):
        with pytest.raises(ConfigError) as in_program:
            kind(**{option.name: value})
        with pytest.raises(ConfigError) as in_command:
            load(environment={}, overrides=[f"{option.key}={value}"])
        said, of_command = str(in_program.value), str(in_command.value)
        assert said.startswith(f"{option.key}: {value!r} ({option.name}=)")
        assert of_command.startswith(f"{option.key}: ")
        assert option.bounds() in said
        assert option.bounds() in of_command


@pytest.mark.parametrize("pair", DECLARED, ids=_id)
def test_a_value_of_another_type_is_refused_by_name(pair):
    kind, option = pair
    with pytest.raises(ConfigError, match=rf"{option.key}: .* \({option.name}=\) is not"):
        kind(**{option.name: WRONG[option.kind]})


def test_the_kind_of_an_option_follows_from_its_unit():
    for _, option in DECLARED:
        if option.kind is Kind.DURATION:
            assert option.name.endswith("_s"), option.key
        if option.kind is Kind.SIZE:
            assert option.name.endswith("_bytes"), option.key
        if option.name.startswith("max_"):
            assert not option.name.endswith("_max"), option.key


@pytest.mark.parametrize("connect", [quorumbook.connect, quorumbook.sync.connect])
def test_connect_shows_every_option_with_its_default(connect):
    shown = inspect.signature(connect).parameters
    assert list(shown)[1:] == list(inspect.signature(ClientOptions).parameters)
    assert shown["add_timeout_s"].default == ClientOptions().add_timeout_s


def test_what_two_options_say_together_is_checked_in_programs_too():
    with pytest.raises(ConfigError, match=r"disk_usage_writable is above bookie"):
        BookieOptions(max_disk_usage=0.5)
