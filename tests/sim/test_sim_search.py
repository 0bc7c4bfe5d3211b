"""Making stories short, counting rare states, and the failures of the past."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from quorumbook.sim.cluster import SimClient
from quorumbook.sim.kernel import Calm, Tape
from quorumbook.sim.life import Life, Variation, of_operations, run_seed
from quorumbook.sim.phases.directed import PLANS
from quorumbook.sim.search.shrinking import Case, Shrinker, kind_of
from quorumbook.sim.search.sometimes import SOMETIMES, STATES
from sim.mutants.planting import SOURCES, all_mutants, planted

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))
_SEEDS_OF_A_PHASE = 20
#: Where rare states are seen within a few seeds; others are on the way there.
_SEEN_IN = {
    "overtaken": {"an ensemble is changed", "garbage collection drops deleted ledgers"},
    "absences": {"a worker moves copies", "garbage collection drops copies that others have"},
    "rivals": {"a stream is taken over by force", "a stream is truncated"},
    "stores": {"a journal ends in a write that was cut short"},
    "disks": {"a damaged or doubted ledger is whole again"},
    "members": {"a ZooKeeper session is over"},
}


def test_a_calm_stretch_changes_nothing_before_and_behind_it():
    plain, calm = Tape(3), Tape(3, Calm(((4, 8),)))
    drawn = [(plain.unit(), calm.unit()) for _ in range(20)]
    assert [number for number, (a, b) in enumerate(drawn) if a != b] == [4, 5, 6, 7]
    assert not any(Tape(3, Calm(((0, 99),))).chance(0.5) for _ in range(20))


def test_a_story_gets_shorter_and_breaks_the_same_promise():
    mutant = next(each for each in all_mutants() if "takes the writer's adds" in each.what)
    with planted(mutant):
        seed = next(
            s for s in range(40) if run_seed(s, variation=Variation(phase="overtaken")).violations
        )
        case = Case(seed, phase="overtaken")
        before = case.run()[0]
        steps: list[str] = []
        shorter = Shrinker(case, runs=12, tell=steps.append).shrink()
        after = Case.decode(shorter.encode()).run()[0]
    assert kind_of(after.violations[0]) == kind_of(before.violations[0])
    assert steps
    assert after.events <= before.events


def test_rare_states_are_told_by_messages_of_the_sources():
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    assert [text for text in SOMETIMES.values() if sources.count(f'"{text}"') < 2] == []


def test_rare_states_are_seen_whatever_this_process_logs():
    quiet = logging.getLogger("quorumbook.client.bookies")
    before = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        seen = run_seed(0, variation=Variation(phase="")).sightings
        assert quiet.level == logging.ERROR
    finally:
        quiet.setLevel(before)
    assert seen["a bookie is in quarantine"] > 0


def test_a_few_seeds_of_some_phases_reach_every_rare_state():
    seen: set[str] = set()
    for phase, states in _SEEN_IN.items():
        for seed in range(_SEEDS_OF_A_PHASE):
            if states <= seen:
                break
            seen |= run_seed(seed, variation=Variation(phase=phase)).sightings.keys()
    assert set(STATES) - seen == set()


def test_few_operations_last_as_long_as_workers_need():
    outcomes = [
        run_seed(seed, variation=replace(of_operations(40), phase="healing")) for seed in range(4)
    ]
    assert sum(each.sightings.get("a worker moves copies", 0) for each in outcomes) > 0
    # What the phase says, and not what so few operations take elsewhere.
    assert {each.plan.rough_s for each in outcomes} == {PLANS["healing"]["rough_s"]}
    assert Life(1, variation=replace(of_operations(40), phase="")).plan.rough_s == 40 / 25


@pytest.mark.parametrize("phase", PLANS)
def test_a_directed_phase_breaks_no_promise(phase: str):
    assert run_seed(0, variation=Variation(phase=phase)).violations == ()


def test_a_bookie_that_dies_while_it_begins_on_an_empty_disk_is_begun_once_more():
    assert run_seed(105, variation=Variation(phase="losses")).violations == ()


def test_a_bookie_that_a_script_ends_in_the_last_moment_of_mishaps_is_started_again():
    assert run_seed(15, variation=of_operations(30)).violations == ()


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_failure_of_the_past_does_not_come_back(path: Path):
    assert Case.decode(path.read_text(encoding="utf-8")).run()[0].violations == ()


def test_a_client_that_holds_on_to_what_nobody_waits_for_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimClient, "held", property(lambda _: {"requests": 1}))
    outcome = run_seed(1, variation=Variation(phase="", plan={"operations_max": 30}))
    assert outcome.violations[0].startswith("I12 nothing_is_held: clients hold on to what")
