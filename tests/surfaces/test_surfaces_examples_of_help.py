"""The examples of the help pages: every page has one, every one is run.

Those that start a server are stopped when it serves.  What starts a JVM, or has a test of minutes
of its own, is read by the command's own parser here and not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import click
import pytest

from quorumbook.cli.known.examples import EXAMPLES, examples_of
from quorumbook.cli.main import main, root
from surfaces.conftest import CommandLine

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.website import commands

#: They print a line when they serve, and end well when they are asked to.
SERVERS = {"standalone", "bookie run", "recovery run", "console", "admin run"}
#: A JVM each, a second cluster with a picture, files of a Java bookie, or a schema registry; their
#: own tests run them.
ONLY_READ = {
    "demo", "zookeeper run", "bookie adopt", "bookie give-back", "stream schema import",
}  # fmt: skip
#: Where the exit code is a verdict.
CODES = {
    "status": {0, 1},
    "cluster health": {0, 1},
    "doctor": {0, 1, 2},
    "bookie can-stop": {0, 6},
}
#: They never end by themselves.
ENDLESS = re.compile("--watch|^quorumbook top$")


def is_only_read(path):
    return path in ONLY_READ or (path.startswith("spark ") and path != "spark template")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("examples")
    (directory / "events.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (directory / "schema.json").write_text(
        '{"type": "object", "properties": {"n": {"type": "integer"}}}\n'
    )
    return directory


def announced(process):
    """Return what a server says when it serves."""
    lines = []
    while (line := process.stdout.readline()) and line != b"}\n":
        lines.append(line)
    return json.loads(b"".join([*lines, line]))


class Examples:
    """Runs examples one after the other, as a shell would, on a cluster as a user has it."""

    def __init__(self, place, monkeypatch, capfd):
        self.place, self.patch, self.capfd = place, monkeypatch, capfd
        self.bookie_id = ""
        #: The bookie of an example, which is stopped.
        self.stopped_id = ""
        monkeypatch.chdir(place)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(place))

    def use(self, made):
        self.bookie_id = made["bookies"][0]
        self.patch.setenv("QUORUMBOOK_METADATA", made["metadata"])

    def words(self, path, line):
        wanted = self.stopped_id if path == "bookie recover" else self.bookie_id
        return [
            re.sub(r"^b1:3181(?=$|=)", wanted, word)
            for word in shlex.split(line.rpartition(" | ")[2])[1:]
        ]

    def run(self, path, line):
        given = self.place / "stdin"
        text = line.rpartition(" | ")[0]
        given.write_text(f"{text.removeprefix('echo ')}\n" if text else "")
        with given.open() as stdin, self.patch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            if path == "context use":
                patch.delenv("QUORUMBOOK_METADATA")
            code = main(self.words(path, line))
        said = self.capfd.readouterr()
        if code not in CODES.get(path, {0}):
            return [(line, code, said.out, said.err)]
        return []

    def serve(self, path, line):
        quorumbook = CommandLine(os.environ["QUORUMBOOK_METADATA"], str(self.place))
        with quorumbook.running(*self.words(path, line), "-o", "json") as process:
            row = announced(process)
            self.stopped_id = row.get("bookie_id", self.stopped_id)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=100)
        return [] if row and process.returncode == 0 else [(line, out, err)]


def helps():
    def walk(command, path):
        yield path, command
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                yield from walk(command.get_command(click.Context(command), name), [*path, name])

    return list(walk(root, []))


@pytest.mark.parametrize("path", [" ".join(path) for path, _ in helps()])
def test_every_help_page_ends_with_one_or_two_examples(path, capsys):
    assert main([*path.split(), "--help"]) == 0
    last = capsys.readouterr().out.rstrip().split("\n\n")[-1].splitlines()
    assert last[0].strip() == ("Example:" if len(last) == 2 else "Examples:")
    assert 2 <= len(last) <= 3
    for line in last[1:]:
        assert "quorumbook " in line
        assert commands.problems(f"`{line.rpartition('| ')[2].strip()}`") == []
    if path:
        assert [line.strip() for line in last[1:]] == list(examples_of(path))


def test_no_examples_are_of_commands_that_there_are_not():
    assert {f"quorumbook {path}" for path in EXAMPLES} == commands.leaves().keys()


@pytest.mark.parametrize("path", [path for path in EXAMPLES if is_only_read(path)])
def test_examples_that_are_too_much_to_run_are_understood(path):
    for line in EXAMPLES[path]:
        words = shlex.split(line)[1:]
        command, context = root, click.Context(root)
        while isinstance(command, click.Group):
            name, command, words = command.resolve_command(context, words)
            context = click.Context(command, info_name=name, parent=context)
        command.make_context(command.name, words)


def test_all_examples_run_in_the_order_in_which_they_stand(place, monkeypatch, capfd):
    examples = Examples(place, monkeypatch, capfd)
    own = CommandLine("", str(place))
    failed = []
    with own.running("standalone", "--ephemeral", "--bookies", 4, "-o", "json") as standalone:
        examples.use(announced(standalone))
        for path, lines in EXAMPLES.items():
            if is_only_read(path):
                continue
            run = examples.serve if path in SERVERS else examples.run
            for line in lines:
                failed += [] if ENDLESS.search(line) else run(path, line)
        standalone.send_signal(signal.SIGINT)
        standalone.communicate(timeout=100)
    assert failed == [], "\n".join(map(str, failed))
