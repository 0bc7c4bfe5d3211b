"""Sessions of Spark that tests start in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quorumbook.errors import ConfigError

#: Of a JVM that lives for a test: the second compiler takes half of its processor time, to verify
#: the classes of known jars a quarter of what is left, and neither gains anything.
LEAN_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
#: What Sparks have that tests start by commands and examples.
SPARK_CONFIGURATION = str(Path(__file__).with_name("spark-conf"))


def need_spark() -> None:
    """Skip a test where Spark cannot run; in CI that is a failure."""
    from quorumbook.spark.session import check_environment

    try:
        check_environment()
    except ConfigError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def made_session(
    name: str, directory: Path, configuration: Mapping[str, str], *, master: str, log_level: str
) -> Any:
    """Return a session that only this machine reaches, with its files in a directory."""
    from quorumbook.spark import spark_session
    from quorumbook.spark.short_errors import HIDES_TRACE

    # An error of ours in this process may have set it; workers inherit it, for errors of anybody.
    os.environ.pop(HIDES_TRACE, None)
    session = spark_session(
        name,
        master=master,
        configuration={
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **configuration,
        },
    )
    session.sparkContext.setLogLevel(log_level)
    return session


def mortal_session(name: str, directory: Path, **configuration: str) -> Any:
    """Return a session with two executors, each a process, of which any number may be killed."""
    return made_session(
        name,
        directory,
        {
            "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": LEAN_JAVA,
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "50",
            "spark.stage.maxConsecutiveAttempts": "50",
            "spark.excludeOnFailure.enabled": "false",
            **configuration,
        },
        master="local-cluster[2,1,700]",
        log_level="OFF",
    )


def local_session(name: str, directory: Path, configuration: Mapping[str, str]) -> Any:
    """Return a session of two tasks at once in this process's JVM."""
    return made_session(name, directory, configuration, master="local[2]", log_level="ERROR")


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below one, with their command lines."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                lines[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        above = waiting.pop()
        below = [child for child, parent in parents.items() if parent == above]
        found |= {child: lines[child] for child in below if child in lines}
        waiting += below
    return found
