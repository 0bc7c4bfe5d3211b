"""What processes send to a collector that their environment names, and that nothing stops them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.clusters import local_cluster
from doubles.otlp_collector import Collector
from doubles.waiting import until
from quorumbook.testing import LocalCluster

#: As a program says to its children which trace they belong to.
_TRACE_ID, _SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_PARENT = {"TRACEPARENT": f"00-{_TRACE_ID}-{_SPAN_ID}-01"}
#: What a request waits for a collector; ours is three seconds, which one test waits for.
_BRIEFLY = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.5"}

cluster = local_cluster(["sqlite"], scope="module")


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


def run(words: list[str], text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        input=text,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def quorumbook(*words: str, text: str = "", **environment: str) -> str:
    done = run(["-m", "quorumbook", *words], text, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_command_is_part_of_the_trace_of_who_started_it(
    cluster: LocalCluster, collector: Collector
) -> None:
    there = {"QUORUMBOOK_METADATA": cluster.metadata_uri}
    quorumbook("ledger", "write", text="hello", **there, **_PARENT, **collector.environment())
    found = collector.spans
    assert {service for service, _ in found} == {"quorumbook-ledger"}
    assert [span.name for _, span in found] == ["create_ledger", "append_batch"]
    assert {span.trace_id.hex() for _, span in found} == {_TRACE_ID}
    assert {span.parent_span_id.hex() for _, span in found} == {_SPAN_ID}


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "no address", "OTEL_BSP_MAX_QUEUE_SIZE": "many"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "nobody"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "TRACEPARENT": "\x7f no parent"},
    ],
)
def test_no_collector_and_no_setting_keeps_a_command_from_its_work(
    cluster: LocalCluster, environment: dict[str, str]
) -> None:
    there = {"QUORUMBOOK_METADATA": cluster.metadata_uri, **_BRIEFLY, **environment}
    ledger_id = quorumbook("ledger", "write", text="hello", **there).split()[0]
    assert quorumbook("ledger", "read", ledger_id, **there) == "hello\n"


@pytest.fixture(params=[None, 0.03], ids=["silent", "dripping"])
def slow_collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    collector = Collector(request.param)
    yield collector
    collector.stop()


def test_a_collector_that_does_not_answer_keeps_no_command_from_its_end(
    cluster: LocalCluster, slow_collector: Collector
) -> None:
    there = {"QUORUMBOOK_METADATA": cluster.metadata_uri, **slow_collector.environment()}
    ledger_id = quorumbook("ledger", "write", text="hello", **there).split()[0]
    assert quorumbook("ledger", "read", ledger_id, **there, **_BRIEFLY) == "hello\n"
    assert slow_collector.spans


def test_nobody_waits_for_a_collector_and_what_waits_for_it_is_bounded(
    slow_collector: Collector,
) -> None:
    """So many that the work would take hours if each were waited for; memory stays.

    The process does not end as one does: the test above waits for that.
    """
    code = """
import logging, os, sys
from quorumbook.otel import process
process.start("quorumbook-test")
logging.getLogger().handlers[:] = [
    each for each in logging.getLogger().handlers if not type(each) is logging.StreamHandler
]
def work(count):
    for number in range(count):
        with process.span_of("append", {"number": number}):
            logging.getLogger("quorumbook.test").warning("line %d", number)
    return sys.getallocatedblocks()
before = work(2_500)
print(work(5_000) - before, flush=True)
os._exit(0)
"""
    done = run(["-c", code], "", **slow_collector.environment(), **_BRIEFLY)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100_000, "a span or a line that is kept is dozens of blocks"


async def test_a_bookie_ends_beside_a_collector_that_does_not_answer(
    slow_collector: Collector, tmp_path: Path
) -> None:
    there = {"QUORUMBOOK_METADATA": f"sqlite:///{tmp_path}/metadata.db"}
    quorumbook("cluster", "init", **there)
    words = ["-m", "quorumbook", "bookie", "run", "--port", "0", "--data-dir", str(tmp_path)]
    sending = slow_collector.environment(OTEL_METRIC_EXPORT_INTERVAL="200", **_BRIEFLY)
    with subprocess.Popen(
        [sys.executable, *words, "-o", "jsonl"],
        env={**os.environ, **there, **sending},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        await until(lambda: bool(slow_collector.metrics))
        one = [f"--{each}=1" for each in ("ensemble-size", "write-quorum", "ack-quorum")]
        quorumbook("ledger", "write", *one, text="hello", **there)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_without_the_extra_a_command_says_so_and_goes_on(cluster: LocalCluster) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from quorumbook.cli.main import main; main(['ledger', 'ls'])"
    )
    done = run(
        ["-c", code],
        "",
        QUORUMBOOK_METADATA=cluster.metadata_uri,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    assert done.returncode == 0
    assert done.stderr == (
        "quorumbook: nothing is sent to OpenTelemetry: pip install 'quorumbook[otel]'\n"
    )


async def test_a_bookie_sends_its_numbers_and_its_log(collector: Collector, tmp_path: Path) -> None:
    there = {"QUORUMBOOK_METADATA": f"sqlite:///{tmp_path}/metadata.db"}
    quorumbook("cluster", "init", **there)
    words = ["-m", "quorumbook", "bookie", "run", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, **there, **collector.environment(OTEL_METRIC_EXPORT_INTERVAL="200")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            name = "bookkeeper_server_add_entry_count"
            await until(lambda: name in {metric.name for _, metric in collector.metrics})
        finally:
            process.send_signal(signal.SIGTERM)
            _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    assert {service for service, _ in collector.metrics} == {"quorumbook-bookie"}
    metric = next(each for _, each in collector.metrics if each.name == name)
    assert metric.sum.is_monotonic
    assert any("bookie" in line for line in collector.log_lines), collector.log_lines
    assert "non-finite" not in complaints


def test_a_task_of_spark_has_a_span_above_what_it_reads(
    cluster: LocalCluster, collector: Collector
) -> None:
    there = {"QUORUMBOOK_METADATA": cluster.metadata_uri}
    ledger_id = quorumbook("ledger", "write", text="a\nb\n", **there).split()[0]
    code = f"""
from quorumbook.spark.data_source import Source
source = Source({{"metadataServiceUri": {cluster.metadata_uri!r}, "path": "ledger:{ledger_id}"}})
reader = source.reader(source.schema())
print(sum(rows.num_rows for task in reader.partitions() for rows in reader.read(task)))
"""
    done = run(["-c", code], "", **_PARENT, **collector.environment())
    assert done.stdout == "2\n", done.stderr
    named = {span.name: span for service, span in collector.spans if service == "quorumbook-spark"}
    assert named["read_task"].parent_span_id.hex() == _SPAN_ID
    assert named["read"].parent_span_id == named["open_ledger"].parent_span_id
    assert named["read"].parent_span_id == named["read_task"].span_id
