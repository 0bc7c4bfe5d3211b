"""The page of what became of planted bugs, and of the scenarios of the track record.

A scenario is reached when seeds find a bug that brings it back.  For each other one
``tests/sim/scenarios.toml`` says why it is not the simulator's: the tests that the track record
names hold it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
_ROW = re.compile(r"^\| (S\d+) \| (.*?) \|", re.MULTILINE)


def scenarios() -> dict[str, str]:
    """Return what happens in each scenario of the track record, by its number."""
    text = (_ROOT / "docs/track-record.md").read_text(encoding="utf-8")
    return {match[1]: match[2] for match in _ROW.finditer(text)}


def held_elsewhere() -> dict[str, str]:
    """Return for each scenario that is not the simulator's why it is not."""
    return tomllib.loads((_ROOT / "tests/sim/scenarios.toml").read_text(encoding="utf-8"))


def page(findings: list[dict[str, Any]]) -> str:
    """Return the page.

    Args:
        findings: For each bug ``what``, ``area``, ``seed`` (None: no seed found it), ``tried``,
            ``phase``, ``test``, ``scenarios``, and maybe ``as_they_come`` with ``seed`` and
            ``tried``.
    """
    found = [each for each in findings if each["seed"] is not None]
    by_tests = [each for each in findings if each["seed"] is None and each.get("test")]
    rows = [
        f"| {each['area']} | {each['what']} | {_after(each)} | {_directed(each)} "
        f"| {_after(each['as_they_come']) if 'as_they_come' in each else ''} | {_test(each)} |"
        for each in sorted(findings, key=lambda each: (each["area"], each["what"]))
    ]
    lines = [
        "# Bugs planted in the simulation",
        "",
        f"{len(findings)} bugs were planted, one at a time (`make simulate-mutants`); seeds found "
        f"{len(found)} of them, and tests {len(by_tests)} that seeds did not."
        f"{_as_they_come(findings)}",
        "",
        "| area | bug | found after so many seeds | of which | after so many as they come "
        "| test that finds it |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *_of_scenarios(found),
    ]
    return "\n".join(lines)


def _as_they_come(findings: list[dict[str, Any]]) -> str:
    tried = [each["as_they_come"] for each in findings if "as_they_come" in each]
    found = [each for each in tried if each["seed"] is not None]
    if not tried:
        return ""
    return (
        f" Seeds as they come, of which half have no directed phase and the others one of many, "
        f"found {len(found)} of {len(tried)}, {100 * len(found) / len(tried):.0f} %."
    )


def _of_scenarios(found: list[dict[str, Any]]) -> list[str]:
    bugs: dict[str, list[str]] = {}
    for each in found:
        for scenario in each.get("scenarios", ()):
            bugs.setdefault(scenario, []).append(each["what"])
    reasons = held_elsewhere()
    of_simulator = [each for each in scenarios() if each not in reasons]
    return [
        "## Scenarios of the track record",
        "",
        f"Of the {len(reasons) + len(of_simulator)} scenarios of the "
        f"[track record](../track-record.md), {len(of_simulator)} are the simulator's: seeds reach "
        f"{len(bugs)} of them, as they find a bug that brings the scenario back. The others are "
        "held by the tests that the track record names.",
        "",
        "| scenario | bug that brings it back, found by seeds; or why it is not the simulator's |",
        "|---|---|",
        *(
            f"| {number}: {what} | {'; '.join(bugs.get(number, [])) or reasons.get(number, '-')} |"
            for number, what in scenarios().items()
        ),
        "",
    ]


def _after(finding: dict[str, Any]) -> str:
    if finding["seed"] is None:
        return f"not by {finding['tried']}"
    return str(finding["tried"])


def _directed(finding: dict[str, Any]) -> str:
    return f"each in phase {finding['phase']}" if finding.get("phase") else "as they come"


def _test(finding: dict[str, Any]) -> str:
    return str(finding.get("test", "")).rpartition("/")[2]
