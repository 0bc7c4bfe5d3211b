"""What tests of several directories share: a real ZooKeeper, one for each test process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from doubles.zookeeper import Missing, find_zookeeper, start_zookeeper
from quorumbook.zookeeper_server import ZooKeeperServer

# A shell that runs the tests in the background has Ctrl-C ignored, in their children too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def zookeeper_classpath() -> str:
    """Return a class path with a ZooKeeper on it."""
    try:
        return find_zookeeper()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def zookeeper(
    zookeeper_classpath: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperServer]:
    """Return a server that all tests of this process share; put a tree of your own into it."""
    directory = tmp_path_factory.mktemp("zookeeper")
    server = start_zookeeper(str(directory), zookeeper_classpath)
    yield server
    server.kill()
