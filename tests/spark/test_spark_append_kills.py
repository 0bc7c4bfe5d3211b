"""A driver that appends rows as they come, killed in the middle of a batch beside a live writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spark_copy
from spark_helpers import in_namespace
from test_spark_kills import Driver

from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults
BATCH = spark_copy.BATCH
#: Rows of the batch before the kill, of the one that is killed, and of those behind it.
ROWS = [b"row %d" % number for number in range(4 * BATCH)]
ROWS[BATCH + 30] = b"hold driver"


def test_a_driver_that_appends_is_killed_in_a_batch_and_each_row_is_there_once(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    namespace = f"/{tmp_path.name}"

    async def prepare(ns: Namespace) -> None:
        for name in "in", "out":
            await ns.create_stream(name)

    async def drive(ns: Namespace) -> None:
        """Kill the driver in its second batch, while the writer that it reads of goes on."""
        async with ns.stream("in").writer() as writer:
            for first in range(0, 2 * BATCH, 5):
                await writer.append_batch(ROWS[first : first + 5])
            await writer.flush()
            words = cluster.metadata_uri, namespace, str(tmp_path), "local[2]", "delivery=append"
            driver = Driver(*words, log=tmp_path / "driver.log")
            try:
                driver.holds(tmp_path / "driver.at")
                # From here on entries are larger: whoever cut by their mean would cut otherwise.
                for first in range(2 * BATCH, len(ROWS), 40):
                    await writer.append_batch(ROWS[first : first + 40])
            finally:
                driver.kill()

    async def look(ns: Namespace) -> list[bytes]:
        async with ns.stream("out").reader(tail=False) as reader:
            return [record.payload async for record in reader]

    in_namespace(cluster, namespace, prepare, bind=True)
    in_namespace(cluster, namespace, drive)
    before = in_namespace(cluster, namespace, look)
    assert BATCH <= len(before) < 2 * BATCH
    (tmp_path / "driver.go").touch()
    spark_copy.copy(spark, cluster.metadata_uri, namespace, tmp_path, delivery="append")
    found = in_namespace(cluster, namespace, look)
    assert found[: len(before)] == before
    assert sorted(found) == sorted(ROWS)
