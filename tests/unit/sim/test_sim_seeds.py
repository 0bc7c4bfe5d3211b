"""Seeds of the simulated cluster: no promise is broken, and a seed is always the same run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from quorumbook.sim import runs
from quorumbook.sim.life import Outcome, Variation, of_operations, run_seed
from quorumbook.sim.loop import ProcessLoop
from quorumbook.sim.plan import MISHAPS

#: Two thousand lives, most of them short.
SEEDS, _TOGETHER = range(2000), 50
_SHORT, _LONG, _LONG_EVERY = 50, 200, 20


def _checked(seed: int) -> Outcome:
    operations = _SHORT if seed % _LONG_EVERY else _LONG
    return runs.run_checked(seed, of_operations(operations))


def _hash(seed: int) -> str:
    return run_seed(seed, variation=of_operations(_SHORT)).trace_hash


@pytest.mark.parametrize("first", SEEDS[::_TOGETHER])
def test_no_seed_loses_changes_or_denies_what_was_acknowledged(first: int):
    ran = [_checked(seed) for seed in SEEDS[first : first + _TOGETHER]]
    assert [(each.seed, text) for each in ran for text in each.violations] == []
    # Else it would have been peace.
    assert sum(each.acknowledged for each in ran) > 300
    assert sum(each.operations + each.audited for each in ran) > 3000
    assert len({name for each in ran for name in each.mishaps}) > len(MISHAPS) / 2


@pytest.mark.parametrize("name", MISHAPS)
def test_each_mishap_strikes_and_is_survived(name: str):
    plan = {**of_operations(_SHORT).plan, "mishaps": (name,), "mishap_interval_s": 0.3}
    outcome = run_seed(1, variation=Variation(plan={**plan, "zookeepers": 3}, phase=""))
    assert outcome.violations == ()
    assert set(outcome.mishaps) == {name}


def test_a_seed_is_the_same_run_in_every_process():
    words = (
        "from quorumbook.sim.life import of_operations, run_seed; "
        f"print(run_seed(7, variation=of_operations({_SHORT})).trace_hash)"
    )
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", words],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == _hash(7)


@pytest.mark.parametrize("seed", [5900, 6500])
def test_a_seed_is_the_same_run_again_in_one_process(seed: int):
    """Nothing depends on where objects lie in memory, nor on what ran before."""
    assert _hash(seed) == _hash(seed)


def test_another_seed_is_another_run():
    assert _hash(7) != _hash(8)


@pytest.mark.parametrize("seed", [0, 7])
def test_nothing_of_a_run_is_left_when_it_is_over(seed: int):
    """What the dead had under way would be closed in the middle of what comes next."""
    before = _loops()
    run_seed(seed)
    assert _loops() == before


def _loops() -> list[ProcessLoop]:
    return [each for each in gc.get_objects() if isinstance(each, ProcessLoop)]
