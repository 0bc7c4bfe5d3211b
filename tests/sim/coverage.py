"""Which lines of ledger, client, bookie, storage and streams seeds alone run.

    PYTHONPATH=tests python -m sim.coverage --seeds 0..39 --report coverage.md

Python traces a function for as long as a line of it is missing.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import quorumbook
from quorumbook.sim.life import run_seed

SOURCES = Path(quorumbook.__file__).parent
ROOMS = ("ledger", "client", "bookie", "storage", "streams/writing")


class Lines:
    """Lines that there are, and those that ran, by file."""

    def __init__(self, rooms: tuple[str, ...] = ROOMS) -> None:
        self.there: dict[str, set[int]] = {}
        self._missing: dict[CodeType, set[int]] = {}
        for room in rooms:
            for path in sorted((SOURCES / room).rglob("*.py")):
                source = path.read_text(encoding="utf-8")
                for code in _codes(compile(source, str(path), "exec")):
                    # What runs at an import, classes as well, says nothing about seeds.
                    if code.co_flags & inspect.CO_OPTIMIZED:
                        self.there.setdefault(str(path), set()).update(_lines(code))
        self.ran: dict[str, set[int]] = {path: set() for path in self.there}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Take note of a call: what ``sys.settrace`` takes."""
        del event, argument
        code = frame.f_code
        missing = self._missing.get(code)
        if missing is None:
            ran = self.ran.get(code.co_filename)
            missing = self._missing[code] = set() if ran is None else _lines(code)
        return self._line if missing else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        missing = self._missing[frame.f_code]
        missing.discard(frame.f_lineno)
        self.ran[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line if missing else None

    def page(self, seeds: range) -> str:
        """Return a page: each room, and its files that ran least."""
        lines = [
            "# Code that seeds run",
            "",
            f"Lines inside of functions that seeds {seeds.start} to {seeds.stop - 1} of the "
            "simulator ran (`make simulate-coverage`). What they do not run belongs to what is "
            "not simulated: TLS, logins, adoption of a Java bookie's files, commands on stopped "
            "bookies, and errors of the machine.",
            "",
            "| room | lines | ran | files of 20 lines and more that ran least |",
            "|---|---|---|---|",
        ]
        for room in ROOMS:
            files = [each for each in self.there if each.startswith(f"{SOURCES / room}/")]
            total = sum(len(self.there[each]) for each in files)
            ran = sum(len(self.ran[each] & self.there[each]) for each in files)
            least = sorted((each for each in files if len(self.there[each]) >= 20), key=self._share)
            named = ", ".join(
                f"`{Path(each).relative_to(SOURCES / room)}` {self._share(each):.0%}"
                for each in least[:8]
            )
            lines.append(f"| `{room}` | {total:,} | {ran / total:.0%} | {named} |")
        return "\n".join(lines) + "\n"

    def _share(self, path: str) -> float:
        return len(self.ran[path] & self.there[path]) / len(self.there[path])


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _lines(code: CodeType) -> set[int]:
    # The first is that of ``def``, which a call does not run.
    found = {line for _, _, line in code.co_lines() if line is not None}
    return found - {code.co_firstlineno} or found


def covered(seeds: range) -> Lines:
    """Run seeds, and return which lines they ran."""
    for found in pkgutil.walk_packages(quorumbook.__path__, "quorumbook."):
        if found.name.startswith(tuple(f"quorumbook.{r.replace('/', '.')}" for r in ROOMS)):
            importlib.import_module(found.name)
    lines = Lines()
    threading.settrace(lines.trace)
    sys.settrace(lines.trace)
    try:
        for seed in seeds:
            run_seed(seed)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="0..39", metavar="A..B")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last) + 1)
    page = covered(seeds).page(seeds)
    print(page)
    if options.report is not None:
        options.report.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
