"""Bugs that are planted in the simulated cluster are found.

A directed phase finds its bugs within a few seeds, whichever they are: a change of the sources
makes other runs of all seeds, and the phase finds them all the same.  For those that no phase
finds there is a test.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.mutants.by_tests import failing_tests
from sim.mutants.page import held_elsewhere, scenarios
from sim.mutants.planting import Mutant, all_mutants, planted
from sim.mutants.run import Finding, search, tried, write_report

MUTANTS = all_mutants()
#: Within so many seeds a phase finds its bugs: nearly all within three, two of them after some 20.
_SEEDS_OF_A_PHASE = 60
#: By `make simulate-mutants`.  Of unchanged sources the seed finds it again, and no other is run.
_REPORT = Path(__file__).parents[2] / "docs" / "reports" / "simulation-mutants.json"
_FOUND_BY = {
    (each["what"], each["phase"]): each["seed"]
    for each in json.loads(_REPORT.read_text(encoding="utf-8"))
    if each["seed"] is not None
}


def test_a_bug_is_there_only_as_long_as_it_is_planted():
    mutant = MUTANTS[0]
    from quorumbook.ledger.placement import schedule

    before = schedule.negatives_needed.__code__
    mutant = next(each for each in MUTANTS if "denial less" in each.what)
    with planted(mutant):
        assert schedule.negatives_needed(3, 2) == 1
    assert schedule.negatives_needed.__code__ is before


def test_bugs_that_cover_each_other_are_planted_together():
    from quorumbook.client import recovery as driver
    from quorumbook.ledger.machines import recovery as machine

    # Which functions are run is looked at, not what they do.
    functions = [machine.RecoveryState._on_fenced, driver._RecoveryDriver._read]
    before = [each.__code__ for each in functions]
    mutant = next(each for each in MUTANTS if "one answer to its fence" in each.what)
    with planted(mutant):
        assert all(f.__code__ is not code for f, code in zip(functions, before, strict=True))
    assert [each.__code__ for each in functions] == before


def test_what_the_report_tells_need_not_be_looked_for_again(tmp_path: Path):
    report = tmp_path / "found.json"
    assert tried(report, is_as_they_come=True) == set()
    one, another = (
        Finding(each.what, each.area, 3, 4, 0.1, phase=each.phase) for each in MUTANTS[:2]
    )
    write_report(report, one, is_as_they_come=True)
    write_report(report, another, is_as_they_come=False)
    assert tried(report, is_as_they_come=True) == {one.what}
    assert tried(report, is_as_they_come=False) == {another.what}


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.phase], ids=str)
def test_a_phase_finds_a_planted_bug(mutant: Mutant):
    seeds = [*range(_SEEDS_OF_A_PHASE)]
    known = _FOUND_BY.get((mutant.what, mutant.phase))
    if known is not None:
        seeds.insert(0, known)
    assert search(mutant, seeds, mutant.phase).seed is not None


def test_a_test_finds_each_planted_bug_that_no_seed_does():
    tests = {each.what: each.test for each in MUTANTS if each.test}
    assert failing_tests(tests) == tests


def test_every_planted_bug_is_found_by_something():
    assert [m.what for m in MUTANTS if not (m.phase or m.test)] == []


def test_each_scenario_of_the_track_record_has_a_bug_that_brings_it_back_or_is_held_elsewhere():
    planted_again = {number for each in MUTANTS for number in each.scenarios}
    elsewhere = held_elsewhere().keys()
    assert planted_again | elsewhere == scenarios().keys()
    assert planted_again & elsewhere == set()
