"""Errors of the data source end Spark's worker without a trace; those of others keep theirs."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.util import handle_worker_exception
from spark_helpers import Streams

from quorumbook import errors
from quorumbook.cli.explained.codes import explanations
from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.spark.short_errors import HIDES_TRACE, condition_of, short_errors, shown_in
from quorumbook.streams import errors as stream_errors
from quorumbook.streams.errors import StreamNotFoundError
from quorumbook.testing import LocalCluster

NULL = (
    "[QUORUMBOOK_CONFIG]: column value has a null; filter such rows out before "
    "(quorumbook help config)"
)


@short_errors
class Reader:
    def plan(self, error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    def read(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDES_TRACE, "")  # so that it is given back
    monkeypatch.delenv(HIDES_TRACE)


def reported(call: object, error: Exception) -> list[str]:
    """Return what Spark's worker reports of an error."""
    out = io.BytesIO()

    def work() -> None:
        try:
            list(call(error))  # type: ignore[operator]
        except BaseException as found:
            handle_worker_exception(found, out)
            raise

    with pytest.raises(type(error), match=re.escape(str(error))):
        work()
    return out.getvalue()[8:].decode().splitlines()


@pytest.mark.parametrize("name", ["plan", "read"])
def test_an_error_of_ours_is_its_condition_its_message_and_what_explains_it(name: str) -> None:
    error = ConfigError("there is no option x", ledger_id=7)
    error.__cause__ = KeyError("x")
    call = getattr(Reader(), name)
    text = "[QUORUMBOOK_CONFIG]: there is no option x (quorumbook help config)"
    for _ in range(2):  # an outer method as well
        assert reported(call, error) == [text]
    assert error.ledger_id == 7  # and to whoever catches it, it is what it was
    found = shown_in(f"Failed to plan:\n  {text}\n\tat org.apache")
    assert found is not None
    assert (*found, found.code) == ("QUORUMBOOK_CONFIG", "there is no option x", "config")
    assert shown_in("[PYTHON_EXCEPTION] ValueError: x") is None


def test_every_condition_is_explained_by_the_command_that_it_names() -> None:
    known = explanations()
    kinds = [
        kind
        for home in (errors, stream_errors)
        for kind in vars(home).values()
        if inspect.isclass(kind) and issubclass(kind, QuorumbookError)
    ]
    assert len(kinds) > 80
    for kind in (*kinds, type("OwnError", (StreamNotFoundError,), {})):
        found = shown_in(f"[{condition_of(kind)}]: x")
        assert found is not None
        assert found.code in known or kind.__name__ == "OwnError", kind
    assert condition_of(StreamNotFoundError) == "QUORUMBOOK_STREAM_NOT_FOUND"
    assert condition_of(errors.LedgerError) == condition_of(QuorumbookError) == "QUORUMBOOK_FAILED"


@pytest.mark.parametrize("name", ["plan", "read"])
def test_an_error_of_others_keeps_its_trace(name: str) -> None:
    found = reported(getattr(Reader(), name), ZeroDivisionError("by zero"))
    assert found[0] == "Traceback (most recent call last):"
    assert found[-1] == "ZeroDivisionError: by zero"


def test_who_wants_traces_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDES_TRACE, "")
    assert len(reported(Reader().read, QuorumbookError("gone"))) > 3


def test_what_goes_well_is_handed_on() -> None:
    assert Reader().plan(None) == 7
    assert next(Reader().read(KeyError("x"))) == 1


# What somebody sees who uses Spark --------------------------------------------------------


def lines_of(error: pytest.ExceptionInfo[Any]) -> list[str]:
    return str(error.value).splitlines()


def test_an_error_of_the_driver_is_in_its_first_line(load: Any, streams: Streams) -> None:
    assert streams is not None  # there is a namespace
    with pytest.raises(AnalysisException) as refused:
        load("stream:x", nosuch="1")
    text = "there is no option nosuch (quorumbook help config)"
    assert lines_of(refused)[0].endswith(f": [QUORUMBOOK_CONFIG]: {text}")
    with pytest.raises(AnalysisException) as missing:
        load("stream:nosuch").collect()
    first = lines_of(missing)[0]
    assert "]: there is no stream nosuch in /streams; " in first
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR] ")
    assert "[QUORUMBOOK_STREAM_NOT_FOUND]" in first


def test_an_error_of_a_task_is_behind_the_line_that_says_so(
    spark: Any, cluster: LocalCluster, streams: Streams
) -> None:
    name = f"nulls{uuid4().hex[:8]}"
    streams.write(name, [b"x"])
    frame = spark.range(1).selectExpr("cast(NULL AS binary) AS value")
    sink = frame.write.format("quorumbook").mode("append")
    with pytest.raises(PythonException) as failed:
        sink.option("metadataServiceUri", cluster.metadata_uri).save(f"stream:{name}")
    assert lines_of(failed) == ["An exception was thrown from the Python worker:", NULL]


def test_an_error_of_a_streaming_query(
    spark: Any, cluster: LocalCluster, streams: Streams, tmp_path: Path
) -> None:
    name = f"nulls{uuid4().hex[:8]}"
    streams.write(name, [b"x"])
    source = spark.readStream.format("quorumbook").option("startingOffsets", "earliest")
    source = source.option("metadataServiceUri", cluster.metadata_uri)

    def lines(rows: Any, checkpoint: str) -> list[str]:
        sink = rows.writeStream.format("quorumbook").option("path", f"stream:{name}")
        sink = sink.option("metadataServiceUri", cluster.metadata_uri)
        sink = sink.option("checkpointLocation", str(tmp_path / checkpoint))
        with pytest.raises(StreamingQueryException) as failed:
            sink.trigger(availableNow=True).start().awaitTermination()
        return lines_of(failed)

    planner = lines(source.load("stream:nosuch").select("value"), "planner")
    assert "]: there is no stream nosuch in /streams; " in planner[0]
    assert "[QUORUMBOOK_STREAM_NOT_FOUND]" in planner[0]
    rows = source.load(f"stream:{name}").selectExpr("cast(NULL AS binary) AS value")
    assert lines(rows, "task")[0].endswith(NULL)
