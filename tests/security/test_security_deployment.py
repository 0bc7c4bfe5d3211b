"""Shipped deployments as they stand: started as processes, and strangers are turned away.

There need not be a container engine: ``doubles/deployment.py`` runs what each file describes.  A
program with a certificate of the right role writes and reads, and is the only one that does.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import shlex
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import quorumbook
from doubles.certificates import CLIENT, SERVER, Authority
from doubles.deployment import PATIENCE_S, Container, Stage, stage, zookeeper_command
from quorumbook.env import TlsOptions
from quorumbook.errors import MetadataUnavailableError, QuorumbookError
from quorumbook.metadata.registration import BookieRegistration
from quorumbook.metadata.uri import open_store
from quorumbook.protocol import v2
from quorumbook.protocol.status import Status
from security.security_harness import SOLO, RawConnection, add_frames, add_v3, client_tls

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
KUBERNETES = [
    manifest
    for name in ("certificates", "quorumbook")
    for manifest in yaml.safe_load_all((DEPLOY / f"kubernetes/{name}.yaml").read_text())
]
V2_UNAUTHORIZED = 102
#: What is typed by hand, as the manifest says.
TOKEN_SECRET = "http-token"
READY = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/is_ready')"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


def options_in(directory: Path, ca: str, certificate: str, key: str) -> TlsOptions:
    return TlsOptions(
        ca_file=str(directory / ca),
        certificate_file=str(directory / certificate),
        key_file=str(directory / key),
        client_authentication=True,
        require=True,
    )


async def is_used_by(uri: str, tls: TlsOptions, ensemble_size: int) -> None:
    """Write and read a ledger, as a program with a certificate of the right role."""
    shape = dict.fromkeys(("ensemble_size", "write_quorum_size", "ack_quorum_size"), ensemble_size)
    async with quorumbook.connect(uri, tls=tls) as client:
        async with await client.create_ledger(**shape) as writer:
            await writer.append(b"mine")
        async with await client.open_ledger(writer.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"mine"]


async def turns_strangers_away(uri: str, tls: TlsOptions, hosts: list[str], tmp_path: Path) -> None:
    """Have strangers of every kind ask every bookie, and the metadata store for a client.

    Of the same CA is only the one whose certificate has another role.
    """
    strange = Authority(tmp_path, "Stranger")
    forged = strange.issue("forged", ips=hosts, unit="0:cluster")
    for host in hosts:
        plain = RawConnection(*await asyncio.open_connection(host, 3181))
        assert (await plain.ask_v3(add_v3(1, 7))).status is Status.UNAUTHORIZED
        plain.close()
        plain = RawConnection(*await asyncio.open_connection(host, 3181))
        answer = await plain.ask_v2(add_frames(7, 1))
        assert isinstance(answer, v2.AddAnswers)
        assert answer.code == V2_UNAUTHORIZED
        plain.close()
    ca = tls.ca_file
    strangers = {
        "without TLS": None,
        "without certificate": TlsOptions(ca_file=ca),
        "of another CA": TlsOptions(
            ca_file=ca, certificate_file=forged.certificate_file, key_file=forged.key_file,
            client_authentication=True,
        ),
    }  # fmt: skip
    for who, options in strangers.items():
        await is_refused(uri, options, who)


async def is_refused(uri: str, tls: TlsOptions | None, who: str) -> None:
    """Reach the metadata store as a friend does, but no bookie."""
    async with quorumbook.connect(uri, tls=tls, operation_timeout_s=5) as client:
        with pytest.raises(QuorumbookError):
            async with await client.create_ledger(**SOLO) as writer:
                await writer.append(who.encode())


def is_changed_with_the_token_alone(made: Stage, operator: Container, host: str) -> None:
    """Ask for a change over HTTP without the token, and with it as an operator does."""
    url = f"http://{host}:8080/api/v1/bookie/scrub"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"))
    assert refused.value.code == 401
    made.run(operator)


async def registered(uri: str, count: int) -> None:
    """Wait until so many bookies are there."""
    store = await open_store(uri)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len((await BookieRegistration(store).bookies())[0]) < count:
                await asyncio.sleep(0.05)
    finally:
        await store.close()


def said_nothing_alarming(made: Stage) -> None:
    for log in made.logs:
        text = log.read_text()
        assert "Traceback" not in text, text
        assert "listens on" not in text, text


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
        return Container(host, [w.replace("$$", "$") for w in words], variables, mounts)

    def up(self) -> None:
        """Start the services in the order that their dependencies ask for."""
        begun: set[str] = set()
        waiting = [n for n, s in COMPOSE.items() if "profiles" not in s and n != "prometheus"]
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
    tools = composed.container("tools", ["bookie", "ls", "-o", "json"])
    await asyncio.to_thread(running.run, tools)
    assert running.logs[-1].read_text().count('"writable"') == 3
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
    await asyncio.to_thread(is_changed_with_the_token_alone, running, operator, hosts[0])
    # At the next start, what is good for long is left as it is.
    kept = [tmp_path / "client-tls/tls.pem", tmp_path / "http-token/token"]
    before = [path.read_bytes() for path in kept]
    await asyncio.to_thread(running.run, composed.container("certificates"))
    assert [path.read_bytes() for path in kept] == before
    said_nothing_alarming(running)


def test_every_volume_service_and_port_that_compose_names_is_there() -> None:
    whole = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
    used = {v.split(":")[0] for s in COMPOSE.values() for v in s.get("volumes", [])}
    assert {v for v in used if not v.startswith(".")} == set(whole["volumes"])
    for path in (v for v in used if v.startswith(".")):
        assert (DEPLOY / "compose" / path).is_file()
    for service in COMPOSE.values():
        assert set(service.get("depends_on", {})) <= set(COMPOSE)
    # The key of the CA is in the hands of one service alone, and only one port leaves the host.
    assert [n for n, s in COMPOSE.items() if "authority" in str(s.get("volumes"))] == [
        "certificates"
    ]
    assert [p for s in COMPOSE.values() for p in s.get("ports", [])] == ["127.0.0.1:9090:9090"]
    # Each bookie is called by a name that its certificate has.
    named = COMPOSE["certificates"]["command"][0].splitlines()[1].split()[4:]
    bookies = [s["environment"] for n, s in COMPOSE.items() if n.startswith("bookie-")]
    assert named == [b["QUORUMBOOK_BOOKIE_ADVERTISED_HOST"] for b in bookies]


# Kubernetes --------------------------------------------------------------------------------


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [manifest for manifest in KUBERNETES if manifest["kind"] in kinds]


def pods() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each workload with the specification of its pods."""
    return [(w, w["spec"]["template"]["spec"]) for w in of_kind("StatefulSet", "Deployment")]


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod.get("initContainers", []) + pod["containers"]


def test_what_kubernetes_mounts_is_there_and_secrets_are_of_certificates() -> None:
    made = {c["spec"]["secretName"]: c for c in of_kind("Certificate")}
    issuers = {i["metadata"]["name"] for i in of_kind("Issuer")}
    assert {c["spec"]["issuerRef"]["name"] for c in made.values()} <= issuers
    assert {i["spec"]["ca"]["secretName"] for i in of_kind("Issuer") if "ca" in i["spec"]} <= {
        *made
    }
    configs = {c["metadata"]["name"] for c in of_kind("ConfigMap")}
    assert {m["metadata"].get("namespace") for m in KUBERNETES if m["kind"] != "Namespace"} == {
        of_kind("Namespace")[0]["metadata"]["name"]
    }
    for workload, pod in pods():
        claims = workload["spec"].get("volumeClaimTemplates", [])
        volumes = {v["name"]: v for v in pod["volumes"]}
        names = {*volumes} | {c["metadata"]["name"] for c in claims}
        for volume in volumes.values():
            if secret := volume.get("secret"):
                assert secret["secretName"] in {*made, TOKEN_SECRET}
                # A key is for the pod's group, and for nobody else.
                assert secret["defaultMode"] == 0o440
                assert "fsGroup" in pod["securityContext"]
            else:
                assert volume["configMap"]["name"] in configs
        for container in containers_of(pod):
            mounts = container["volumeMounts"]
            assert {m["name"] for m in mounts} <= names
            assert len({m["mountPath"] for m in mounts}) == len(mounts)
        used = {m["name"] for c in containers_of(pod) for m in c["volumeMounts"]}
        assert used == names


def test_ports_labels_and_paths_of_the_kubernetes_manifests_fit() -> None:
    config = tomllib.loads(of_kind("ConfigMap")[0]["data"]["quorumbook.toml"])
    policies = {p["metadata"]["name"]: p for p in of_kind("NetworkPolicy")}
    for workload, pod in pods():
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        (main,) = pod["containers"]
        ports = {p["name"]: p["containerPort"] for p in main["ports"]}
        assert ports["http"] == config["http"]["port"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert main.get(probe, {"httpGet": {"port": "http"}})["httpGet"]["port"] in ports
        # Every pod has a policy, and it opens ports that are there.
        policy = policies[workload["metadata"]["name"]]["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= labels
        assert policy["policyTypes"] == ["Ingress"]
        opened = {p["port"]: rule for rule in policy["ingress"] for p in rule["ports"]}
        assert set(opened) == set(ports)
        assert opened["http"]["from"], "whoever likes reaches what can change a bookie"
        mounts = tuple(m["mountPath"] for m in main["volumeMounts"])
        files = [v for k, v in config["tls"].items() if k.endswith("_file")]
        assert all(path.startswith(mounts) for path in files)
        assert all(Path(path).name in ("tls.crt", "tls.key", "ca.crt") for path in files)
    (service,) = of_kind("Service")
    (bookies,) = of_kind("StatefulSet")
    assert bookies["spec"]["serviceName"] == service["metadata"]["name"]
    assert {p["port"] for p in service["spec"]["ports"]} == {3181, config["http"]["port"]}
    name = f"*.{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
    issued = {c["spec"]["secretName"]: c["spec"] for c in of_kind("Certificate")}
    assert issued["bookie-tls"]["dnsNames"] == [name]
    roles = {
        unit.removeprefix("0:")
        for name in ("bookie-tls", "client-tls")
        for unit in issued[name]["subject"]["organizationalUnits"]
    }
    assert roles == set(config["bookie"]["authorized_roles"])


def issue_secrets(made: Stage, ca: Authority, ips: list[str]) -> None:
    """Make what cert-manager makes of the certificates in the manifests."""
    usages = {"server auth": SERVER, "client auth": CLIENT}
    for certificate in of_kind("Certificate"):
        spec = certificate["spec"]
        if spec.get("isCA"):
            continue
        units = spec.get("subject", {}).get("organizationalUnits", [])
        name = spec["secretName"]
        issued = ca.issue(
            f"{name}.pem", common_name=spec["commonName"], ips=ips,
            unit=units[0] if units else None,
            usages=[usages[u] for u in spec["usages"] if u in usages],
        )  # fmt: skip
        secret = made.directory / name
        secret.mkdir()
        os.rename(issued.certificate_file, secret / "tls.crt")
        os.rename(issued.key_file, secret / "tls.key")
        (secret / "ca.crt").write_bytes(Path(ca.ca_file).read_bytes())
    manifest = (DEPLOY / "kubernetes/quorumbook.yaml").read_text()
    assert f"kubectl create secret generic {TOKEN_SECRET} --namespace quorumbook" in manifest
    token = made.directory / TOKEN_SECRET / "token"
    token.parent.mkdir()
    token.write_text("0123456789abcdef")
    token.chmod(0o440)


def pod_container(
    made: Stage, pod: dict[str, Any], container: dict[str, Any], name: str, host: str
) -> Container:
    """Return a container of a pod of this name."""
    fields = {"metadata.name": name, "metadata.namespace": "quorumbook"}
    variables: dict[str, str] = {}
    for each in container.get("env", []):
        value = each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for known, text in variables.items():
            value = value.replace(f"$({known})", text)
        variables[each["name"]] = value
    mounts = {}
    volumes = {v["name"]: v for v in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        path = made.directory / f"{name}-{mount['name']}"
        if "secret" in volume:
            path = made.directory / volume["secret"]["secretName"]
        path.mkdir(exist_ok=True)
        mounts[mount["mountPath"]] = path
    found = Container(host, ["quorumbook", *container["args"]], variables, mounts)
    config = made.directory / f"{name}-config"
    for file, text in of_kind("ConfigMap")[0]["data"].items():
        (config / file).write_text(made.text(text, found))
    return found


async def test_kubernetes_as_it_ships_serves_its_own_and_turns_strangers_away(
    running: Stage, zookeeper_classpath: str, tmp_path: Path, ca: Authority
) -> None:
    (bookies,), (recovery,) = of_kind("StatefulSet"), of_kind("Deployment")
    names = [f"bookie-{i}" for i in range(bookies["spec"]["replicas"])]
    hosts = [running.host(f"{name}.bookie.quorumbook.svc.cluster.local") for name in names]
    keeper = running.host("zookeeper")
    issue_secrets(running, ca, [*hosts, keeper])
    start_zookeeper(running, tmp_path, zookeeper_classpath, keeper, tmp_path / "zookeeper-tls")
    pod = bookies["spec"]["template"]["spec"]
    started = []
    for name, host in zip(names, hosts, strict=True):
        init, main = containers_of(pod)
        await asyncio.to_thread(running.run, pod_container(running, pod, init, name, host))
        started.append(pod_container(running, pod, main, name, host))
        running.start(started[-1])
    pod = recovery["spec"]["template"]["spec"]
    auditor = pod_container(running, pod, pod["containers"][0], "recovery-0", running.host("r"))
    running.start(auditor)
    for container in (*started, auditor):
        await asyncio.to_thread(running.wait_healthy, container, ["python", "-c", READY])
    config = tomllib.loads((tmp_path / "bookie-0-config/quorumbook.toml").read_text())
    uri = config["metadata"]["uri"]
    tls = options_in(tmp_path / "client-tls", "ca.crt", "tls.crt", "tls.key")
    await is_used_by(uri, tls, 3)
    await turns_strangers_away(uri, tls, hosts, tmp_path)
    roleless = ca.issue("roleless")
    await is_refused(uri, client_tls(ca, roleless), "of no role")
    # What the pod's stop waits for runs as it is printed.
    hook = pods()[0][1]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    stop = Container(hosts[0], hook, started[0].variables, started[0].mounts)
    await asyncio.to_thread(running.run, stop)
    words = ["quorumbook", "bookie", "scrub", "--now", f"http://{hosts[0]}:8080"]
    operator = Container(hosts[0], words, started[0].variables, started[0].mounts)
    await asyncio.to_thread(is_changed_with_the_token_alone, running, operator, hosts[0])
    said_nothing_alarming(running)


def start_zookeeper(
    made: Stage, directory: Path, classpath: str, host: str, secret: Path
) -> Container:
    """Start a ZooKeeper on the port for TLS that demands a certificate of the same CA."""
    store = directory / "store.pem"
    key, certificate, ca = (next(secret.glob(n)) for n in ("tls.key", "tls.[cp]*", "ca.*"))
    store.write_text(key.read_text() + certificate.read_text())
    extra = (
        "secureClientPort=2281 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
        f" ssl.clientAuth=need ssl.keyStore.type=PEM ssl.keyStore.location={store}"
        f" ssl.trustStore.type=PEM ssl.trustStore.location={ca}"
    )
    variables = {
        "ZOO_SERVERS": "server.1=localhost:2888:3888",
        "ZOO_ADMINSERVER_ENABLED": "false",
        "ZOO_CFG_EXTRA": extra,
    }
    command = zookeeper_command(directory / "zookeeper", classpath, variables, host)
    found = Container(host, command, {}, {})
    made.start(found)
    made.wait_healthy(found, ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2281"])
    return found


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
    start_zookeeper(running, tmp_path, zookeeper_classpath, keeper, tmp_path / "zk")
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
    said_nothing_alarming(running)
