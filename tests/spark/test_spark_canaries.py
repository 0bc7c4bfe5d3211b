"""Canaries instead of secrets, looked for in whatever Spark shows and keeps of a query.

That is plans, its pages (by what they are made of), the event log, the progress of streaming
queries, checkpoints, and errors.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import write_ledger

OPTION, PASSWORD, LOGIN = "canary-of-an-option", "canary-of-a-password", "canary-of-a-login"
CANARIES = (OPTION, PASSWORD, LOGIN)


class _Log:
    """An event log of its own, in the session of all tests."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self._context = spark.sparkContext._jsc.sc()  # Spark has no other way there
        self._directory = directory
        java = spark._jvm  # Spark has no other way there
        self._listener = java.org.apache.spark.scheduler.EventLoggingListener(
            "canaries", java.scala.Option.empty(), java.java.net.URI(directory.as_uri()),
            self._context.getConf().set("spark.eventLog.compress", "false"),
            self._context.hadoopConfiguration(),
        )  # fmt: skip
        self._listener.start()
        self._context.addSparkListener(self._listener)

    def text(self) -> str:
        """Return all of it; nothing is written any more."""
        self._context.listenerBus().waitUntilEmpty()
        self._context.removeSparkListener(self._listener)
        self._listener.stop()
        return _files(self._directory)


def _files(directory: Path) -> str:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return "\n".join(f"{path}\n{path.read_bytes().decode(errors='replace')}" for path in paths)


def _explained(shown: Any) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        shown.explain(True)
    return said.getvalue()


def _pages(spark: Any) -> str:
    """Return what Spark's pages about queries, their errors and the settings are made of."""
    store = spark._jsparkSession.sharedState().statusStore()  # Spark has no other way there
    executions = store.executionsList()
    said = []
    for number in range(executions.size()):
        execution = executions.apply(number)
        said += [execution.description(), execution.details(), execution.physicalPlanDescription(),
                 execution.modifiedConfigs().toString(), execution.errorMessage().toString(),
                 store.planGraph(execution.executionId()).allNodes().toString()]  # fmt: skip
    return "\n".join(said)


def _failed(act: Any) -> str:
    with pytest.raises(Exception, match="quorumbook") as error:
        act()
    return f"{error.value}\n{error.value!r}"


def _batches(spark: Any, options: dict[str, str], ledger_id: int) -> dict[str, str]:
    """Read a ledger, and a stream by a view; return what is shown of that."""
    said = {}
    frame = spark.read.format("quorumbook").options(**options).load(f"ledger:{ledger_id}")
    assert frame.count() == 1
    said["plan of a read"] = _explained(frame) + repr(frame)
    listed = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    made = spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW canaries USING quorumbook OPTIONS ({listed}, "
        "'path' 'stream:canaries')"
    )
    view = spark.sql("SELECT * FROM canaries")
    assert view.count() == 2
    description = spark.sql("DESCRIBE EXTENDED canaries").collect()
    said["plan and description of a view"] = _explained(made) + _explained(view) + str(description)
    view.select("value").write.format("quorumbook").options(**options).mode("append").save(
        "stream:canaries"
    )
    return said


def _queries(spark: Any, options: dict[str, str], directory: Path) -> dict[str, str]:
    """Copy a stream; return what is shown and kept of that."""
    said = {}
    source = spark.readStream.format("quorumbook").options(**options, startingOffsets="earliest")
    sink = source.load("stream:canaries").select("value").writeStream.format("quorumbook")
    query = (
        sink.options(**options, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start("stream:canaries-copied")
    )
    query.awaitTermination()
    assert sum(each["numInputRows"] for each in query.recentProgress) == 4
    said["progress of a query"] = str([*query.recentProgress, query.status])
    said["plan of a query"] = _explained(query)
    said["checkpoint"] = _files(directory / "checkpoint")
    return said


def _errors(spark: Any, options: dict[str, str]) -> dict[str, str]:
    """Say everything wrongly; return what is said of it."""
    said = {}
    # All forms of addresses are looked at in tests/security/test_security_shown.py.
    for form in ("zk+x://w:{}@h/l", "etcd://h/ledgers?password={}"):
        wrong = {"metadataServiceUri": form.format(LOGIN)}
        reader = spark.read.format("quorumbook").options(**wrong)
        said[f"error about {form}"] = _failed(lambda r=reader: r.load("meta:ledgers").collect())
        writer = (
            spark.table("canaries")
            .select("value")
            .write.format("quorumbook")
            .options(**wrong)
            .mode("append")
        )
        said[f"error of a writer about {form}"] = _failed(lambda w=writer: w.save("stream:x"))
    for name in ("password", "client.auth_setting"):
        reader = spark.read.format("quorumbook").options(**{**options, name: OPTION})
        said[f"error about {name}"] = _failed(lambda r=reader: r.load("meta:ledgers").collect())
    return said


def test_nothing_that_spark_shows_or_keeps_has_a_secret(
    spark: Any, cluster: Any, streams: Any, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    log = _Log(spark, tmp_path / "log")
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD)
    password_file.chmod(0o600)
    ledger_id = write_ledger(cluster, [b"x"], password=PASSWORD.encode())
    streams.write("canaries", [b"a", b"b"])
    streams.write("canaries-copied", [b"c"])
    options = {
        "metadataServiceUri": cluster.metadata_uri, "passwordFile": str(password_file),
        "client.auth_settings": OPTION,
    }  # fmt: skip
    said = _batches(spark, options, ledger_id)
    said |= _queries(spark, options, tmp_path)
    said |= _errors(spark, options)
    said["event log"] = log.text()
    said["pages"] = _pages(spark)
    assert "SparkListenerSQLExecutionStart" in said["event log"]
    assert "zk+x" in said["event log"]
    assert "quorumbook" in said["pages"]
    found = [
        f"{canary} in {where}" for where in said for canary in CANARIES if canary in said[where]
    ]
    assert found == []
