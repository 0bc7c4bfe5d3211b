"""Executors without the package get it as an archive: a standalone master with two workers."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import spark_archive
from spark_helpers import in_namespace

from doubles.ports import free_ports
from doubles.spark import need_spark
from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
ROWS = [b"row %d" % n for n in range(100)]


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that has the package in the driver's process, and not in executors'."""
    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare").glob("lib/python*/site-packages")
    # A directory by its path: what is installed in it, but nothing that its own .pth files add.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    bare = tmp_path / "bare" / "bin" / "python"
    for name, is_there in ("pyspark", True), ("pyspark_quorumbook", False):
        done = subprocess.run([bare, "-c", f"import {name}"], capture_output=True, check=False)
        assert (done.returncode == 0) is is_there, done.stderr
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$PWD" in */work/app-*) exec {bare} "$@";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """What ``pip install --target`` and ``zip`` make of the package."""
    for name in "quorumbook", "pyspark_quorumbook":
        shutil.copytree(
            ROOT / "src" / name, tmp_path / "packages" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
    return shutil.make_archive(str(tmp_path / "packages"), "zip", tmp_path / "packages")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master with two workers, each of one core."""
    need_spark()
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    (port,) = free_ports(1)
    started = []

    def start(name: str, kind: str, *words: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [
            home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}",
            "--host", "127.0.0.1", "--webui-port", "0", *words,
        ]  # fmt: skip
        with log.open("wb") as file:
            started.append(
                subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=tmp_path)
            )
        return log

    def wait(log: Path, text: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while text not in log.read_text():
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)

    address = f"spark://127.0.0.1:{port}"
    try:
        wait(start("master", "master.Master", "--port", str(port)), "New state: ALIVE")
        limits = "--cores", "1", "--memory", "600m"
        logs = [
            start(f"w{n}", "worker.Worker", *limits, "--work-dir", f"{tmp_path}/w{n}/work", address)
            for n in range(2)
        ]
        for log in logs:
            wait(log, "Successfully registered")
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def test_executors_get_the_package_as_an_archive(
    master: str, python: str, archive: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    async def prepare(namespace: Namespace) -> None:
        for name in "in", "out":
            await namespace.create_stream(name)
        async with namespace.stream("in").writer() as writer:
            for first in range(0, len(ROWS), 10):
                await writer.append_batch(ROWS[first : first + 10])

    async def look(namespace: Namespace) -> list[bytes]:
        async with namespace.stream("out").reader(tail=False) as reader:
            return [record.payload async for record in reader]

    path = f"/{tmp_path.name}"
    in_namespace(cluster, path, prepare, bind=True)
    words = master, archive, f"{cluster.metadata_uri}#{path}", str(tmp_path)
    done = subprocess.run(
        [sys.executable, spark_archive.__file__, *words], cwd=tmp_path, timeout=2 * PATIENCE_S,
        env={**os.environ, "PYSPARK_PYTHON": python}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tasks"] == 2
    directories = {directory for directory, _ in found["places"]}
    assert len(directories) == 2
    for directory, package in found["places"]:
        assert package == f"{directory}/packages/quorumbook/__init__.py"
    assert in_namespace(cluster, path, look) == ROWS
