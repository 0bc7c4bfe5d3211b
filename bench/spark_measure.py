"""How ``spark.py`` measures things beside each other, and says how they came out."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import uvloop

import spark_load as load
from report import Figure

KB, MB = 1024, 1 << 20


class Bench:
    """One cluster and one session, and how things are measured beside each other."""

    def __init__(self, spark: Any, uri: str, work: Path, rounds: int) -> None:
        self.spark = spark
        self.uri = uri
        self.work = work
        self.rounds = rounds
        self._numbers = itertools.count()

    def name(self, prefix: str) -> str:
        """Return a name that nothing has."""
        return f"{prefix}-{next(self._numbers)}"

    def start_s(self) -> float:
        """Return how long Spark takes to read a single entry."""
        (ledger_id,) = uvloop.run(load.write_ledgers(self.uri, 1, 1, ledgers=1))
        path = f"ledger:{ledger_id}"
        times = [load.read_by_spark(self.spark, self.uri, path) for _ in range(self.rounds + 2)]
        return statistics.median(times[2:])

    def beside(
        self,
        title: str,
        unit: str,
        goal: float | None,
        ours: Callable[[], float],
        other: Callable[[], float],
        *,
        at_most: bool = False,
    ) -> Figure:
        """Measure two rates in turn, after each ran once."""
        ours(), other()
        pairs = [(ours(), other()) for _ in range(self.rounds)]
        return compared(title, unit, goal, pairs, at_most=at_most)

    def times(self, work: Callable[[], float]) -> list[float]:
        """Measure one thing in each round, after it ran once."""
        work()
        return [work() for _ in range(self.rounds)]


Row: TypeAlias = Callable[[Bench], Iterator[Figure]]


def compared(
    title: str,
    unit: str,
    goal: float | None,
    pairs: Sequence[tuple[float, float]],
    *,
    at_most: bool = False,
) -> Figure:
    """Say how the first of each pair stands to the second, and whether that is as it should be."""
    ratios = [of / to for of, to in pairs]
    ratio = statistics.median(ratios)
    medians = [_number(statistics.median(side)) for side in zip(*pairs, strict=True)]
    value = (
        f"{medians[0]} to {medians[1]} {unit}: **{ratio:.2f}** "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )
    if goal is None:
        return said(title, value)
    is_good = ratio <= goal if at_most else ratio >= goal
    return said(title, value, f"{'≤' if at_most else '≥'} {goal}", is_good)


def within(title: str, seconds: list[float], goal: float) -> Figure:
    """Say how long something took, and whether that is short enough."""
    median = statistics.median(seconds)
    spread = f"{median:.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
    return said(title, spread, f"≤ {goal:g} s", median <= goal)


def at_least(title: str, unit: str, rates: Sequence[float], goal: float) -> Figure:
    """Say how fast something was, and whether that is as fast as it was once."""
    median = statistics.median(rates)
    spread = f"{_number(median)} {unit} ({_number(min(rates))} to {_number(max(rates))})"
    return said(title, spread, f"≥ {_number(goal)} {unit}", median >= goal)


def said(title: str, value: str, goal: str = "-", is_good: bool | None = None) -> Figure:
    """Return a figure, and tell who waits for it."""
    print(f"{title}: {value}", file=sys.stderr)
    return Figure(title, value, goal, is_good)


def text(size: int) -> str:
    """Return a size for people."""
    return f"{size // KB} KB" if size >= KB else f"{size} B"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"
