"""A driver of a standalone cluster whose executors get the package as an archive.

    python tests/spark/spark_archive.py MASTER ARCHIVE URI DIRECTORY

Prints where executors have the package, and what a copy of ``stream:in`` wrote, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from quorumbook.spark import spark_session


def place(_: int) -> tuple[str, str]:
    import os

    import quorumbook

    return os.getcwd(), os.path.abspath(quorumbook.__file__)


def drive(master: str, archive: str, uri: str, directory: str) -> dict[str, Any]:
    spark = spark_session(
        master=master,
        configuration={
            # As docs/spark.md has it.
            "spark.archives": f"{archive}#packages",
            "spark.executorEnv.PYTHONPATH": "packages",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            # Both executors are there before the first task.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        },
    )
    places = spark.sparkContext.parallelize(range(4), 4).map(place).collect()
    options = {"metadataServiceUri": uri}
    frame = spark.read.format("quorumbook").options(**options, minPartitions=2)
    frame = frame.schema("value binary").load("stream:in")
    tasks = frame.rdd.getNumPartitions()
    frame.write.format("quorumbook").mode("append").options(**options).save("stream:out")
    spark.stop()
    return {"places": places, "tasks": tasks}


if __name__ == "__main__":
    print(json.dumps(drive(*sys.argv[1:])))
