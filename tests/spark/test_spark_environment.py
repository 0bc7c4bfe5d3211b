"""What is wrong with the machine, or with executors, is said before any task runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import write_ledger

import quorumbook
from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark import session as session_module
from quorumbook.spark.executors import check_executors
from quorumbook.spark.options import Use
from quorumbook.spark.session import check_environment, spark_session
from quorumbook.spark.sink.options import WriteOptions


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is searched for Java first, with nothing in it yet."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    return tmp_path / "java"


def test_a_missing_java_is_named_with_what_to_install(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"Java 17.*apt-get install.*none on the PATH"):
        check_environment()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"none in JAVA_HOME=.*gone"):
        check_environment()


def test_an_old_java_is_refused(java: Path) -> None:
    script(java, "echo 'openjdk version \"11.0.20\" 2023-07-18' >&2")
    with pytest.raises(ConfigError, match=r"Java 17 or later.*java is 11"):
        check_environment()


def test_another_python_for_the_workers_is_refused(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(java, "echo 'openjdk version \"17.0.1\"' >&2")
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python9"))
    with pytest.raises(ConfigError, match="python9 cannot be run"):
        check_environment()
    script(tmp_path / "python9", "echo '(3, 9) 0.1.0 2'")
    with pytest.raises(ConfigError, match=r"not like the driver's.*it has \(3, 9\) 0.1.0 2"):
        check_environment()
    script(
        tmp_path / "python9", "echo \"ModuleNotFoundError: No module named 'pandas'\" >&2; exit 1"
    )
    with pytest.raises(ConfigError, match=r"No module named 'pandas'; leave the variable unset"):
        check_environment()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    check_environment()


def test_executors_like_the_driver_are_accepted_and_others_refused(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_executors(spark)
    with monkeypatch.context() as other:
        other.setattr("quorumbook.spark.executors.__version__", "0.0.9")
        with pytest.raises(
            ConfigError,
            match=rf"driver has.*quorumbook 0\.0\.9.*quorumbook {quorumbook.__version__}",
        ):
            check_executors(spark)
    with monkeypatch.context() as other:
        other.setattr(spark.sparkContext, "pythonVer", "3.9")
        with pytest.raises(ConfigError, match=r"different version: 3.*3\.9.*PYSPARK_PYTHON"):
            check_executors(spark)
    with monkeypatch.context() as other:
        other.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
        with pytest.raises(ConfigError, match=r"Cannot run program .*/nowhere/python3"):
            check_executors(spark)


@pytest.fixture
def unlike(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return ``unlike(text)``: the session gets executors that have this for our package.

    It is the session of all tests, whose next workers find that before ours.
    """
    monkeypatch.setattr(spark.sparkContext, "master", "spark://elsewhere:7077")
    monkeypatch.setattr(type(spark), "getActiveSession", lambda: None)
    monkeypatch.setattr(type(spark), "stop", lambda session: None)

    def call(text: str) -> None:
        path = tmp_path / uuid4().hex
        for name in ("quorumbook", "pandas", "pyarrow"):
            (path / name).mkdir(parents=True)
            (path / name / "__init__.py").write_text(text if name == "quorumbook" else "")
        monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(path))

    return call


def test_a_session_with_executors_unlike_the_driver_is_refused_before_any_task(
    unlike: Any, cluster: Any, tmp_path: Path, capsys: Any
) -> None:
    write_ledger(cluster, [b"entry"])
    unlike('__version__ = "0.0.9"')
    with pytest.raises(ConfigError, match=r"the driver has.*executor .* with quorumbook 0\.0\.9: "):
        spark_session()
    # A job says so in one line, and does nothing.
    unlike("raise ImportError('no such luck')")
    report = tmp_path / "report.json"
    code = main(
        ["spark", "audit", "--metadata", cluster.metadata_uri, "--json-report", str(report),
         "--state-dir", str(tmp_path / "jobs")]
    )  # fmt: skip
    told = [line for line in capsys.readouterr().err.splitlines() if "--resume" not in line]
    assert (code, len(told), report.exists()) == (2, 1, False), told
    assert "quorumbook not usable: no such luck: install the same everywhere" in told[0]
    (journal,) = (tmp_path / "jobs").iterdir()
    assert len(journal.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("master", "is_checked"),
    [("local", True), ("local[*]", True), ("local-cluster[1,1,700]", False), ("yarn", False),
     ("spark://h:7077", False), ("k8s://h", False)],
)  # fmt: skip
def test_executors_are_looked_at_unless_the_driver_is_the_only_one(
    master: str, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    # How a session was checked is not told.
    assert session_module._is_checked_otherwise(session) is is_checked
    # One of Spark Connect has executors that only its server knows.
    monkeypatch.setattr("pyspark.sql.utils.is_remote", lambda: True)
    assert session_module._is_checked_otherwise(session)  # how a session was checked is not told


def test_workers_keep_memory_that_they_will_use_again(spark: Any) -> None:
    names = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"]

    def environment(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"bytes": [int(os.environ[name]) for name in names]})

    rows = spark.range(0, 1, 1, 1).mapInArrow(environment, "bytes long").collect()
    assert [row.bytes for row in rows] == [32 << 20, 128 << 20]


def test_a_writers_task_of_another_release_writes_nothing(cluster: Any, streams: Any) -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from quorumbook.spark.sink.write import BatchSink

    streams.write("environment/s", [b"before"])
    given = {
        "metadataServiceUri": cluster.metadata_uri, "path": "stream:environment/s",
        "txnAppId": "environment", "txnVersion": "0",
    }  # fmt: skip
    options = WriteOptions.of(given, Use.WRITE)
    schema = StructType([StructField("value", BinaryType())])
    sink = BatchSink(options, schema, overwrite=False)
    sink._sink._release = "0.0.9"  # how a session was checked is not told
    with pytest.raises(ConfigError, match=r"the driver has quorumbook 0\.0\.9, this executor"):
        sink.write(iter([]))


def test_a_stream_of_another_metadata_store_is_refused_before_any_task() -> None:
    for given in ({"path": "stream:zk://b/ledgers#/ns/s"}, {"stream": "zk://b/ledgers#/ns/s"}):
        with pytest.raises(ConfigError, match="cannot change several metadata stores"):
            WriteOptions.of({"metadataServiceUri": "sqlite:///m.db", **given}, Use.WRITE)
