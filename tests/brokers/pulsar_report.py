"""Writes docs/reports/pulsar.md from the outcomes of a run of everything in this directory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from brokers.pulsar_cluster import POM

REPORT = Path(__file__).parents[2] / "docs" / "reports" / "pulsar.md"


class Report:
    """What happened, gathered scenario by scenario."""

    def __init__(self) -> None:
        self._outcomes: dict[str, tuple[str, float]] = {}

    def add(self, node_id: str, outcome: str, seconds: float) -> None:
        """Take one scenario's outcome; a skipped one is none."""
        if outcome != "skipped":
            name = node_id.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            self._outcomes[name] = outcome, seconds

    def write(self) -> None:
        """Write the report."""
        version = re.search(r"<version>(\d+\.\d+\.\d+)</version>", POM.read_text())
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
        passed = sum(outcome == "passed" for outcome, _ in self._outcomes.values())
        lines = [
            "# Apache Pulsar on Quorumbook's bookies",
            "",
            f"{passed} of {len(self._outcomes)} scenarios of a real broker passed. Taken by "
            "`make interop-pulsar`; [docs/pulsar.md](../pulsar.md) says how to configure both.",
            "",
            f"Apache Pulsar {version[1] if version else '?'} (broker, and its setup of a new "
            f"cluster), {java.stderr.splitlines()[0]}, Python {platform.python_version()}, "
            f"{os.cpu_count()} processors; three bookies of Quorumbook, ZooKeeper, clients in "
            'Python. Bookies, brokers and ZooKeeper are processes of their own; "killed" is '
            "SIGKILL.",
            "",
            "| scenario | outcome | seconds |",
            "|---|---|---|",
            *(
                f"| {name} | {outcome} | {seconds:.0f} |"
                for name, (outcome, seconds) in self._outcomes.items()
            ),
        ]
        REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
