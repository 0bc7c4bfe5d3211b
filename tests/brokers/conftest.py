"""One cluster of Apache Pulsar on our bookies for each test process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from brokers.pulsar_cluster import POM, PulsarCluster, running
from brokers.pulsar_report import Report
from doubles.zookeeper import find_zookeeper, start_zookeeper
from interop.peer_java import Java, Missing, find_jars

IS_FULL = os.environ.get("PULSAR") == "full"
#: Entry logs are small, so that some are given back within a test.
_BOOKIE = (
    "storage.entry_log_size_bytes=1M",
    "storage.flush_interval_s=1",
    "gc.confirm_interval_s=1",
)
#: What docs/pulsar.md advises where topics are read as tables.
_BROKER = {
    "bookkeeperExplicitLacIntervalInMills": 500,
    "brokerEntryMetadataInterceptors": ",".join(
        f"org.apache.pulsar.common.intercept.Append{what}MetadataInterceptor"
        for what in ("BrokerTimestamp", "Index")
    ),
}
_report = Report() if IS_FULL else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _report is not None and (report.when == "call" or report.outcome == "failed"):
        _report.add(report.nodeid, report.outcome, report.duration)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _report is not None and session.testscollected:
        _report.write()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what ``make interop-pulsar`` runs to it."""
    left = [item for item in items if "test_pulsar_scenarios" in item.nodeid and not IS_FULL]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def pulsar_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    """Three bookies of ours and one broker, in a cluster that Pulsar's own setup has made."""
    try:
        java, classpath = Java(find_jars(POM)), find_zookeeper()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    directory = tmp_path_factory.mktemp("pulsar")
    zookeeper = start_zookeeper(str(directory / "zookeeper"), classpath)
    with running(PulsarCluster(java, zookeeper, directory)) as cluster:
        cluster.set_up()
        for _ in range(3):
            cluster.add_bookie(*_BOOKIE)
        cluster.add_broker(**_BROKER)
        yield cluster
