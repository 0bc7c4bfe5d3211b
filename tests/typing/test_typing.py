"""Editors and type checkers know every keyword of the factories: mypy and pyright are asked."""

from __future__ import annotations

import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from quorumbook.client.options import ClientOptions, LedgerWriterKeywords
from quorumbook.streams import StreamWriter
from quorumbook.streams.reading.options import ReaderOptions, ReadingKeywords
from quorumbook.streams.writing.options import RecordKeywords

HERE = Path(__file__).parent
CHECKERS = {
    "mypy": ["mypy", "--strict", "--no-error-summary", "--hide-error-context"],
    "pyright": ["basedpyright", "--level", "error", "--pythonpath", sys.executable],
}
_PLACE = re.compile(r"(good|bad)\.py:(\d+):.*error")


@pytest.mark.parametrize("checker", CHECKERS)
def test_what_is_misspelt_or_of_the_wrong_type_is_an_error_and_nothing_else_is(
    checker: str,
) -> None:
    tool, *words = CHECKERS[checker]
    command = [str(Path(sys.executable).with_name(tool)), *words]
    files = [str(HERE / "good.py"), str(HERE / "bad.py")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    refused = {(name, int(line)) for name, line in _PLACE.findall(done.stdout)}
    expected = {
        ("bad", number)
        for number, line in enumerate((HERE / "bad.py").read_text().splitlines(), 1)
        if line.endswith("# refused")
    }
    assert refused == expected, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("keywords", "options"),
    [
        (LedgerWriterKeywords, ClientOptions),
        (ReadingKeywords, ReaderOptions),
        (RecordKeywords, StreamWriter.append),
    ],
)
def test_keywords_that_are_named_again_for_type_checkers_are_those_of_the_options(
    keywords: type, options: object
) -> None:
    hints = typing.get_type_hints(options)
    for name, hint in typing.get_type_hints(keywords).items():
        assert hints[name] == hint, name
