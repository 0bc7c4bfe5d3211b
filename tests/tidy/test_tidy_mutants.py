"""The planted bugs of tests/mutants still fit the sources, and the tests that find them exist."""

from __future__ import annotations

import sys
from pathlib import Path

from documents import existing_tests

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

from run import all_mutants  # noqa: E402
from sim.mutants.planting import all_mutants as all_simulated  # noqa: E402
from sim.mutants.planting import planted  # noqa: E402


def test_every_planted_bug_fits_the_sources():
    assert [each.problem for each in all_mutants() if each.problem] == []


def test_every_planted_bug_of_the_simulated_cluster_fits_the_sources():
    for each in all_simulated():
        with planted(each):
            pass


def test_every_planted_bug_names_a_test_that_exists():
    existing = existing_tests()
    missing = []
    for each in all_mutants():
        path, _, name = each.test.rpartition("::")
        if not (ROOT / path.split("::")[0]).is_file() or name.split("[")[0] not in existing:
            missing.append(each.test)
    assert missing == []
