"""``quorumbook zookeeper run``, and a cluster on it by the command line alone."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys

import pytest

from interop.peer_java import free_port
from quorumbook.errors import ConfigError
from quorumbook.zookeeper_server import ZooKeeperServer, find_classpath, find_java


def start(tmp_path, *words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "quorumbook", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, **environment},
    )  # fmt: skip


def run(tmp_path, *words, **environment):
    process = start(tmp_path, *words, **environment)
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.fixture
def words(zookeeper_classpath, tmp_path):
    return ["zookeeper", "run", "--data-dir", tmp_path / "zk", "--classpath", zookeeper_classpath]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_serves_and_stops_at_a_signal(tmp_path, words, number):
    port = free_port()
    process = start(tmp_path, *words, "--port", port)
    try:
        line = process.stdout.readline()
        assert line == f"metadata  zk://127.0.0.1:{port}/ledgers\n"
        uri = f"zk+longhierarchical://127.0.0.1:{port}/a/ledgers"
        assert run(tmp_path, "cluster", "init", "--metadata", uri)[0] == 0
        code, _, err = run(tmp_path, "cluster", "init", "--metadata", uri)
        assert (code, "already holds a cluster" in err) == (5, True)
        # A command line lives on another event loop than the tests do.
        code, out, _ = run(tmp_path, "bookie", "ls", "--metadata", uri, "-o", "json")
        assert (code, out) == (0, "[]\n")
    finally:
        process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out, err) == (0, "", "")
    assert ZooKeeperServer("", port).mode() == ""


def test_three_of_them_are_one_zookeeper(tmp_path, zookeeper_classpath):
    servers = ",".join(f"127.0.0.1:{free_port()}:{free_port()}" for _ in range(3))
    ports = [free_port() for _ in range(3)]
    processes = [
        start(tmp_path, "zookeeper", "run", "--data-dir", tmp_path / str(number), "--port", port,
              "--servers", servers, "--id", number, "--classpath", zookeeper_classpath)
        for number, port in enumerate(ports, start=1)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout.readline().startswith("metadata")
        assert sorted(ZooKeeperServer("", port).mode() for port in ports) == [
            "follower", "follower", "leader",
        ]  # fmt: skip
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.communicate(timeout=100)


def test_a_server_ends_with_the_command_that_was_killed(tmp_path, words):
    port = free_port()
    process = start(tmp_path, *words, "--port", port)
    assert process.stdout.readline()
    process.kill()
    # Its end of the pipe is the server's too: it closes when both are gone.
    process.communicate(timeout=100)
    server = ZooKeeperServer("", port)
    while server.mode():
        pass


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--servers", "a"], 2, "not of the form ADDRESS:PORT:PORT"),
        (["--servers", "a:1:2"], 2, "which of the 1 --servers"),
        (["--servers", "a:1:2", "--id", "2"], 2, "which of the 1 --servers"),
        (["--id", "1"], 2, "--id says which"),
        (["--host", "192.0.2.1"], 2, "cannot listen on 192.0.2.1"),
        (["--classpath", "/nowhere"], 2, "no ZooKeeper on the class path /nowhere"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, words, options, code, says):
    done, out, err = run(tmp_path, *words, "--port", free_port(), *options)
    assert (done, out, err.count("\n")) == (code, "", 1)
    assert says in err


def test_a_port_in_use_is_one_line(tmp_path, words, zookeeper):
    code, _, err = run(tmp_path, *words, "--port", zookeeper.port)
    assert (code, err.count("\n")) == (2, 1)
    assert f"cannot listen on {zookeeper.address}: Address already in use" in err


def test_without_java_it_says_how_to_get_it(tmp_path, words):
    code, _, err = run(tmp_path, *words, "--port", free_port(), PATH="", JAVA_HOME="")
    assert (code, err.count("\n")) == (2, 1)
    assert "apt-get install openjdk" in err


def test_why_a_server_does_not_start_is_told_in_its_own_words(tmp_path, words):
    (tmp_path / "zk").mkdir()
    (tmp_path / "zk" / "version-2").write_text("a file where a directory belongs")
    code, out, err = run(tmp_path, *words, "--port", free_port())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "ZooKeeper ended" in err
    assert str(tmp_path / "zk") in err


def test_a_server_that_cannot_say_why_it_ends_is_told_to_need_a_logger(tmp_path, words):
    (tmp_path / "zk").mkdir()
    (tmp_path / "zk" / "version-2").write_text("a file where a directory belongs")
    jars = [jar for entry in words[-1].split(":") for jar in glob.glob(f"{entry}*.jar") or [entry]]
    loggers = ("slf4j-simple", "log4j-", "logback-")
    words[-1] = ":".join(jar for jar in jars if not os.path.basename(jar).startswith(loggers))
    code, out, err = run(tmp_path, *words, "--port", free_port())
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "add slf4j-simple.jar to --classpath" in err


def test_jvmflags_count_more_than_the_options_of_ours(tmp_path, words):
    code, _, err = run(tmp_path, *words, "--port", free_port(), JVMFLAGS="-Xmx1m '-Xms900m'")
    assert (code, err.count("\n")) == (1, 1)
    assert "ZooKeeper ended: " in err
    assert "heap" in err
    code, _, err = run(tmp_path, *words, "--port", free_port(), JVMFLAGS="'")
    assert (code, err.count("\n")) == (2, 1)
    assert "JVMFLAGS cannot be understood" in err


# Where the jars come from

JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")


def put_jars(directory, version="3.9.2", names=JARS):
    directory.mkdir(parents=True)
    for name in names:
        (directory / f"{name}-{version}.jar").touch()


def names_in(classpath):
    return [os.path.basename(jar).rpartition("-")[0] for jar in classpath.split(":")]


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Make a machine on which no ZooKeeper is installed."""
    monkeypatch.setattr("quorumbook.zookeeper_server._DEBIAN_JAR", str(tmp_path / "none.jar"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    return monkeypatch


def test_without_a_zookeeper_it_is_said_how_to_get_one(nowhere):
    with pytest.raises(ConfigError, match="apt-get install libzookeeper-java"):
        find_classpath()


def test_pyspark_comes_before_debian_and_debian_before_maven(nowhere, tmp_path):
    repository = tmp_path / ".m2" / "repository" / "org"
    for name in JARS:
        for version in ("3.9.10", "3.9.9"):
            put_jars(repository / name / version, version, [name])
    maven = find_classpath().split(":")
    assert [path.rsplit("/", 1)[1] for path in maven] == [f"{name}-3.9.10.jar" for name in JARS]
    (tmp_path / "none.jar").touch()
    assert find_classpath() == str(tmp_path / "none.jar")
    put_jars(tmp_path / "pyspark" / "jars")
    origin = str(tmp_path / "pyspark" / "__init__.py")
    nowhere.setattr("importlib.util.find_spec", lambda _name: type("S", (), {"origin": origin}))
    assert all(path.startswith(str(tmp_path / "pyspark")) for path in find_classpath().split(":"))


def test_a_logger_and_netty_are_taken_where_they_are(nowhere, tmp_path):
    jars = tmp_path / "pyspark" / "jars"
    put_jars(jars, names=(*JARS, "netty-handler", "log4j-slf4j2-impl", "log4j-core"))
    origin = str(tmp_path / "pyspark" / "__init__.py")
    nowhere.setattr("importlib.util.find_spec", lambda _name: type("S", (), {"origin": origin}))
    assert [*JARS, "netty-handler"] == names_in(find_classpath())
    (jars / "log4j-api-2.0.jar").touch()
    log4j = ["log4j-slf4j2-impl", "log4j-core", "log4j-api"]
    assert [*JARS, "netty-handler", *log4j] == names_in(find_classpath())
    (jars / "slf4j-simple-2.0.jar").touch()
    assert [*JARS, "netty-handler", "slf4j-simple"] == names_in(find_classpath())


def test_debians_jar_comes_with_the_logger_beside_it(nowhere, tmp_path):
    (tmp_path / "none.jar").touch()
    (tmp_path / "slf4j-simple.jar").touch()
    assert find_classpath() == f"{tmp_path}/none.jar:{tmp_path}/slf4j-simple.jar"


def test_jars_that_are_not_complete_are_not_taken(nowhere, tmp_path):
    put_jars(tmp_path / ".m2" / "repository" / "org", names=JARS[:-1])
    with pytest.raises(ConfigError, match="no ZooKeeper on this machine"):
        find_classpath()


def test_a_class_path_may_be_a_directory(tmp_path):
    put_jars(tmp_path / "jars")
    assert find_classpath(str(tmp_path / "jars")) == f"{tmp_path}/jars/*"
    with pytest.raises(ConfigError, match="no ZooKeeper on the class path"):
        find_classpath(str(tmp_path))


def test_java_home_comes_first(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)
