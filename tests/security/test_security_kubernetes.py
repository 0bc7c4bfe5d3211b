"""The Kubernetes manifests hold together, and what they describe turns strangers away.

``doubles/deployment.py`` runs the containers as processes; secrets are made as cert-manager and
the manifests' own job make them.
"""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import os
import shlex
import ssl
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from doubles.certificates import CLIENT, SERVER, Authority
from doubles.deployment import Container, Stage, stage
from security.deployment_harness import (
    KUBERNETES,
    READY,
    is_administered_with_the_token_alone,
    is_changed_with_the_token_alone,
    is_refused,
    is_used_by,
    of_kind,
    options_in,
    printed,
    said_nothing_alarming,
    start_zookeeper,
    turns_strangers_away,
)
from security.security_harness import client_tls

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
(TOKEN_JOB,) = of_kind("Job")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path) as made:
        yield made


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
                assert secret["secretName"] in {*made, "http-token", "admin-token"}
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
        assert ports.get("http", config["http"]["port"]) == config["http"]["port"]
        assert ports.get("https", config["admin"]["port"]) == config["admin"]["port"]
        probes = [p for p in ("startupProbe", "livenessProbe", "readinessProbe") if p in main]
        assert probes
        assert all(main[probe]["httpGet"]["port"] in ports for probe in probes)
        # Every pod has a policy, and it opens ports that are there.
        policy = policies[workload["metadata"]["name"]]["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= labels
        assert policy["policyTypes"] == ["Ingress"]
        opened = {p["port"]: rule for rule in policy["ingress"] for p in rule["ports"]}
        if "https" in ports:
            assert not opened, "only who forwards a port reaches the admin server"
        else:
            assert set(opened) == set(ports)
            assert opened["http"]["from"], "whoever likes reaches what can change a bookie"
        mounts = tuple(m["mountPath"] for m in main["volumeMounts"])
        files = [v for k, v in config["tls"].items() if k.endswith("_file")]
        assert all(path.startswith(mounts) for path in files)
        assert all(Path(path).name in ("tls.crt", "tls.key", "ca.crt") for path in files)
    (service,) = (s for s in of_kind("Service") if s["metadata"]["name"] == "bookie")
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


class Api(http.server.BaseHTTPRequestHandler):
    """Kubernetes, as far as it makes a secret: once, and for the right account."""

    secrets: ClassVar[dict[str, dict[str, bytes]]] = {}

    def do_POST(self) -> None:
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = made["metadata"]["name"]
        is_known = name in self.secrets
        assert self.path == "/api/v1/namespaces/quorumbook/secrets"
        assert self.headers["Authorization"] == "Bearer of the account"
        if not is_known:
            self.secrets[name] = {k: base64.b64decode(v) for k, v in made["data"].items()}
        self.send_response(409 if is_known else 201)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


def make_tokens(made: Stage, ca: Authority) -> dict[str, dict[str, bytes]]:
    """Run the job that makes the tokens, twice, against such a Kubernetes; return the secrets."""
    host = made.host("kubernetes.default.svc")
    account = made.directory / "account"
    account.mkdir()
    (account / "token").write_text("of the account")
    (account / "ca.crt").write_bytes(Path(ca.ca_file).read_bytes())
    own = ca.issue("api", ips=[host])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate_file, own.key_file)
    Api.secrets.clear()
    with http.server.HTTPServer((host, 0), Api) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = {"HOST": host, "PORT": str(server.server_port)}
        variables = {f"KUBERNETES_SERVICE_{k}": v for k, v in where.items()}
        (job,) = TOKEN_JOB["spec"]["template"]["spec"]["containers"]
        found = []
        for _ in range(2):
            new = made.directory / "new"
            new.mkdir(exist_ok=True)
            mounts = {ACCOUNT: account, "/new": new}
            made.run(Container(host, job["command"], variables, mounts))
            found.append(dict(Api.secrets))
        server.shutdown()
    assert found[0] == found[1]
    return found[0]


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
    for name, data in make_tokens(made, ca).items():
        for file, content in data.items():
            path = made.directory / name / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o440)


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


def deployed(made: Stage, name: str, host: str) -> Container:
    """Start a pod of a Deployment."""
    (found,) = (d for d in of_kind("Deployment") if d["metadata"]["name"] == name)
    pod = found["spec"]["template"]["spec"]
    container = pod_container(made, pod, pod["containers"][0], f"{name}-0", host)
    made.start(container)
    return container


async def test_kubernetes_as_it_ships_serves_its_own_and_turns_strangers_away(
    running: Stage, zookeeper_classpath: str, tmp_path: Path, ca: Authority
) -> None:
    (bookies,) = of_kind("StatefulSet")
    # One more than ship, for the page says how there come to be fewer.
    names = [f"bookie-{i}" for i in range(bookies["spec"]["replicas"] + 1)]
    hosts = [running.host(f"{name}.bookie.quorumbook.svc.cluster.local") for name in names]
    keeper = running.host("zookeeper")
    # Not by the short name, which is also that of a role.
    console = running.host("admin.quorumbook.svc", "admin.quorumbook.svc.cluster.local")
    await asyncio.to_thread(issue_secrets, running, ca, [*hosts, keeper, console])
    start_zookeeper(running, tmp_path, zookeeper_classpath, keeper, tmp_path / "zookeeper-tls")
    pod = bookies["spec"]["template"]["spec"]
    started = []
    for name, host in zip(names, hosts, strict=True):
        init, main = containers_of(pod)
        await asyncio.to_thread(running.run, pod_container(running, pod, init, name, host))
        started.append(pod_container(running, pod, main, name, host))
        running.start(started[-1])
    auditor = deployed(running, "recovery", running.host("r"))
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
    hook = main["lifecycle"]["preStop"]["exec"]["command"]
    stop = Container(hosts[0], hook, started[0].variables, started[0].mounts)
    await asyncio.to_thread(running.run, stop)
    words = ["quorumbook", "bookie", "scrub", "--now", f"http://{hosts[0]}:8080"]
    operator = Container(hosts[0], words, started[0].variables, started[0].mounts)
    await asyncio.to_thread(
        is_changed_with_the_token_alone, running, operator, hosts, f"{auditor.host}:8080"
    )
    (drain,) = (
        shlex.split(c) for c in printed("deploy-on-kubernetes") if c.startswith("kubectl exec")
    )
    where, words = drain[: drain.index("--")], drain[drain.index("--") + 1 :]
    pod_of = dict(zip(names, started, strict=True))
    container = pod_of[where[-1]]
    inside = Container(container.host, words, container.variables, container.mounts)
    await asyncio.to_thread(running.run, inside)
    assert "read-only" in running.logs[-1].read_text()
    deployed(running, "admin", console)
    await asyncio.to_thread(
        is_administered_with_the_token_alone,
        f"https://{console}:8085",
        tmp_path / "admin-tls/ca.crt",
        (tmp_path / "admin-token/token").read_text(),
        len(names),
    )
    said_nothing_alarming(running)
