"""``quorumbook help``: every error has advice, every advice names what there is."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from quorumbook import errors
from quorumbook.cli.explained import ADVICE, code_of, happened, kinds, name_of
from quorumbook.cli.main import main
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


@pytest.mark.parametrize("code", ADVICE)
def test_advice_names_commands_and_options_that_there_are(code):
    for sentence in ADVICE[code]:
        assert sentence.endswith("."), sentence
        assert commands.problems(sentence) == []
    text = happened(kinds()[code])
    assert text.endswith((".", ":"))
    assert "``" not in text


def test_a_class_without_advice_has_that_of_its_base():
    class DiskOnFireError(errors.DiskFullError):
        pass

    assert code_of(DiskOnFireError) == "disk-full"
    assert code_of(ValueError) == ""


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
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(kinds())


def test_an_error_s_line_says_its_code(capsys, tmp_path):
    assert main(["ledger", "ls", "--metadata", f"sqlite:///{tmp_path}/none.db"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("(quorumbook help cluster-not-initialized)")
