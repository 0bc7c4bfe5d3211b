"""What tests of several directories share: a real ZooKeeper, one for each test process.

And the end of those that hang: a time limit raises in the test, where a tear-down may hang again
or what runs the test may catch it (Hypothesis does).  Then the process ends, which names the test.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from doubles.spark import LEAN_JAVA, SPARK_CONFIGURATION
from doubles.zookeeper import Missing, find_zookeeper, start_zookeeper
from quorumbook.zookeeper_server import ZooKeeperServer

# A shell that runs the tests in the background has Ctrl-C ignored, in their children too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How full the machine's disk is says nothing about what is tested: commands and their children
# would turn read-only at 95 %.
for _name in ("MAX_DISK_USAGE", "DISK_USAGE_WRITABLE"):
    os.environ[f"QUORUMBOOK_BOOKIE_{_name}"] = "1"

os.environ.setdefault("SPARK_SUBMIT_OPTS", LEAN_JAVA)
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", LEAN_JAVA)
os.environ.setdefault("SPARK_CONF_DIR", SPARK_CONFIGURATION)

_GIVEN_DIRECTORY = os.environ.get("TMPDIR")
# Those of ``tmp_path`` stay on the disk, whoever asks for the first.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())

# Tests start thousands of processes: each would compile the package anew, half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says how busy the machine is; a test's own time limit ends what hangs.
settings.register_profile("patient", parent=settings.default, deadline=None)
settings.load_profile("patient")

#: What a test may take beyond its time limit before its process is ended.
GRACE_S = 180

#: Rooms to whose tests it matters that a disk is one.  To others a cluster is what they ask
#: something of: where a sync costs nothing it is there in a third of the time.
_ON_DISK = frozenset(("brokers", "faults", "interop", "security", "unit/env"))
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 6 << 30


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _end_if_it_hangs(item)
    _choose_temporary_directory(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # A failure, which pytest may show a debugger for, takes the limit away.
    _end_if_it_hangs(item)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell a failure at once: a run that is broken off never comes to its summary."""
    terminal = _CONFIG[0].pluginmanager.get_plugin("terminalreporter") if _CONFIG else None
    if report.failed and terminal is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        name = _without_group(report.nodeid)
        terminal.write_line(f"\nFAILED {name} ({report.when}): {crash or report.longrepr}")


def _without_group(nodeid: str) -> str:
    """Return the name by which a test can be run, without the group that xdist puts behind it."""
    is_grouped = nodeid.rfind("@") > nodeid.rfind("]")
    return nodeid.rpartition("@")[0] if is_grouped else nodeid


@pytest.hookimpl(tryfirst=True)  # before xdist names groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have one worker run the tests of a file for which something is made once, such as a cluster.

    Else each worker makes it.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _is_shared(item.path):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@cache
def _is_shared(path: Path) -> bool:
    return 'scope="module"' in path.read_text(encoding="utf-8")


_CONFIG: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    _CONFIG[:] = [config]
    if not getattr(config.option, "numprocesses", None):  # what hands tests out collects none
        gc.disable()


def pytest_collection_finish() -> None:
    """Have no collection of garbage look through ten thousand tests and all modules again."""
    gc.freeze()
    gc.enable()


def _choose_temporary_directory(item: pytest.Item) -> None:
    room, *below = item.path.relative_to(Path(__file__).parent).parts
    is_on_disk = room in _ON_DISK or f"{room}/{below[0]}" in _ON_DISK
    tempfile.tempdir = _GIVEN_DIRECTORY if is_on_disk else temporary_directory()
    if tempfile.tempdir is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = tempfile.tempdir


@cache
def temporary_directory() -> str | None:
    """Return where files that need no disk go: into memory, if there is plenty of it."""
    if _GIVEN_DIRECTORY is not None or not _MEMORY.is_dir():
        return _GIVEN_DIRECTORY
    there = os.statvfs(_MEMORY)
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    sizes = [there.f_bavail * there.f_frsize, int(available[1]) << 10 if available else 0]
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        sizes.append(int(text))
    is_plenty = min(sizes) >= _MEMORY_BYTES
    return str(_MEMORY) if is_plenty and not there.f_flag & os.ST_NOEXEC else None


def _end_if_it_hangs(item: pytest.Item) -> None:
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit_s + GRACE_S, file=stderr, exit=True)


@pytest.fixture(scope="session", autouse=True)
def _browsers_that_are_left() -> Iterator[None]:
    yield
    if "doubles.browsers" in sys.modules:
        sys.modules["doubles.browsers"].quit_browsers()


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
def zookeeper(zookeeper_classpath: str) -> Iterator[ZooKeeperServer]:
    """Return a server that all tests of this process share; put a tree of your own into it."""
    with tempfile.TemporaryDirectory(dir=temporary_directory()) as directory:
        server = start_zookeeper(directory, zookeeper_classpath)
        yield server
        server.kill()
