"""The Helm chart: what it renders is what Kubernetes takes, and the plain manifests are of it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from quorumbook.config.load import load

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm"
#: Built where there is none; what it needs comes by Go's own ways.
HELM = "helm.sh/helm/v3/cmd/helm@v3.18.4"
#: The oldest that the chart takes and its check knows, one between, and a new one.
VERSIONS = ("1.29.0", "1.33.0", "1.37.0")
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example.net/qb", "tag": "9.9", "pullSecrets": ["pull"]},
    "metadata": {"uri": "etcd://etcd:2379/ledgers"},
    "config": {"storage": {"journal_group_size_bytes": 1048576}, "http": {"port": 8080}},
    "environment": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "NAMED": "1: {x}"},
    "bookies": {
        "replicas": 5,
        "processes": 3,
        "journal": {"size": "10Gi", "storageClass": "fast"},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "storage", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "annotations": {"team": "logs"},
    },
    "admin": {"names": ["console.example.net"], "from": [{"podSelector": {}}]},
    "monitoring": {"podMonitor": True, "rules": True, "board": True, "labels": {"release": "p"}},
    "namespace": {"create": True},
}
_DEPLOYED = ("recovery", "admin")
LITTLE: dict[str, Any] = {
    "admin": {"enabled": False},
    "certificates": {"create": False},
    "tokens": {"create": False},
    "networkPolicies": {"enabled": False},
}

Render = Callable[..., list[dict[str, Any]]]
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("helm")]


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the command."""
    if found := shutil.which("helm"):
        return found
    if shutil.which("go") is None:
        if "CI" in os.environ:
            pytest.fail("neither helm nor go is here to build it")
        pytest.skip("helm is missing: https://helm.sh, or go, which builds it")
    target = tmp_path_factory.mktemp("helm")
    subprocess.run(
        ["go", "install", "-trimpath", "-ldflags=-s -w", HELM],
        check=True, timeout=840, capture_output=True, env={**os.environ, "GOBIN": str(target)},
    )  # fmt: skip
    return str(target / "helm")


@pytest.fixture
def render(helm: str, tmp_path: Path) -> Render:
    """Return what renders the chart with values into objects."""
    numbers = itertools.count()

    def rendered(values: dict[str, Any], *, name: str = "quorumbook", version: str = VERSIONS[0]):
        file = tmp_path / f"{next(numbers)}.yaml"
        file.write_text(yaml.safe_dump(values))
        done = _run(
            helm, "template", name, CHART, "--namespace", "logs", "--values", file,
            "--kube-version", version,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return rendered


def test_the_plain_manifests_are_what_the_chart_renders_by_itself(helm, tmp_path):
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    shutil.copy(DEPLOY.parent / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/helm").symlink_to(helm)
    subprocess.run(
        ["make", "--silent", "kubernetes"], check=True, cwd=tmp_path, timeout=60,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    for made in sorted((tmp_path / "deploy/kubernetes").iterdir()):
        shipped = DEPLOY / "kubernetes" / made.name
        assert made.read_text() == shipped.read_text(), f"{made.name}: run `make kubernetes`"


def test_helm_finds_nothing_to_say_against_the_chart(helm):
    done = _run(helm, "lint", "--strict", "--kube-version", VERSIONS[-1], CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", [{}, EVERYTHING, LITTLE], ids=["plain", "everything", "little"])
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_what_the_chart_renders(render, tmp_path, values, version):
    own = [
        each for each in render(values, name="own", version=version)
        if "cert-manager" not in each["apiVersion"] and "coreos" not in each["apiVersion"]
    ]  # fmt: skip
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(own))
    checker = Path(sys.executable).with_name("kubernetes-validate")
    done = _run(checker, "--strict", "--quiet", "-k", version, file)
    assert done.returncode == 0, done.stdout + done.stderr


def _named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def test_values_arrive_and_options_are_those_that_there_are(render, tmp_path):
    objects = render(EVERYTHING, name="own")
    # Two releases never share an object.
    named = [o["metadata"]["name"] for o in objects if o["kind"] != "Namespace"]
    assert all(name.startswith("own-") for name in named), named
    text = _named(objects, "ConfigMap", "own-quorumbook")["data"]["quorumbook.toml"]
    assert tomllib.loads(text)["admin"]["names"] == [
        "own-admin", "own-admin.logs.svc", "own-admin.logs.svc.cluster.local",
        "console.example.net",
    ]  # fmt: skip
    file = tmp_path / "quorumbook.toml"
    file.write_text(text)
    settings = load(file=str(file), environment={})
    assert settings.text("metadata.uri") == "etcd://etcd:2379/ledgers"
    assert settings.integer("storage.journal_group_size_bytes") == 1048576
    bookies = _named(objects, "StatefulSet", "own-bookie")["spec"]
    assert bookies["replicas"] == 5
    others = (_named(objects, "Deployment", f"own-{name}")["spec"] for name in _DEPLOYED)
    for pods in (bookies, *others):
        variables = pods["template"]["spec"]["containers"][0]["env"]
        assert {"name": "NAMED", "value": "1: {x}"} in variables
    _check_processes(objects, bookies["template"]["spec"]["containers"][0])
    journal, ledgers = (claim["spec"] for claim in bookies["volumeClaimTemplates"])
    assert journal["storageClassName"] == "fast"
    assert "storageClassName" not in ledgers
    pod = bookies["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "nvme"}
    assert pod["containers"][0]["image"] == "registry.example.net/qb:9.9"
    rules = _named(objects, "PrometheusRule", "own-quorumbook")
    alerts = yaml.safe_load((DEPLOY / "monitoring/alerts.yml").read_text())
    assert rules["spec"] == alerts
    board = _named(objects, "ConfigMap", "own-quorumbook-board")["data"]["quorumbook.json"]
    assert json.loads(board) == json.loads((DEPLOY / "monitoring/board.json").read_text())
    monitor = _named(objects, "PodMonitor", "own-quorumbook")
    labels = bookies["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


def _check_processes(objects: list[dict[str, Any]], container: dict[str, Any]) -> None:
    """All bookies of a pod are reached, watched, and asked before they are stopped."""
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {
        "bookie": 3181, "bookie-2": 3182, "bookie-3": 3183,
        "http": 8080, "http-2": 8081, "http-3": 8082,
    }  # fmt: skip
    assert container["args"] == ["bookie", "run", "--processes", "3"]
    (asked,) = container["lifecycle"]["preStop"]["exec"]["command"][2:]
    assert subprocess.run(["sh", "-n", "-c", asked], check=False).returncode == 0
    assert [f"HOST:{port}" in asked for port in (3181, 3182, 3183)] == [True] * 3
    service = _named(objects, "Service", "own-bookie")["spec"]["ports"]
    assert {each["name"]: each["port"] for each in service} == ports
    rules = _named(objects, "NetworkPolicy", "own-bookie")["spec"]["ingress"]
    assert {each["port"] for rule in rules for each in rule["ports"]} == ports.keys()
    watched = _named(objects, "PodMonitor", "own-quorumbook")["spec"]["podMetricsEndpoints"]
    assert {each["port"] for each in watched} == {"http", "http-2", "http-3"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"bookies": {"replicas": "three"}}, "replicas"),
        ({"bookies": {"replica": 3}}, "replica"),
        ({"bookies": {"processes": 0}}, "processes"),
        ({"metadata": {"uri": "sqlite:///data/metadata.db"}}, "uri"),
        ({"bookies": {"journal": {"size": "much"}}}, "size"),
        ({"config": {"storage": "fast"}}, "storage"),
    ],
)
def test_mistyped_values_are_refused_by_name(helm, tmp_path, values, said):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = _run(helm, "template", "own", CHART, "--values", file, "--kube-version", VERSIONS[0])
    assert done.returncode != 0
    assert said in done.stderr
