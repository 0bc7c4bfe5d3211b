"""``quorumbook help``: every error has advice, every advice names what there is."""

from __future__ import annotations

import ast
import errno
import inspect
import re
import socket
import ssl
import sys
from pathlib import Path

import click
import pytest

from quorumbook import cli, errors
from quorumbook.cli.cluster.supervisor import ChildFailedError
from quorumbook.cli.errors import verdict
from quorumbook.cli.explained.advice import ADVICE
from quorumbook.cli.explained.codes import code_of, explanations, kinds, name_of
from quorumbook.cli.explained.outside import OUTSIDE
from quorumbook.cli.explained.warnings import WARNINGS
from quorumbook.cli.main import main, root
from quorumbook.errors import QuorumbookError
from quorumbook.streams import errors as stream_errors

sys.path.insert(0, str(Path(__file__).parents[3]))
from tools.website import commands

#: Only bases of others.
BASES = {"quorumbook", "protocol", "bookie", "ledger", "storage", "cookie", "stream", "transaction"}


def test_every_error_is_explained_and_nothing_else():
    names = {
        name_of(value)
        for home in (errors, stream_errors)
        for value in vars(home).values()
        if inspect.isclass(value) and issubclass(value, QuorumbookError)
    }
    assert names - BASES == set(ADVICE)
    assert set(kinds()) == set(ADVICE)
    assert not set(ADVICE) & set(OUTSIDE)
    assert not (set(ADVICE) | set(OUTSIDE)) & set(WARNINGS)
    assert list(explanations()) == [*kinds(), *OUTSIDE, *WARNINGS]


def test_every_warning_of_a_command_has_a_code_and_every_code_a_warning():
    given = set()
    for path in Path(cli.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            said = ast.unparse(node.args[0]).lower() if node.args else ""
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            where = f"{path.name}:{node.lineno}"
            if name in ("note", "print", "echo"):
                # What should be done about it is not said by a result.
                assert "warning:" not in said or path.name == "call.py", where
            if name == "warn":
                assert isinstance(node.args[0], ast.Constant), where
                given.add(node.args[0].value)
    assert given <= set(explanations())
    assert set(WARNINGS) <= given


@pytest.mark.parametrize("code", [*ADVICE, *OUTSIDE, *WARNINGS])
def test_advice_names_commands_and_options_that_there_are(code):
    text, advice, _ = explanations()[code]
    assert advice
    for sentence in advice:
        assert sentence.endswith("."), sentence
        assert commands.problems(sentence) == []
    assert text.endswith((".", ":"))
    assert "``" not in text


def test_a_class_without_advice_has_that_of_its_base():
    class DiskOnFireError(errors.DiskFullError):
        pass

    assert code_of(DiskOnFireError()) == "disk-full"
    assert code_of(ValueError()) == "internal"


def test_no_error_of_ours_is_called_a_bug_that_is_none():
    def below(kind):
        return [kind, *(each for base in kind.__subclasses__() for each in below(base))]

    codes = {kind: code_of(kind.__new__(kind)) for kind in below(QuorumbookError)}
    assert set(codes.values()) <= set(explanations())
    assert {kind for kind, code in codes.items() if code == "internal"} == {errors.InternalError}
    failed = errors.StorageError("no", path="x")
    assert code_of(failed) == "storage"
    failed.__cause__ = OSError(errno.EIO, "no")
    assert code_of(failed) == "disk-failed"


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_error_of_the_system_is_explained(number):
    error = OSError(number, "no", "some.file")
    assert code_of(error) in OUTSIDE
    assert verdict(error).message or isinstance(error, BrokenPipeError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(errno.ENOENT, "no"), "file-not-found"),
        (PermissionError(errno.EACCES, "no"), "permission-denied"),
        (OSError(errno.ENOSPC, "no"), "no-space"),
        (OSError(errno.EADDRINUSE, "no"), "address-in-use"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), "connection-refused"),
        (OSError(errno.EXDEV, "no"), "operating-system"),
        (socket.gaierror(socket.EAI_NONAME, "no"), "unknown-host"),
        # Its number is OpenSSL's, and that of a refused permission.
        (ssl.SSLError(1, "no"), "security"),
        (TimeoutError(), "timed-out"),
        (MemoryError(), "out-of-memory"),
        (KeyboardInterrupt(), "interrupted"),
        (errors.DiskFullError("no"), "disk-full"),
    ],
)  # fmt: skip
def test_an_error_from_outside_has_a_code_and_says_something(error, code):
    assert code_of(error) == code
    assert code in explanations()
    assert verdict(error).message


def test_every_error_of_a_command_line_is_explained():
    def below(kind):
        return [kind, *(each for base in kind.__subclasses__() for each in below(base))]

    shown = set(below(click.UsageError)) - {click.exceptions.NoArgsIsHelpError}
    assert len(shown) > 4
    for kind in shown:
        error = kind.__new__(kind)
        assert code_of(error) in OUTSIDE, kind
    assert code_of(click.NoSuchOption("--x")) == "no-such-option"
    # A click exception of another kind would be explained as a bug.
    sources = (Path(__file__).parents[3] / "src" / "quorumbook").rglob("*.py")
    raised = {
        kind for path in sources for kind in re.findall(r"raise click\.([\w.]+)", path.read_text())
    }
    assert raised == {"UsageError", "exceptions.Exit"}


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["ledger", "lss"],
        ["ledger", "read"],
        ["ledger", "read", "seven"],
        ["ledger", "read", "7", "--nonsense"],
        ["ledger", "read", "--first"],
        ["ledger", "write", "none.txt", "--metadata", "sqlite:///none.db"],
        ["ledger", "write", ".", "--metadata", "sqlite:///none.db"],
        ["ledger", "ls", "--metadata", "sqlite:///none.db"],
        ["ledger", "ls", "--config", "none.toml"],
        ["ledger", "delete", "7"],
        ["stream", "schema", "set", "x", "none.avsc", "--metadata", "sqlite:///none.db"],
        ["deploy", "export", "/proc/none"],
        ["help", "xyzzy"],
    ],
)
def test_a_command_s_message_ends_with_a_code_that_is_explained(
    words, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert main(words) not in {0, 70}
    (line,) = capsys.readouterr().err.splitlines()
    found = re.search(r" \(quorumbook help ([a-z-]+)\)$", line)
    assert found is not None, line
    assert main(["help", found[1]]) == 0
    assert capsys.readouterr().out.startswith(explanations()[found[1]].happened)


def test_a_code_is_explained(capsys):
    assert main(["help", "ledger-fenced"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Another client opened the ledger with recovery")
    assert "- Write a new ledger." in said
    assert "quorumbook.errors.LedgerFencedError" in said


def test_a_misspelt_code_gets_the_nearest(capsys):
    assert main(["help", "ledger-fence"]) == 2
    assert "did you mean 'ledger-fenced'?" in capsys.readouterr().err
    assert main(["help", "xyzzy"]) == 2
    assert "`quorumbook help` lists all codes" in capsys.readouterr().err


def test_all_codes_are_listed(capsys):
    assert main(["help"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(
        explanations()
    )


def test_an_error_s_line_says_its_code(capsys, tmp_path):
    assert main(["ledger", "ls", "--metadata", f"sqlite:///{tmp_path}/none.db"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("(quorumbook help cluster-not-initialized)")


def test_the_last_word_of_a_child_keeps_its_code(capsys, monkeypatch):
    def fail(_call, main):
        main.close()
        raise ChildFailedError("bookie-1 did not start: in use (quorumbook help address-in-use)")

    monkeypatch.setattr("quorumbook.cli.call.Call.run", fail)
    assert main(["ledger", "ls", "--metadata", "sqlite:///none.db"]) == 1
    assert capsys.readouterr().err.count("(quorumbook help ") == 1


def test_help_says_of_each_command_what_it_does_to_the_end(capsys):
    cut = []
    groups = [()]
    while groups:
        words = groups.pop()
        main([*words, "--help"])
        shown = capsys.readouterr().out.partition("\nCommands:\n")[2]
        cut += [line for line in shown.splitlines() if line.endswith("...")]
        command = root
        for word in words:
            command = command.get_command(click.Context(command), word)
        context = click.Context(command)
        groups += [
            (*words, name)
            for name in command.list_commands(context)
            if isinstance(command.get_command(context, name), click.Group)
        ]
    assert cut == []
