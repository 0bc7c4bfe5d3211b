"""A long run of seeds goes on where it ended, and its page keeps what people wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quorumbook.sim import __main__ as command
from quorumbook.sim import runs
from quorumbook.sim.life import of_operations
from quorumbook.sim.runs import outcomes_of
from quorumbook.sim.search import report
from quorumbook.sim.search.report import Counts, Kept


@pytest.fixture(scope="module")
def counts() -> Counts:
    with outcomes_of([3], 1) as outcomes:
        return Counts.of(*outcomes)


def test_counts_of_seeds_are_there_again_and_half_a_line_is_not(tmp_path: Path, counts: Counts):
    path = tmp_path / "build" / "kept.jsonl"
    Kept(path).add(counts)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"seed": 4, "ph')
    again = Kept(path)
    assert again.counts == [counts]
    again.add(replace(counts, seed=4))
    assert [each.seed for each in Kept(path).counts] == [3, 4]


def test_counts_of_other_sources_are_forgotten(
    tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "kept.jsonl"
    Kept(path).add(counts)
    monkeypatch.setattr(report, "_fingerprint", lambda: "others")
    assert Kept(path).counts == []


def test_short_seeds_are_other_runs(
    tmp_path: Path, counts: Counts, capsys: pytest.CaptureFixture[str]
):
    path, page = tmp_path / "kept.jsonl", tmp_path / "page.md"
    Kept(path, 50).add(counts)
    assert Kept(path, 50).counts == [counts]
    words = ["run", "--seeds", "3..3", "--operations", "50", "--keep", str(path)]
    assert command.main([*words, "--report", str(page)]) == 0
    assert "1 seeds\n" in capsys.readouterr().out
    assert "Seeds 3 to 3 with mishaps for 50 operations of clients: " in page.read_text("utf-8")
    assert Kept(path, 200).counts == []
    assert command.main(["replay", "3", "--operations", "20"]) == 0
    assert "operations_max=20," in capsys.readouterr().out


def test_seeds_that_ran_are_not_run_again(
    tmp_path: Path, counts: Counts, capsys: pytest.CaptureFixture[str]
):
    kept, page = tmp_path / "kept.jsonl", tmp_path / "page.md"
    page.write_text("# Old\n\n## Found and mended\n\nby people\n", encoding="utf-8")
    told = replace(counts, seed=5, violation="an entry is lost", operations=12_345_678)
    Kept(kept).add(told)
    words = ["run", "--seeds", "5..5", "--keep", str(kept), "--report", str(page)]
    assert command.main(words) == 1
    assert "12345678 answers to clients" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "Seed 5 broke a promise: an entry is lost\n" in text
    assert text.endswith("\n## Found and mended\n\nby people\n")
    assert "# Old" not in text


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
