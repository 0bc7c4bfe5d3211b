"""docs/protocol.md: numbered clauses without gaps, each with tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import existing_tests, named_tests, problem_of

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def clauses_of(text: str) -> list[tuple[str, list[str]]]:
    """Return number and tests of each clause, in the order of the page."""
    rows = re.findall(r"^\| (\d+\.\d+) \|(.*)\|$", text, re.MULTILINE)
    return [(number, named_tests(row)) for number, row in rows]


def problems_of(text: str, existing: frozenset[str]) -> list[str]:
    """Say what is wrong with the clauses of a page."""
    found = []
    last = (0, 0)
    for number, tests in clauses_of(text):
        section, clause = (int(part) for part in number.split("."))
        if (section, clause) not in ((last[0], last[1] + 1), (last[0] + 1, 1)):
            found.append(f"{number} does not follow {last[0]}.{last[1]}")
        last = (section, clause)
        if not tests:
            found.append(f"{number} names no test")
        problems = (problem_of(test, existing) for test in tests)
        found += [f"{number}: {problem}" for problem in problems if problem]
    return found


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


def test_every_clause_of_the_protocol_has_a_number_and_tests_that_exist(text):
    assert problems_of(text, existing_tests()) == []
    assert {number.split(".")[0] for number, _ in clauses_of(text)} == {str(n) for n in range(1, 9)}


def test_a_clause_without_a_test_or_out_of_order_is_noticed():
    rows = "a | `test_a.py::test_there`", "b | ", "c | `test_a.py::test_gone`", "d | `test_there`"
    page = "".join(f"| {n} | {row} |\n" for n, row in zip((1.1, 1.3, 2.1, 2.2), rows, strict=True))
    assert problems_of(page, frozenset({"test_there", "test_a.py::test_there"})) == [
        "1.3 does not follow 1.1",
        "1.3 names no test",
        "2.1: test_a.py::test_gone does not exist",
        "2.2: test_there is named without its file",
    ]
