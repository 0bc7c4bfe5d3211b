"""A pipeline's file, its restarts, its numbers, its picture; without Spark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

from quorumbook.errors import ConfigError
from quorumbook.spark.pipeline.declaration import Pipeline, PipelineStep, Whole, parse_pipeline
from quorumbook.spark.pipeline.metrics import TEXTS, PipelineMetrics
from quorumbook.spark.pipeline.numbers import StepNumbers, StreamSegments
from quorumbook.spark.pipeline.picture import picture
from quorumbook.spark.pipeline.supervision import Restarts, reason_of
from quorumbook.spark.pipeline.telling import told

HEAD = 'name = "orders"\ncheckpoints = "checkpoints"\n'
CLEAN = """
[[step]]
name = "clean"
from = ["eu/orders"]
decode = true
dead-letters = "eu/bad"
sql = "SELECT customer FROM records"
to = "eu/clean"
every = "2s"
batch-time = "10s"
max-bytes = "64M"
"""
FILES = """
[[step]]
name = "files"
from = ["eu/clean"]
udf = "files.py"
to = "parquet:/lake/<orders>"
"""


def parsed(*steps: str, head: str = HEAD) -> Pipeline:
    return parse_pipeline(head + "".join(steps), "/home/orders")


def test_the_documented_file_is_one_and_every_key_and_number_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    section = page.partition("\n## Pipelines from a file\n")[2].partition("\n## ")[0]
    (shown,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    assert [step.name for step in parse_pipeline(shown, "/").steps] == ["clean", "lake"]
    told = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, re.MULTILINE))
    keys = {each.flag.removeprefix("--") for each in (*Whole.declared(), *PipelineStep.declared())}
    assert told.keys() == keys | TEXTS.keys()
    assert TEXTS.items() <= told.items()


def test_a_step_comes_behind_those_that_write_what_it_reads() -> None:
    found = parsed(FILES, CLEAN)
    assert [step.name for step in found.steps] == ["clean", "files"]
    clean, files = found.steps
    assert (clean.every_s, clean.batch_time_s, clean.max_bytes) == (2.0, 10.0, 64 << 20)
    assert (clean.stream, clean.directory, clean.written) == (
        "eu/clean", "", ("eu/clean", "eu/bad"),
    )  # fmt: skip
    assert (files.stream, files.directory, files.written) == ("", "/lake/<orders>", ())
    assert files.udf == "/home/orders/files.py"
    assert found.checkpoint(clean) == "/home/orders/checkpoints/clean"
    assert found.cursor(clean) == "orders.clean"
    other = parsed(CLEAN, head=HEAD.replace('"checkpoints"', '"s3a://bucket/c"'))
    assert other.checkpoint(other.steps[0]) == "s3a://bucket/c/clean"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "no TOML"),
        (HEAD, r"it has no \[\[step\]\]"),
        ("checkpoints = 'c'" + CLEAN, "the key name is missing"),
        (HEAD + "restart = 3" + CLEAN, "no key restart; did you mean restarts"),
        (HEAD + CLEAN + CLEAN, "two steps are called clean"),
        (HEAD + CLEAN.replace("every", "evry"), "step clean: there is no key evry; did you mean"),
        (HEAD + CLEAN.replace('"2s"', '"soon"'), "step clean: every: 'soon' .the file. is not"),
        (HEAD + CLEAN.replace('to = "eu/clean"', ""), "step clean: the key to is missing"),
        (HEAD + CLEAN.replace('"eu/clean"', '"parquet:"'), "to: a stream, or parquet:DIRECTORY"),
        (HEAD + CLEAN.replace('"clean"', '"a/b"'), "name: 'a/b' is not letters"),
        (HEAD + CLEAN.replace('["eu/orders"]', "[]"), "from: it reads no stream"),
        (HEAD + CLEAN.replace('["eu/orders"]', '["a", "b"]'), "decode: a schema is of one stream"),
        (HEAD + CLEAN.replace("decode = true", ""), "dead-letters: only what is decoded"),
        (HEAD + CLEAN.replace('"eu/clean"', '"parquet:/x"'), "one step writes both"),
        (HEAD + CLEAN.replace('"eu/bad"', '"eu/orders"'), "eu/orders is read or written by it"),
        (HEAD + CLEAN.replace('"10s"', '"1s"'), "batch-time: it has to be as long as every"),
        (HEAD + FILES + "retain-time = '1d'", "retain-time: files stay"),
        (
            HEAD + CLEAN + FILES.replace('"parquet:/lake/<orders>"', '"eu/orders"'),
            "steps read what comes of them: clean -> files -> clean|files -> clean -> files",
        ),
    ],
)
def test_what_is_no_pipeline_is_refused_with_the_step_and_the_key(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_pipeline(text, "/home/orders")


def test_a_step_that_fails_waits_longer_each_time_and_is_given_up() -> None:
    restarts = Restarts(9)
    waits = [restarts.failed(0) for _ in range(10)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, None]
    assert restarts.count == 9
    # A batch that was done in between makes it count anew.
    assert [restarts.failed(1), restarts.failed(1), restarts.failed(2)] == [0.0, 1.0, 0.0]
    assert Restarts(0).failed(5) is None


def test_the_useful_line_of_an_error_is_told() -> None:
    assert reason_of("[STREAM_FAILED] no such\n\tat org.apache") == "[STREAM_FAILED] no such"
    trace = (
        "[STREAM_FAILED] Job aborted: PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n    raise ValueError("not yet")\n'
        "ValueError: not yet\n\n\tat org.apache.spark\n\nDriver stacktrace:\n"
    )
    assert reason_of(trace) == "ValueError: not yet"
    own = "[QUORUMBOOK_DATA_LOSS] ledger 7 is gone (quorumbook help data-loss)"
    ours = trace.replace("ValueError: not yet", own.replace("]", "]:"))
    assert reason_of(ours) == own
    assert reason_of("") == ""
    assert len(reason_of("x" * 1000)) == 500


def progress(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "runId": "r", "batchId": batch, "numInputRows": rows, "inputRowsPerSecond": 4.0,
        "processedRowsPerSecond": 8.0, "batchDuration": 250,
        "sources": [{"latestOffset": '{"lag": {"entries": 3, "bytes": 30, "ms": 1500, "streams": 1,'
                                     ' "by_stream": {"a/p0": 3}}}'}],
        **more,
    }  # fmt: skip


def observed(rows: int, letters: int) -> dict[str, Any]:
    return {"observedMetrics": {"quorumbook": {"rows": rows, "dead_letters": letters}}}


def test_each_batch_counts_once_however_often_spark_tells_of_it() -> None:
    found = StepNumbers()
    first, second = progress(0, 5, **observed(5, 2)), progress(1, 4, **observed(4, 0))
    for each in (first, second, progress(2, 0), first, second, progress(2, 0)):
        found.take(each)
    assert (found.commits, found.records_read) == (2, 9)
    assert (found.rows_written, found.dead_letters) == (7, 2)
    assert (found.input_rate, found.rate, found.batch_s) == (4.0, 8.0, 0.25)
    assert (found.lag_entries, found.lag_bytes, found.lag_s) == (3, 30, 1.5)
    assert found.lag_by_stream == {"a/p0": 3}
    # The batch that another run does again was not done.
    found.take({**progress(2, 6, **observed(6, 1)), "runId": "other"})
    assert (found.commits, found.records_read, found.dead_letters) == (3, 15, 3)
    found.take({**progress(3, 0), "inputRowsPerSecond": float("nan"), "sources": [{}]})
    assert found.input_rate == 0.0
    # A query that reads each record twice, for two streams.
    found = StepNumbers(scans=2)
    found.take(first)
    assert (found.records_read, found.rows_written, found.input_rate, found.rate) == (2, 3, 2, 4)


@pytest.mark.parametrize(
    ("after", "merged", "retired"),
    [
        ((10, (0, 5, 9, 12)), 0, 0),
        ((12, (0, 12)), 2, 0),  # the first three are one
        ((11, (0, 5, 12)), 1, 0),  # those in the middle are one; the first moved up
        ((12, (9, 12)), 0, 2),
        ((13, (12,)), 0, 3),
        ((14, (0, 12)), 4, 0),  # two came and were merged between two looks
        ((0, ()), 0, 4),
    ],
)
def test_segments_that_were_merged_or_went_by_retention_are_told_apart(
    after: tuple[int, tuple[int, ...]], merged: int, retired: int
) -> None:
    found = StepNumbers()
    found.take_segments({"a": StreamSegments(10, (0, 5, 9, 12)), "b": StreamSegments(0, ())})
    assert (found.segments, found.segments_merged, found.segments_retired) == (4, 0, 0)
    for _ in range(2):  # what was counted is not counted again
        found.take_segments({"a": StreamSegments(*after), "b": StreamSegments(0, (0,))})
        assert found.segments == len(after[1]) + 1
        assert (found.segments_merged, found.segments_retired) == (merged, retired)


def test_the_picture_has_every_stream_and_step_and_what_goes_between() -> None:
    pipeline = parsed(CLEAN, FILES)
    numbers = {step.name: StepNumbers() for step in pipeline.steps}
    clean = numbers["clean"]
    clean.state, clean.restarts = "running", 2
    clean.take(progress(0, 5, **observed(1005, 2)))
    drawn = picture(told(pipeline, numbers, began_at_ms=0))
    texts = [each.text for each in ET.fromstring(drawn).iter() if each.tag.endswith("text")]
    assert texts[0] == "orders"
    for text in ("eu/orders", "clean", "eu/bad", "eu/clean", "files", "<orders>", "Parquet"):
        assert texts.count(text) == 1, text
    assert "running, 2 restarts" in texts
    assert "1 commits, 3 behind (2 s)" in texts
    assert texts.count("4/s") == 1  # what comes in;
    assert "1,003" in texts  # what was written,
    assert "2" in texts  # and the dead letters
    # What comes later stands further to the right.
    at = {
        each.text: int(each.get("x", "0"))
        for each in ET.fromstring(drawn).iter()
        if each.tag.endswith("text")
    }
    order = [at[name] for name in ("eu/orders", "clean", "eu/clean", "files", "<orders>")]
    assert order == sorted(set(order))
    assert at["eu/bad"] == at["eu/clean"]


def test_prometheus_gets_every_number_of_every_step() -> None:
    found = StepNumbers(state="running", restarts=4)
    found.take(progress(0, 5, **observed(5, 2)))
    found.take_segments({"a": StreamSegments(1, tuple(range(7)))})
    numbers = {"clean": found, "files": StepNumbers()}
    families = list(PipelineMetrics("orders", lambda: numbers).collect())
    assert {family.documentation for family in families} == set(TEXTS.values())
    values = {
        (
            sample.name.removeprefix("quorumbook_pipeline_"),
            sample.labels.get("stream"),
        ): sample.value
        for family in families
        for sample in family.samples
        if sample.labels["step"] == "clean"
    }
    assert all(sample.labels["pipeline"] == "orders" for f in families for sample in f.samples)
    assert values == {
        ("running", None): 1, ("commits_total", None): 1, ("records_read_total", None): 5,
        ("rows_written_total", None): 3, ("dead_letters_total", None): 2,
        ("restarts_total", None): 4, ("input_records_per_second", None): 4.0,
        ("records_per_second", None): 8.0, ("batch_seconds", None): 0.25,
        ("lag_entries", None): 3, ("lag_bytes", None): 30, ("lag_seconds", None): 1.5,
        ("stream_lag_entries", "a/p0"): 3, ("segments", None): 7,
        ("segments_merged_total", None): 0,
        ("segments_retired_total", None): 0,
    }  # fmt: skip
