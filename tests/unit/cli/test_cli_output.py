"""Results in every form, and errors as one line with an exit code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from quorumbook import errors as e
from quorumbook.cli import errors as cli_errors
from quorumbook.cli.main import main
from quorumbook.cli.output import Output, Worded

ROWS = [
    {"ledger_id": 7, "state": "closed", "custom": {"a": b"1"}},
    {"ledger_id": 123, "state": "open", "custom": {}},
]
COLUMNS = ["ledger_id", "state", "custom"]


def test_a_table_is_aligned_with_numbers_to_the_right(capsys):
    Output("table").rows(ROWS, COLUMNS)
    assert capsys.readouterr().out.splitlines() == [
        "ledger id  state   custom",
        "        7  closed  a=1",
        "      123  open",
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (71696700.0, "71696700"),
        (1234567.8, "1234568"),
        (999999.4, "999999"),
        (0.123456789, "0.123457"),
    ],
)
def test_numbers_for_people_have_no_exponent(value, shown, capsys):
    Output("table").record({"rate": value})
    assert capsys.readouterr().out.split() == ["rate", shown]


def test_a_value_in_other_words_is_a_number_elsewhere(capsys):
    rows = [{"disk": "a", "free": Worded(35098779648, "35.1 GB")}, {"disk": "b", "free": None}]
    shown = {}
    for form in ("table", "jsonl", "json", "raw"):
        Output(form).rows(rows, ["disk", "free"])
        shown[form] = capsys.readouterr().out
    assert shown["table"].splitlines() == ["disk  free", "a     35.1 GB", "b     -"]
    assert json.loads(shown["jsonl"].splitlines()[0]) == {"disk": "a", "free": 35098779648}
    assert json.loads(shown["json"])[0]["free"] == 35098779648
    assert shown["raw"] == "a\t35098779648\nb\t-\n"
    Output("table").rows(rows[:1], ["free"])
    assert capsys.readouterr().out.splitlines() == ["   free", "35.1 GB"]


def test_an_empty_table_says_on_standard_error_what_to_do(capsys):
    Output("table").rows([], COLUMNS, empty="make one")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "make one\n")


def test_json_is_one_value_even_without_rows(capsys):
    Output("json").rows(ROWS, COLUMNS)
    assert [row["ledger_id"] for row in json.loads(capsys.readouterr().out)] == [7, 123]
    Output("json").rows([], COLUMNS, empty="make one")
    captured = capsys.readouterr()
    assert (json.loads(captured.out), captured.err) == ([], "")


def test_json_lines_are_one_object_each(capsys):
    Output("jsonl").rows(ROWS, COLUMNS)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["closed", "open"]


def test_raw_is_bare_values_for_scripts(capsys):
    Output("raw").rows(ROWS, COLUMNS)
    Output("raw").record({"ledger_id": 9})
    assert capsys.readouterr().out == "7\tclosed\ta=1\n123\topen\t\n9\n"


def test_every_error_of_ours_ends_with_a_documented_exit_code():
    documented = {0, 1, 2, 3, 4, 5, 6, 70, 130, 141}
    for name in dir(e):
        kind = getattr(e, name)
        if isinstance(kind, type) and issubclass(kind, e.QuorumbookError):
            result = cli_errors.verdict(kind("what happened"))
            assert result.code in documented
            assert result.line().startswith("what happened")
            assert "\n" not in result.line()


@pytest.mark.parametrize(
    ("error", "code", "fix"),
    [
        (e.ConfigError("x"), 2, ""),
        (e.NoSuchLedgerInMetadataError("x"), 3, "ledger ls"),
        (e.ClusterNotInitializedError("x"), 3, ""),
        (e.NotEnoughBookiesError("x"), 4, "--ensemble-size"),
        (e.MetadataUnavailableError("x"), 4, "--metadata"),
        (e.UnauthorizedError("x"), 5, "--password"),
        (e.NotAdmittedError("x"), 5, "client.auth_plugin"),
        (e.DirectoryLockedError("x"), 5, "--data-dir"),
        (e.LedgerFencedError("x"), 5, "new one"),
        (e.InternalError("x"), 70, "-v"),
        (ValueError("x"), 70, "-v"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), 1, "a.txt"),
        (OSError(errno.EADDRINUSE, "in use"), 5, "--port"),
    ],
)
def test_an_error_says_what_to_do(error, code, fix):
    result = cli_errors.verdict(error)
    assert result.code == code
    assert fix in result.line()


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["ledger", "red"],
        ["ledger", "read"],
        ["ledger", "read", "seven"],
        ["config", "show", "-o", "xml"],
        ["config", "show", "--set", "bookie.prot=1"],
        ["config", "show", "--config", "/no/such/file.toml"],
        ["ledger", "ls", "--metadata", "nonsense"],
        ["ledger", "ls", "--metadata", "gopher://x"],
        ["ledger", "delete", "7"],
        ["ledger", "write", "--custom", "novalue", "--metadata", "memory://x"],
        ["ledger", "read", "7", "--password", "a", "--password-file", "/dev/null"],
        ["ledger", "read", "7", "--password-file", "/no/such/file"],
        ["ledger", "ls", "--metadata", "memory://ends-with-the-command"],
        ["cluster", "init", "--metadata", "memory://ends-with-the-command"],
        ["standalone", "--data-dir", ""],
        ["standalone", "--port", "65534"],
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("grpc", "etcd", ["ledger", "ls", "--metadata", "etcd://127.0.0.1:1/ledgers"]),
        ("pyspark", "spark", ["spark", "audit", "--metadata", "sqlite:///none.db"]),
    ],
)
def test_a_part_of_the_package_that_is_missing_is_wrong_use(module, extra, words, tmp_path):
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        f"from quorumbook.cli.main import main; sys.exit(main({words}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'quorumbook[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["ledgr"], "ledger"),
        (["ledger", "lss"], "ls"),
        (["ui"], "console"),
        (["health"], "status"),
        (["stream", "rm"], "delete"),
        (["ledger", "info"], "show"),
        (["bookie", "status"], "ls"),
        (["stream", "produce"], "write"),
    ],
)
def test_a_misspelt_command_gets_the_name_of_the_nearest(words, meant, capsys):
    assert main(words) == 2
    assert f"Did you mean '{meant}'? `quorumbook" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ledger", "write"], ["ledger", "put"]])
def test_a_file_that_cannot_be_read_is_named_before_a_ledger_is_made(words, capsys, tmp_path):
    # Whoever asked the metadata first would find that there is no cluster: exit code 3.
    for name in ("none.txt", str(tmp_path)):
        assert main([*words, name, "--metadata", f"sqlite:///{tmp_path}/none.db"]) == 1
        assert name in capsys.readouterr().err


def test_a_directory_is_no_metadata_file(capsys, tmp_path):
    assert main(["ledger", "ls", "--metadata", f"sqlite:///{tmp_path}"]) == 1
    assert f"{tmp_path} is a directory" in capsys.readouterr().err


def test_a_missing_cluster_is_one_line_with_the_command_that_makes_one(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert main(["ledger", "ls", "--metadata", "sqlite:///none.db"]) == 3
    assert "quorumbook cluster init --metadata sqlite:///none.db" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_trace_is_shown_when_asked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    main(["ledger", "ls", "--metadata", "sqlite:///none.db", "-v"])
    assert "Traceback" in capsys.readouterr().err


def test_config_show_prints_values_with_their_sources(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quorumbook.toml").write_text("[bookie]\nport = 4000\n")
    for name in [name for name in os.environ if name.startswith("QUORUMBOOK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUORUMBOOK_METADATA", "memory://x")
    assert main(["config", "show", "--changed", "-o", "json", "--set", "zkTimeout=5000"]) == 0
    rows = {row["option"]: row for row in json.loads(capsys.readouterr().out)}
    assert {key: (row["value"], row["source"]) for key, row in rows.items()} == {
        "metadata.uri": ("memory://x", "environment QUORUMBOOK_METADATA"),
        "metadata.session_timeout_s": (5.0, "--set"),
        "bookie.port": (4000, "file quorumbook.toml"),
    }
