"""docs/track-record.md lists every rule and scenario of this release, with tests that exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from documents import existing_tests, named_tests, problem_of

ROOT = Path(__file__).parents[2]
RULES = [f"R{n}" for n in range(1, 33)]
SCENARIOS = [f"S{n:02}" for n in range(1, 103)]
INPUTS = [
    "garbage", "truncated", "byte by byte", "master key", "fenced ledger", "closed ledger",
    "beyond the limit", "unknown ledger", "damaged journal", "damaged entry log",
    "damaged index", "damaged state files", "another cluster", "metadata uri", "port in use",
    "killed client", "killed bookie", "never reads", "middle of a group", "certificates",
]  # fmt: skip


def rows_of(text: str, title: str) -> list[str]:
    """Return the rows of the table under a heading."""
    section = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def problems_of(row: str, existing: frozenset[str], tag: str | None) -> list[str]:
    """Say what is wrong with a row; a tag must be in the names of its tests."""
    named = named_tests(row)
    found = [problem for name in named if (problem := problem_of(name, existing))]
    if not named:
        found.append(f"no test: {row}")
    if tag is not None:
        found += [
            f"{name} is not of {tag}"
            for name in named
            if f"_{tag}_" not in name.rpartition("::")[2]
        ]
    return found


@pytest.fixture(scope="module")
def text():
    return (ROOT / "docs" / "track-record.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "labels"), [("Rules", RULES), ("Scenarios", SCENARIOS)])
def test_every_rule_and_scenario_is_listed_with_tests_of_its_name(text, title, labels):
    rows = {row.split("|")[1].strip(): row for row in rows_of(text, title)}
    assert list(rows) == labels
    existing = existing_tests()
    problems = [
        f"{label}: {problem}"
        for label, row in rows.items()
        for problem in problems_of(row, existing, f"{label[0].lower()}{int(label[1:]):02}")
    ]
    assert problems == []


def test_a_number_means_one_thing_wherever_it_stands():
    """Rules and scenarios here, promises of streams there; names of tests begin with them."""
    listed = Counter(
        (letter, int(number))
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for letter, number in re.findall(r"^\| ([A-Z])(\d+) \|", page.read_text(), re.MULTILINE)
    )
    assert len(listed) > 140
    assert [label for label, times in listed.items() if times > 1] == []
    used = {
        (letter.upper(), int(number))
        for name in existing_tests()
        for letter, number in re.findall(r"^test_((?!v[23]_)[a-z])(\d+)_", name)  # protocols 2, 3
    }
    assert used - listed.keys() == set()


def test_every_kind_of_bad_input_is_listed_with_tests_that_exist(text):
    rows = rows_of(text, "Bad input")
    existing = existing_tests()
    assert [problem for row in rows for problem in problems_of(row, existing, None)] == []
    listed = "\n".join(row.split("|")[1].lower() for row in rows)
    assert [kind for kind in INPUTS if kind not in listed] == []


def test_each_attack_that_needed_no_volume_has_a_before_an_after_and_tests_that_exist(text):
    rows = rows_of(text, "Attacks before and after")
    existing = existing_tests()
    assert len(rows) >= 8
    assert [problem for row in rows for problem in problems_of(row, existing, None)] == []
    assert [row for row in rows if not all(each.strip() for each in row.split("|")[1:5])] == []


def test_the_track_record_would_notice_a_test_that_is_gone():
    existing = frozenset({"test_a.py::test_r01_one", "test_a.py::test_r01_two", "test_r01_one"})
    row = "| R1 | x | `test_a.py::test_r01_one`, `test_a.py::test_r01_two` |"
    assert problems_of(row, existing, "r01") == []
    assert problems_of("| R1 | x | `test_a.py::test_r01_gone` |", existing, "r01") == [
        "test_a.py::test_r01_gone does not exist"
    ]
    assert problems_of("| R1 | x | `test_r01_one` |", existing, "r01") == [
        "test_r01_one is named without its file"
    ]
    assert problems_of("| R2 | x | `test_a.py::test_r01_one` |", existing, "r02") == [
        "test_a.py::test_r01_one is not of r02"
    ]
    assert problems_of("| R1 | x | |", existing, None)
