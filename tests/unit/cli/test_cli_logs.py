"""The log of commands that run for long: its form, and which lines are in it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import quorumbook
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.main import main, root
from quorumbook.cli.serving.logs import LEVELS, ROOMS, JsonLines, Levels
from quorumbook.errors import ConfigError

#: Commands that serve, or go on until they are told to stop; their log is for machines as well.
LONG = {
    "standalone", "bookie run", "recovery run", "admin run", "console", "stream consume",
    "stream retention", "stream tail", "status", "cluster health", "top", "zookeeper run",
}  # fmt: skip
PROGRAM = """
import logging, sys
from quorumbook.cli.serving.logs import begin_log
from quorumbook.config import load
begin_log(load(overrides=sys.argv[1:]), is_verbose=False)
for room in ("storage", "storage.journal", "client"):
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger(f"quorumbook.{room}"), level)("%s of\\n%s", level, room)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("quorumbook.bookie").exception("failed")
"""


def logged(*overrides):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *overrides], capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if "QUORUMBOOK" not in name},
    )  # fmt: skip
    assert done.stdout == ""
    return done.stderr


def test_a_line_of_json_has_everything_and_stays_one_line():
    lines = [json.loads(line) for line in logged("log.format=json").splitlines()]
    assert [(line["level"], line["logger"]) for line in lines][:2] == [
        ("info", "quorumbook.storage"), ("warning", "quorumbook.storage"),
    ]  # fmt: skip
    assert lines[0]["message"] == "info of\nstorage"
    assert lines[0]["time"].endswith("Z")
    assert "trace" not in lines[0]
    assert "ZeroDivisionError" in lines[-1]["trace"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("info", {"storage": "iw", "storage.journal": "iw", "client": "iw"}),
        ("warning,storage=debug", {"storage": "diw", "storage.journal": "diw", "client": "w"}),
        ("storage.journal=debug", {"storage": "iw", "storage.journal": "diw", "client": "iw"}),
        ("debug,client=error", {"storage": "diw", "storage.journal": "diw", "client": ""}),
        ("storage=error,storage.journal=info",
         {"storage": "", "storage.journal": "iw", "client": "iw"}),
    ],
)  # fmt: skip
def test_a_level_is_for_everything_or_one_room(level, expected):
    text = logged(f"log.level={level}", "log.format=json")
    found = dict.fromkeys(expected, "")
    for line in map(json.loads, text.splitlines()):
        room = line["logger"].removeprefix("quorumbook.")
        if room in found:
            found[room] += line["level"][0]
    assert found == expected


def test_text_is_for_people():
    assert "INFO quorumbook.storage: info of" in logged()


@pytest.mark.parametrize(
    "text", ["loud", "storag=debug", "storage=", "=info", "storage=debug=info"]
)
def test_what_is_no_level_or_room_is_said(text):
    with pytest.raises(ConfigError, match=r"log.level: .*(debug|storage)"):
        Levels.parse([text], LEVELS["info"])


def test_rooms_are_those_with_loggers():
    package = Path(quorumbook.__file__).parent
    found = {
        line.split('logger("')[1].split(".")[0].split('"')[0]
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if ' = logger("' in line
    }
    assert found == set(ROOMS)


def _commands(command, path=()):
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _commands(command.get_command(click.Context(command), name), (*path, name))
    else:
        yield " ".join(path), command


def test_every_command_that_runs_for_long_has_a_log():
    having = {
        path
        for path, command in _commands(root)
        if isinstance(command, ClusterCommand)
        and any(p.name == "log_levels" for p in command.params)
    }
    assert having == LONG


def test_a_wrong_level_is_refused_before_anything_runs(tmp_path, capsys):
    uri = f"sqlite:///{tmp_path}/none.db"
    for words in (["bookie", "run"], ["admin", "run"], ["recovery", "run"]):
        assert main([*words, "--metadata", uri, "--log-level", "storag=debug"]) == 2
        assert "there is no room 'storag'" in capsys.readouterr().err


def test_a_child_is_told_by_its_environment():
    command = ClusterCommand("child", has_log=True, callback=click.pass_obj(_shown))
    with command.make_context("child", ["--log-level", "warning", "--log-level", "client=debug",
                                        "--log-format", "json"]) as context:  # fmt: skip
        environment = command.invoke(context)
    assert environment["QUORUMBOOK_LOG_FORMAT"] == "json"
    assert environment["QUORUMBOOK_LOG_LEVEL"] == "warning,client=debug"


def _shown(call):
    return call.environment()


def test_a_record_made_elsewhere_is_written_as_well():
    record = logging.makeLogRecord({"name": "uvicorn", "levelname": "INFO", "msg": "a\u2028b"})
    assert json.loads(JsonLines().format(record))["message"] == "a\u2028b"
