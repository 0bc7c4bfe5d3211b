"""Commands of Apache BookKeeper's shell become ours, and sheets of commands are commands."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from quorumbook.cli.known.cheats import CHEATS
from quorumbook.cli.main import main, root
from quorumbook.cli.shell.commands import our_words
from quorumbook.cli.shell.names import NAMES
from quorumbook.config import OPTIONS

#: A value for each kind of argument and option of ours.
VALUES = {"--missing-on": "b:1", "--not-missing-on": "b:1", "--data-dir": ".", "--bookie": "b:1"}


def parsed(words):
    """Let a command's own parser read words, and return the command's path."""
    context = click.Context(root)
    command = root
    words = list(words)
    while isinstance(command, click.Group):
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, name
    command.make_context(command.name, words)


def test_every_command_there_becomes_one_of_ours_or_says_what_to_do():
    for name, named in NAMES.items():
        if name == "help":
            continue
        assert bool(named.ours) != bool(named.instead), name
        if named.instead:
            with pytest.raises(click.ClickException, match="no counterpart"):
                our_words(name, [], note=print)
            continue
        for given in (None, *named.options):
            if given is not None and given.refusal:
                with pytest.raises(click.ClickException) as refused:
                    our_words(name, [f"-{given.names[0]}", "1"], note=print)
                assert name in str(refused.value)
                continue
            for dash in ("-", "--"):
                words = [] if given is None else [dash + given.names[-1]]
                if given is not None and given.takes:
                    words.append(VALUES.get(given.to, "1"))
                needed = named.arguments or name in (
                    "ledgermetadata", "readledger", "deleteledger", "decommissionbookie",
                )  # fmt: skip
                if needed and not (given is not None and given.to == "argument"):
                    words += ["1"] if named.arguments else [f"-{named.options[0].names[0]}", "1"]
                parsed(our_words(name, words, note=print))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("readledger -l 7 -fe 1 -le 2 -m", "ledger read --first 1 --last 2 7"),
        ("readledger --ledgerid=7 --force-recovery", "ledger read -o jsonl --recover 7"),
        ("listledgers -m -bookieid b:1", "ledger ls --bookie b:1"),
        ("recover b1:3181,b2:3181 -f -dr", "bookie recover --dry-run b1:3181 b2:3181"),
        ("autorecovery -disable", "recovery disable"),
        ("autorecovery", "recovery status"),
        ("lostbookierecoverydelay -s 30", "recovery delay 30"),
        ("lostbookierecoverydelay -g", "recovery delay"),
        ("listbookies -ro -h", "bookie ls --registered --state=read-only"),
        ("simpletest -n 5 -e 1",
         "bench write --count 5 --ensemble-size 1 --write-quorum 2 --ack-quorum 2"),
        ("forceauditchecks -calc -rc", "recovery trigger --check=ledgers --check=replicas"),
        ("deleteledger -l 7 -f", "ledger delete --yes 7"),
        ("listfilesondisc -txn", "disk journal"),
    ],
)  # fmt: skip
def test_options_become_ours(theirs, ours):
    name, *words = theirs.split()
    assert our_words(name, words, note=print) == ours.split()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("listledger", 2, "did you mean listledgers?"),
        ("xyzzy", 2, "`quorumbook shell` lists"),
        ("readledger -z", 2, "it has: -l, -m, -fe, -le, -r, -b"),
        ("readledger -l", 2, "a value is missing"),
        ("readledger -l 7 -b b:1", 2, "disk index"),
        ("nukeexistingcluster -f", 2, "cluster init"),
        ("cookie_create", 2, "bookie run"),
    ],
)
def test_what_is_not_there_is_said(words, code, told, capsys):
    assert main(["shell", *words.split()]) == code
    assert told in capsys.readouterr().err


def test_what_changes_nothing_is_said():
    notes = []
    our_words("readlog", ["0", "-m", "-e", "7"], note=notes.append)
    our_words("listbookies", ["extra"], note=notes.append)
    assert [note.split(":")[0] for note in notes] == ["-m", "-e", "'extra' is left out"]


def test_the_list_and_the_explanation_run_nothing(capsys):
    assert main(["shell"]) == 0
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) == len(NAMES)
    assert main(["shell", "help", "readledger"]) == 0
    assert main(["shell", "--explain", "readledger", "-l", "7"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "quorumbook ledger read -o jsonl", "quorumbook ledger read -o jsonl 7",
    ]  # fmt: skip


def test_common_options_stand_before_it(tmp_path, capsys):
    uri = f"sqlite:///{tmp_path}/none.db"
    assert main(["--metadata", uri, "-o", "json", "shell", "listledgers"]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("quorumbook ledger ls\n")
    assert f"{tmp_path}/none.db" in captured.err


def test_what_advice_names_is_there():
    texts = [each.instead for each in NAMES.values()]
    texts += [given.refusal + given.note for each in NAMES.values() for given in each.options]
    commands = [found for text in texts for found in re.findall(r"`quorumbook ([^`]*)`", text)]
    assert len(commands) > 15
    for command in commands:
        context, known = click.Context(root), root
        for word in command.split():
            if isinstance(known, click.Group):
                known = known.get_command(context, word)
                assert known is not None, command
            elif word.startswith("--"):
                assert any(word in each.opts for each in known.params), command
        for key in re.findall(r"--set (\S+)=", command):
            assert key in {option.key for option in OPTIONS}, command


@pytest.mark.parametrize("topic", CHEATS)
def test_a_sheet_is_of_commands_as_they_are(topic, capsys):
    assert main(["cheat", topic]) == 0
    printed = capsys.readouterr().out.splitlines()
    for _, command in CHEATS[topic][1]:
        assert command in printed
        first, *words = shlex.split(command)
        assert first == "quorumbook"
        parsed(words)


def test_topics_are_listed_and_a_wrong_one_says_which_there_are(capsys):
    assert main(["cheat"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CHEATS)
    assert main(["cheat", "stream"]) == 2
    assert "streams" in capsys.readouterr().err
