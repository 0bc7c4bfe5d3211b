"""Shipped deployments as they stand: started as processes, and strangers are turned away.

There need not be a container engine: ``doubles/deployment.py`` runs what each file describes.  A
program with a certificate of the right role writes and reads, and is the only one that does.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from doubles.deployment import Container, Stage, stage, zookeeper_command
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.uri import open_store
from security.deployment_harness import (
    DEPLOY,
    READY,
    is_administered_with_the_token_alone,
    is_changed_with_the_token_alone,
    is_refused,
    is_used_by,
    of_kind,
    options_in,
    printed,
    registered,
    said_nothing_alarming,
    start_zookeeper,
    turns_strangers_away,
)

COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


# Compose -----------------------------------------------------------------------------------


class Composed:
    """The services of compose.yaml, as containers of a stage."""

    def __init__(self, made: Stage, classpath: str) -> None:
        self.stage = made
        self.classpath = classpath
        named = ("zookeeper", "bookie-1", "bookie-2", "bookie-3")
        self.hosts = {name: made.host(name) for name in named}

    def container(self, name: str, command: list[str] | None = None) -> Container:
        service = COMPOSE[name]
        mounts = {}
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            is_file = source.startswith(".")
            path = DEPLOY / "compose" / source if is_file else self.stage.directory / source
            if not is_file:
                path.mkdir(exist_ok=True)
            mounts[target] = path
        host = self.hosts.get(name) or self.stage.host(f"{name}.host")
        variables = {k: str(v) for k, v in service.get("environment", {}).items()}
        if service["image"] == "quorumbook":
            words = service.get("entrypoint", ["quorumbook"]) + (command or service["command"])
        else:
            made = Container(host, [], variables, mounts)
            variables = {k: self.stage.text(v, made) for k, v in variables.items()}
            place = self.stage.directory / name
            words = zookeeper_command(place, self.classpath, variables, host)
        # Who runs here stands for the user of the image.
        words = [w.replace("10001:10001", f"{os.getuid()}:{os.getgid()}") for w in words]
        words = [w.replace("10001", str(os.getgid())).replace("$$", "$") for w in words]
        return Container(host, words, variables, mounts)

    def up(self) -> None:
        """Start the services in the order that their dependencies ask for."""
        begun: set[str] = set()
        others = ("prometheus", "grafana")
        waiting = [n for n, s in COMPOSE.items() if "profiles" not in s and n not in others]
        while waiting:
            ready = [n for n in waiting if set(COMPOSE[n].get("depends_on", {})) <= begun]
            assert ready, f"services wait for each other: {waiting}"
            containers = {name: self.container(name) for name in ready}
            for name, container in containers.items():
                is_awaited = any(
                    other.get("depends_on", {}).get(name, {}).get("condition")
                    == "service_completed_successfully"
                    for other in COMPOSE.values()
                )
                (self.stage.run if is_awaited else self.stage.start)(container)
            for name, container in containers.items():
                if check := COMPOSE[name].get("healthcheck"):
                    assert check["test"][0] == "CMD"
                    self.stage.wait_healthy(container, check["test"][1:])
            begun.update(ready)
            waiting = [n for n in waiting if n not in begun]


async def test_compose_as_it_ships_serves_its_own_and_turns_strangers_away(
    running: Stage, zookeeper_classpath: str, tmp_path: Path
) -> None:
    composed = Composed(running, zookeeper_classpath)
    await asyncio.to_thread(composed.up)
    (asked,) = (shlex.split(c) for c in printed("deploy-with-compose") if " run " in c)
    service, *words = asked[asked.index("--rm") + 1 :]
    tools = composed.container(service, words)
    await asyncio.to_thread(running.run, tools)
    assert running.logs[-1].read_text().count(" writable") == 3
    uri = running.text(tools.variables["QUORUMBOOK_METADATA"], tools)
    tls = options_in(tmp_path / "client-tls", "ca.pem", "tls.pem", "tls.key")
    await is_used_by(uri, tls, 3)
    hosts = [composed.hosts[f"bookie-{i}"] for i in (1, 2, 3)]
    await turns_strangers_away(uri, tls, hosts, tmp_path)
    # Of the same CA, but of a role that nobody is to have at a bookie.
    zookeeper = options_in(tmp_path / "zookeeper-tls", "ca.pem", "tls.pem", "tls.key")
    await is_refused(uri, zookeeper, "of another role")
    for stranger in (uri.partition("?")[0], uri.partition("&")[0]):
        with pytest.raises(MetadataUnavailableError):
            await open_store(stranger, session_timeout_s=2)
    operator = composed.container("tools", ["bookie", "scrub", "--now", f"http://{hosts[0]}:8080"])
    recovery = f"{running.hosts['recovery.host']}:8080"
    await asyncio.to_thread(is_changed_with_the_token_alone, running, operator, hosts, recovery)
    await asyncio.to_thread(
        is_administered_with_the_token_alone,
        f"https://{running.hosts['admin.host']}:8085",
        tmp_path / "admin-tls/ca.pem",
        (tmp_path / "tokens/first").read_text().strip(),
        3,
    )
    # At the next start, what is good for long is left as it is.
    kept = [
        tmp_path / "client-tls/tls.pem",
        tmp_path / "http-token/token",
        tmp_path / "tokens/first",
    ]
    before = [path.read_bytes() for path in kept]
    await asyncio.to_thread(running.run, composed.container("certificates"))
    assert [path.read_bytes() for path in kept] == before
    said_nothing_alarming(running)


def test_commands_are_in_the_path_of_the_image() -> None:
    lines = (DEPLOY / "compose/Dockerfile").read_text().splitlines()
    (path,) = (word for line in lines for word in line.split() if word.startswith("PATH="))
    assert path == "PATH=/opt/quorumbook/bin:$PATH"
    assert "COPY --from=build /opt/quorumbook /opt/quorumbook" in lines


def test_the_image_builds_from_the_files_that_it_gets(tmp_path: Path) -> None:
    root = DEPLOY.parent
    let_in = {line[1:] for line in (root / ".dockerignore").read_text().split() if line[0] == "!"}
    lines = (DEPLOY / "compose/Dockerfile").read_text().splitlines()
    for line in lines:
        command, _, rest = line.partition(" ")
        if command != "COPY" or rest.startswith("--"):
            continue
        *names, target = rest.split()
        assert let_in >= set(names), f".dockerignore keeps {names} out"
        to = tmp_path / target.removeprefix("/source").strip("/")
        for name in names:
            if (root / name).is_dir():
                shutil.copytree(root / name, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, to)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr or done.stdout
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "quorumbook/deploy/compose/compose.yaml" in zipfile.ZipFile(wheel).namelist()


def test_every_volume_service_and_port_that_compose_names_is_there() -> None:
    whole = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    used = {v.split(":")[0] for s in COMPOSE.values() for v in s.get("volumes", [])}
    assert {v for v in used if not v.startswith(".")} == set(whole["volumes"])
    for path in (v for v in used if v.startswith(".")):
        assert (DEPLOY / "compose" / path).is_file()
    for service in COMPOSE.values():
        assert set(service.get("depends_on", {})) <= set(COMPOSE)
    # The key of the CA is in the hands of one service alone, and no port leaves the host.
    assert [n for n, s in COMPOSE.items() if "authority" in str(s.get("volumes"))] == [
        "certificates"
    ]
    ports = [p for s in COMPOSE.values() for p in s.get("ports", [])]
    assert [p.rpartition(":")[0] for p in ports] == [
        "127.0.0.1:8085", "127.0.0.1:9090", "127.0.0.1:3000"
    ]  # fmt: skip
    # Nobody of ours has rights, or writes to the image; who makes the certificates gives them away.
    for name, service in COMPOSE.items():
        if service["image"] == "quorumbook":
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            assert ("user" in service, "cap_add" in service) == 2 * (name == "certificates",)
    # Each bookie is called by a name that its certificate has.
    named = COMPOSE["certificates"]["command"][0].splitlines()[1].split()[4:]
    bookies = [s["environment"] for n, s in COMPOSE.items() if n.startswith("bookie-")]
    assert named == [b["QUORUMBOOK_BOOKIE_ADVERTISED_HOST"] for b in bookies]


# systemd -----------------------------------------------------------------------------------


async def test_the_units_as_they_ship_serve_their_own_and_turn_strangers_away(
    running: Stage, zookeeper_classpath: str, tmp_path: Path
) -> None:
    host, keeper = running.host("bookie1.example.net"), running.host("zk1", "zk2", "zk3")
    made = ["sh", str(DEPLOY / "certificates.sh"), str(tmp_path / "authority")]
    group = str(os.getgid())
    for directory, role, name in (
        ("tls", "cluster", host), ("client", "client", "client"), ("zk", "zookeeper", keeper),
    ):  # fmt: skip
        subprocess.run([*made, str(tmp_path / directory), role, group, name], check=True)
        # As Python 3.13 does by default, and so programs that ask the HTTP API there.
        verified = ["openssl", "verify", "-x509_strict", "-CAfile", tmp_path / directory / "ca.pem"]
        subprocess.run([*verified, tmp_path / directory / "tls.pem"], check=True)
    start_zookeeper(running, tmp_path, zookeeper_classpath, keeper, tmp_path / "zk")
    (tmp_path / "http.token").write_text("0123456789abcdef0123\n")
    (tmp_path / "http.token").chmod(0o640)
    mounts = {
        "/etc/quorumbook/tls": tmp_path / "tls",
        "/etc/quorumbook": tmp_path,
        "/var/lib/quorumbook": tmp_path / "data",
    }
    (tmp_path / "data").mkdir()
    started = []
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.read_string(unit.read_text())
        words = shlex.split(parser["Service"]["ExecStart"])
        assert words[0] == "/opt/quorumbook/bin/quorumbook"
        # Each of the test's hosts has its own loopback.
        own = {"QUORUMBOOK_HTTP_HOST": host}
        started.append(Container(host, ["quorumbook", *words[1:]], own, mounts))
    config = running.text((DEPLOY / "systemd/quorumbook.toml").read_text(), started[0])
    (tmp_path / "quorumbook.toml").write_text(config)
    uri = tomllib.loads(config)["metadata"]["uri"]
    init = Container(host, ["quorumbook", "cluster", "init", "--metadata", uri], {}, {})
    await asyncio.to_thread(running.run, init)
    for container in started:
        running.start(container)
    await asyncio.to_thread(running.wait_healthy, started[0], ["python", "-c", READY])
    await registered(uri, 1)
    tls = options_in(tmp_path / "client", "ca.pem", "tls.pem", "tls.key")
    await is_used_by(uri, tls, 1)
    await turns_strangers_away(uri, tls, [host], tmp_path)
    other = options_in(tmp_path / "zk", "ca.pem", "tls.pem", "tls.key")
    await is_refused(uri, other, "of another role")
    words = ["bookie", "scrub", "--now", f"http://{host}:8080"]
    config_file = ["--config", "/etc/quorumbook/quorumbook.toml"]
    operator = Container(host, ["quorumbook", *words, *config_file], {}, mounts)
    served = READY.replace(":8080", ":8081")
    await asyncio.to_thread(running.wait_healthy, started[1], ["python", "-c", served])
    await asyncio.to_thread(
        is_changed_with_the_token_alone, running, operator, [host], f"{host}:8081"
    )
    said_nothing_alarming(running)


async def test_a_host_is_set_up_and_asked_by_the_commands_that_are_printed(
    running: Stage, zookeeper_classpath: str, tmp_path: Path
) -> None:
    """In root's environment: nothing is set, and PATH has no directory of ours."""
    host, keeper = running.host("bookie1.example.net"), running.host("zk1", "zk2", "zk3")
    places = {
        "/opt/quorumbook": "opt", "/usr/local/bin": "local", "/etc/quorumbook": "etc",
        "/etc/systemd/system": "units", "/var/lib/quorumbook": "data", "/root/ca": "ca",
    }  # fmt: skip
    mounts = {path: tmp_path / name for path, name in places.items()}
    for path in (*mounts.values(), tmp_path / "opt/bin", tmp_path / "stubs"):
        path.mkdir(exist_ok=True)
    # What changes the machine, or takes a registry of packages.
    for name in ("stubs/python3", "stubs/useradd", "stubs/systemctl", "opt/bin/pip"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "opt/bin/quorumbook").symlink_to(Path(sys.executable).parent / "quorumbook")
    (tmp_path / "deploy").symlink_to(DEPLOY)
    root = Container(host, [], {}, mounts)
    environment = {"PATH": f"{tmp_path}/stubs:{tmp_path}/local:/usr/sbin:/usr/bin:/sbin:/bin"}
    done = []
    for command in printed("deploy-with-systemd"):
        if command.startswith("quorumbook cluster init"):
            start_zookeeper(running, tmp_path, zookeeper_classpath, keeper, tmp_path / "zk1-tls")
            config = tmp_path / "etc/quorumbook.toml"
            config.write_text(running.text(config.read_text(), root))
        # The groups of the machine stay as they are.
        words = re.sub(r"(chgrp|--group) quorumbook|(?<= )root(?= )", rf"\1 {os.getgid()}", command)
        ran = await asyncio.to_thread(
            subprocess.run, ["sh", "-ec", running.text(words, root)], cwd=tmp_path,
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (command, ran.stderr)
        done.append(command.split()[:3])
        if command.startswith("systemctl enable"):
            for name in command.split()[3:]:
                parser = configparser.ConfigParser(strict=False, interpolation=None)
                parser.read_string((tmp_path / f"units/{name}.service").read_text())
                start = shlex.split(parser["Service"]["ExecStart"])
                own = {"QUORUMBOOK_HTTP_HOST": host}
                running.start(Container(host, start, own, mounts))
            uri = tomllib.loads((tmp_path / "etc/quorumbook.toml").read_text())["metadata"]["uri"]
            await registered(uri, 1)
    for asked in (["quorumbook", "cluster", "init"], ["quorumbook", "bookie", "can-stop"]):
        assert asked in done
    said_nothing_alarming(running)


def test_every_bookie_that_ships_demands_tls_and_a_certificate_of_a_role() -> None:
    """Each would be enough against a stranger; none of them may be lost behind the others."""
    units = tomllib.loads((DEPLOY / "systemd/quorumbook.toml").read_text())
    pods = tomllib.loads(of_kind("ConfigMap")[0]["data"]["quorumbook.toml"])
    for config in (units, pods):
        assert {k: v for k, v in config["tls"].items() if v is True} == {
            "enabled": True, "require": True, "client_authentication": True
        }  # fmt: skip
        assert config["bookie"]["auth_plugin"] == "certificate-role"
        assert config["bookie"]["authorized_roles"] == ["cluster", "client"]
    for name in ("bookie-1", "bookie-2", "bookie-3"):
        variables = COMPOSE[name]["environment"]
        for option in ("ENABLED", "REQUIRE", "CLIENT_AUTHENTICATION"):
            assert variables[f"QUORUMBOOK_TLS_{option}"] == "true"
        assert "--set=bookie.auth_plugin=certificate-role" in COMPOSE[name]["command"]
        assert "--set=bookie.authorized_roles=cluster,client" in COMPOSE[name]["command"]


def test_whatever_ships_may_open_files_enough() -> None:
    """For 20,000 connections and the storage; in a pod the soft limit becomes the hard one."""
    for name in ("bookie", "recovery"):
        unit = (DEPLOY / f"systemd/quorumbook-{name}.service").read_text()
        assert int(re.findall(r"^LimitNOFILE=(\d+)$", unit, re.MULTILINE)[0]) >= 65536
    for name in ("bookie-1", "bookie-2", "bookie-3"):
        assert COMPOSE[name]["ulimits"]["nofile"] >= 65536


def test_every_image_of_others_is_pinned_by_version_and_digest() -> None:
    named = [service["image"] for service in COMPOSE.values() if "build" not in service]
    lines = (DEPLOY / "compose/Dockerfile").read_text().splitlines()
    named += [line.split()[1] for line in lines if line.startswith("FROM ")]
    foreign = [image for image in named if image != "quorumbook"]
    assert len(foreign) >= 4
    for image in foreign:
        assert re.fullmatch(r"[\w./]+:v?\d+\.\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", image), image
