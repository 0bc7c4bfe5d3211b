"""A query from stream to stream that waits, at some rows, for what kills it; and its driver.

    PYTHONPATH=tests python tests/spark/spark_copy.py URI NAMESPACE DIRECTORY [MASTER [OPTION …]]

Without MASTER there are two executors, each a process.  An option of the sink is NAME=VALUE.

At a row ``hold NAME`` its task writes the process id of its executor into ``DIRECTORY/NAME.at``,
and goes on when there is ``DIRECTORY/NAME.go``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: Rows of a batch between the parts of the query, so that some are written before a row that waits.
ROWS = 10
BATCH = 100


def holding(directory: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what passes rows on, and waits at some."""

    def hold(name: str) -> None:
        daemon = Path("/proc", str(os.getppid()), "stat").read_text()
        executor = int(daemon.rpartition(")")[2].split()[1])
        told = directory / f"{name}.{os.getpid()}"
        told.write_text(str(executor))
        told.rename(directory / f"{name}.at")
        while not (directory / f"{name}.go").exists():
            time.sleep(0.05)

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for value in batch.column(0).to_pylist():
                word, _, name = value.decode().partition(" ")
                if word == "hold" and not (directory / f"{name}.go").exists():
                    hold(name)
            yield batch

    return wait


def copy(spark: Any, uri: str, namespace: str, directory: Path, **sink: str) -> None:
    """Copy all that there is, from where the checkpoint says."""
    options = {"metadataServiceUri": uri, "namespace": namespace}
    sink = {"checkpointLocation": str(directory / "checkpoint"), **sink}
    frame = (
        spark.readStream.format("quorumbook").schema("value binary")
        .options(**options, startingOffsets="earliest", maxRecordsPerTrigger=BATCH)
        .options(minPartitions=2, maxBatchRows=ROWS)
        .load("stream:in")
    )  # fmt: skip
    query = (
        frame.mapInArrow(holding(directory), "value binary")
        .writeStream.format("quorumbook").options(**options, **sink)
        .trigger(availableNow=True).start("stream:out")
    )  # fmt: skip
    try:
        query.awaitTermination()
    finally:
        query.stop()


def drive(uri: str, namespace: str, directory: Path, master: str = "", *sink: str) -> None:
    """Be a driver."""
    from doubles.spark import mortal_session

    configuration = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS)}
    if master:
        configuration["spark.master"] = master
    spark = mortal_session("spark copy", directory, **configuration)
    copy(spark, uri, namespace, directory, **dict(each.split("=") for each in sink))
    spark.stop()


if __name__ == "__main__":
    drive(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
