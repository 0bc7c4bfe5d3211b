"""Medians, ratios and the table of a run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Goal:
    """What a scenario is to reach: the ratio of ``of`` to ``to``, at least or at most ``bound``.

    Without a bound the ratio is shown for comparison.
    """

    of: str
    to: str
    bound: float | None
    at_most: bool = False


@dataclass
class Scenario:
    """One row group: values by system, one for each round."""

    title: str
    unit: str
    goals: list[Goal] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, system: str, value: float) -> None:
        self.values.setdefault(system, []).append(value)


@dataclass
class Figure:
    """A single measured number with its goal in words."""

    title: str
    value: str
    goal: str
    reached: bool | None


def machine() -> list[str]:
    """Describe where this ran."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return [
        f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}",
        f"Python {platform.python_version()}; {(java.stderr.splitlines() or ['no Java'])[0]}",
        f"revision {revision.stdout.strip()}",
        "neighbours share the machine: compare within a row, not between runs",
    ]


def _ratio(scenario: Scenario, goal: Goal) -> str:
    pairs = zip(scenario.values.get(goal.of, []), scenario.values.get(goal.to, []), strict=False)
    ratios = [of / to for of, to in pairs if to]
    if not ratios:
        return f"{goal.of}/{goal.to}: not measured"
    median = statistics.median(ratios)
    found = f"{goal.of}/{goal.to} **{median:.2f}** ({min(ratios):.2f} to {max(ratios):.2f})"
    if goal.bound is None:
        return found
    good = median <= goal.bound if goal.at_most else median >= goal.bound
    sign = "≤" if goal.at_most else "≥"
    return f"{found}, goal {sign} {goal.bound:g}: {'reached' if good else '**not reached**'}"


def _cell(values: list[float] | None) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 3
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(scenarios: list[Scenario], systems: list[str]) -> list[str]:
    """Return a row for each scenario, with a column for each system and one for the goals."""
    lines = [
        "Medians (lowest to highest); ratios are medians of each round's own ratio.",
        "",
        "| scenario | unit | " + " | ".join(systems) + " | ratios |",
        "|---|---|" + "---|" * (len(systems) + 1),
    ]
    for scenario in scenarios:
        cells = [_cell(scenario.values.get(system)) for system in systems]
        ratios = "<br>".join(_ratio(scenario, goal) for goal in scenario.goals)
        lines.append(f"| {scenario.title} | {scenario.unit} | {' | '.join(cells)} | {ratios} |")
    return lines


def figure_table(figures: list[Figure]) -> list[str]:
    """Return a row for each single number."""
    lines = ["", "| figure | measured | goal | reached |", "|---|---|---|---|"] if figures else []
    for figure in figures:
        mark = {True: "yes", False: "**no**", None: "-"}[figure.reached]
        lines.append(f"| {figure.title} | {figure.value} | {figure.goal} | {mark} |")
    return lines


#: The systems of ``bench.md``, in the order of its columns.
COLUMNS = ("own", "floor", "peer", "mixed v2", "mixed v3", "plain", "ZooKeeper")


def write(
    scenarios: list[Scenario], figures: list[Figure], notes: list[str], rounds: int, target: Path
) -> None:
    """Write the table and the raw values."""
    lines = ["# Measurements", "", f"`make bench`, {rounds} alternating rounds.", ""]
    lines += [f"- {line}" for line in [*machine(), *notes]]
    measured = [name for name in COLUMNS if any(name in each.values for each in scenarios)]
    lines += ["", *table(scenarios, measured)]
    lines += figure_table(figures)
    target.mkdir(parents=True, exist_ok=True)
    remarks = (Path(__file__).parent / "remarks.md").read_text()
    (target / "bench.md").write_text("\n".join(lines) + "\n" + remarks)
    raw = {
        "machine": machine(),
        "rounds": rounds,
        "scenarios": {s.title: {"unit": s.unit, **s.values} for s in scenarios},
        "figures": {f.title: f.value for f in figures},
    }
    (target / "bench.json").write_text(json.dumps(raw, indent=1) + "\n")
    print("\n".join(lines))
