"""The tutorials that need Java do what they show when they are typed from top to bottom."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from brokers.pulsar_cluster import POM as PULSAR
from brokers.pulsar_cluster import java_command
from docs.pages import DOCS, Reader
from docs.test_docs_pages import free_ports
from doubles.spark import need_spark
from interop.peer_driver import LEAN
from interop.peer_java import Java, Missing, find_jars, free_port


@pytest.fixture
def release(tmp_path):
    """Return what puts the script of a release where a reader has unpacked it."""

    def install(path: str, text: str) -> None:
        script = tmp_path / path
        script.parent.mkdir(parents=True)
        script.write_text(f"#!/bin/sh\nset -e\n{text}")
        script.chmod(0o755)

    return install


def java(*pom: Path) -> Java:
    try:
        return Java(find_jars(*pom))
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def follow(name: str, directory: Path, *shown: int) -> None:
    """Do all of a tutorial; the ports that it shows are replaced."""
    ports = free_ports() | {str(port): str(free_port()) for port in shown}
    with Reader(directory, ports) as reader:
        reader.follow((DOCS / "tutorials" / name).read_text(encoding="utf-8"))


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_a_java_cluster_is_joined_and_a_bookie_adopted_and_given_back(tmp_path, release):
    peer = java()
    bookie, shell = (
        shlex.join(peer.command(*words, options=LEAN, log="warn"))
        for words in (
            ("org.apache.bookkeeper.server.Main", "--conf"),
            ("org.apache.bookkeeper.bookie.BookieShell", "-conf"),
        )
    )
    # A machine for tests has little memory to give, and its disk may be nearly full.
    release(
        "bookkeeper-server-4.18.0/bin/bookkeeper",
        f"""cd "$(dirname "$0")/.."
command=$1
shift
printf '%s\\n' diskUsageThreshold=0.99 diskUsageWarnThreshold=0.98 \\
    entryLogFilePreallocationEnabled=false journalPreAllocSizeMB=4 | cat "$BOOKIE_CONF" - > $$.conf
case $command in
bookie) exec {bookie} $$.conf "$@" ;;
shell) exec {shell} $$.conf "$@" ;;
esac
""",
    )
    jars = tmp_path / "bookkeeper-server-4.18.0/lib"
    jars.mkdir()
    for jar in peer.classpath.split(":"):
        (jars / Path(jar).name).symlink_to(jar)
    follow("java-cluster.md", tmp_path, 2181)


@pytest.mark.interop
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("pulsar")
def test_a_broker_of_pulsar_sends_through_the_death_of_a_bookie(tmp_path, release):
    peer = java(PULSAR)
    setup, broker = (
        shlex.join(java_command(peer, tmp_path, f"org.apache.pulsar.{name}"))
        for name in ("PulsarClusterMetadataSetup", "PulsarBrokerStarter")
    )
    release(
        "apache-pulsar-4.0.7/bin/pulsar",
        f"""cd "$(dirname "$0")/.."
command=$1
shift
case $command in
initialize-cluster-metadata) exec {setup} "$@" ;;
broker) exec {broker} --broker-conf "$PULSAR_BROKER_CONF" "$@" ;;
esac
""",
    )
    follow("pulsar.md", tmp_path, 2181, 6650, 8080)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_a_pipeline_on_spark_goes_on_where_it_stopped_and_is_drawn(tmp_path):
    need_spark()
    follow("spark-pipeline.md", tmp_path)
    assert (tmp_path / "late.svg").read_text().count("<path") > 50
