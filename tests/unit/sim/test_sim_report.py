"""A long run of seeds goes on where it ended, and its page keeps what people wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quorumbook.sim import __main__ as command
from quorumbook.sim import runs
from quorumbook.sim.life import Outcome, of_operations
from quorumbook.sim.runs import outcomes_of
from quorumbook.sim.search import report
from quorumbook.sim.search.report import Kept


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    with outcomes_of([3], 1) as outcomes:
        (outcome,) = outcomes
    return outcome


def kept_run(path: Path, outcome: Outcome, operations: int = 0) -> Kept:
    """Return a run of seeds from 3 on of which the first has been kept."""
    kept = Kept(path, range(3, 5), operations)
    assert kept.rest == range(3, 5)
    kept.tally.add(outcome)
    kept.write()
    return kept


def test_sums_are_there_again_and_the_run_goes_on_behind_them(tmp_path: Path, outcome: Outcome):
    path = tmp_path / "build" / "kept.json"
    first = kept_run(path, replace(outcome, violations=("an entry is lost\nfor good",)))
    again = Kept(path, range(3, 5))
    assert again.tally.encode() == first.tally.encode()
    assert again.tally.violations == {3: "an entry is lost"}
    assert again.rest == range(4, 5)
    again.tally.add(replace(outcome, seed=4))
    again.write()
    third = Kept(path, range(3, 10))
    assert third.rest == range(5, 10)
    assert third.tally.sums["events"] == 2 * outcome.events
    assert third.tally.processor_s == 2 * outcome.processor_s


@pytest.mark.parametrize("seeds", [range(4, 9), range(2, 9), range(3, 3)])
def test_sums_of_other_seeds_are_forgotten(tmp_path: Path, outcome: Outcome, seeds: range):
    path = tmp_path / "kept.json"
    kept_run(path, outcome)
    assert Kept(path, seeds).rest == seeds
    assert Kept(path, range(3, 4)).rest == range(4, 4)


def test_sums_of_other_sources_are_forgotten(
    tmp_path: Path, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "kept.json"
    kept_run(path, outcome)
    monkeypatch.setattr(report, "_fingerprint", lambda: "others")
    assert Kept(path, range(3, 5)).rest == range(3, 5)


def test_short_seeds_are_other_runs(
    tmp_path: Path, outcome: Outcome, capsys: pytest.CaptureFixture[str]
):
    path, page = tmp_path / "kept.json", tmp_path / "page.md"
    kept_run(path, outcome, 50)
    words = ["run", "--seeds", "3..3", "--operations", "50", "--keep", str(path)]
    assert command.main([*words, "--report", str(page)]) == 0
    assert "1 seeds\n" in capsys.readouterr().out
    assert "Seeds 3 to 3 with mishaps for 50 operations of clients: " in page.read_text("utf-8")
    assert Kept(path, range(3, 5), 200).rest == range(3, 5)
    assert command.main(["replay", "3", "--operations", "20"]) == 0
    assert "operations_max=20," in capsys.readouterr().out


def test_seeds_that_ran_are_not_run_again(
    tmp_path: Path, outcome: Outcome, capsys: pytest.CaptureFixture[str]
):
    path, page = tmp_path / "kept.json", tmp_path / "page.md"
    page.write_text("# Old\n\n## Found and mended\n\nby people\n", encoding="utf-8")
    kept_run(path, replace(outcome, violations=("an entry is lost",), operations=12_345_678))
    words = ["run", "--seeds", "3..3", "--keep", str(path), "--report", str(page)]
    assert command.main(words) == 1
    assert "12345678 answers to clients" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "Seed 3 broke a promise: an entry is lost\n" in text
    assert text.endswith("\n## Found and mended\n\nby people\n")
    assert "# Old" not in text


def test_a_run_that_ends_early_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The second seed is interrupted; the same command runs that one, and is done."""

    def interrupted(seeds: range, *_: object) -> contextlib.AbstractContextManager[object]:
        def outcomes() -> Iterator[Outcome]:
            with outcomes_of(seeds[:1], 1, of_operations(5)) as first:
                yield from first
            raise KeyboardInterrupt

        return contextlib.nullcontext(outcomes())

    path = tmp_path / "kept.json"
    words = ["run", "--seeds", "3..4", "--operations", "5", "--keep", str(path)]
    with monkeypatch.context() as patched:
        patched.setattr(command, "outcomes_of", interrupted)
        assert command.main(words) == 1
    assert "ended early; the same command goes on with --keep" in capsys.readouterr().err
    assert Kept(path, range(3, 5), 5).rest == range(4, 5)
    assert command.main(words) == 0
    assert Kept(path, range(3, 5), 5).rest == range(5, 5)


def test_an_error_in_a_process_ends_the_run():
    with (
        pytest.raises(TypeError),
        outcomes_of(["no seed"], 2) as outcomes,  # type: ignore[list-item]
    ):
        list(outcomes)


def test_a_run_goes_on_in_fresh_processes(monkeypatch: pytest.MonkeyPatch):
    """A run of two processes stood still for good when it was time for fresh ones."""
    monkeypatch.setattr(runs, "_SEEDS_A_POOL", 2)
    with outcomes_of([3, 4, 5], 2, of_operations(5)) as outcomes:
        assert [outcome.seed for outcome in outcomes] == [3, 4, 5]
