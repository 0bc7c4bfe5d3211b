"""What ``deploy`` holds is accepted by those it is made for, and speaks of what there is.

Units are judged by systemd, manifests by the schemas of Kubernetes and of compose, alerts by
Prometheus; their command lines, options and metrics by quorumbook itself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from quorumbook.metric_texts import text_of
from quorumbook.streams import STREAM_METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SETTINGS = DEPLOY / "systemd/quorumbook.toml"
MANIFESTS = [
    manifest
    for name in ("admin", "quorumbook")
    for manifest in yaml.safe_load_all((DEPLOY / f"kubernetes/{name}.yaml").read_text())
]
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
#: Those that run the command `quorumbook`.
SERVICES = [
    service
    for service in COMPOSE["services"].values()
    if service["image"] == "quorumbook" and "entrypoint" not in service
]
ALERTS = DEPLOY / "monitoring/alerts.yml"
BOARD = json.loads((DEPLOY / "monitoring/board.json").read_text())


def _containers() -> list[dict]:
    pods = [m["spec"]["template"]["spec"] for m in MANIFESTS if "template" in m.get("spec", {})]
    return [c for pod in pods for c in pod.get("initContainers", []) + pod["containers"]]


def _command_lines() -> list[list[str]]:
    started = [
        shlex.split(line.partition("=")[2])[1:]
        for unit in UNITS
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    started += [list(map(str, service["command"])) for service in SERVICES if "command" in service]
    started += [list(map(str, container["args"])) for container in _containers()]
    for container in _containers():
        for hook in container.get("lifecycle", {}).values():
            script = hook["exec"]["command"][-1]
            started += [shlex.split(line) for line in re.findall(r"quorumbook (.+?);", script)]
    return [[str(SETTINGS) if word.endswith(".toml") else word for word in c] for c in started]


def _expressions() -> list[str]:
    asked = [t["expr"] for panel in BOARD["panels"] for t in panel.get("targets", [])]
    rules = [r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]]
    return asked + [rule["expr"] for rule in rules]


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORUMBOOK_")}
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, timeout=100,
        env=environment,
    )  # fmt: skip


def _tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        if "CI" in os.environ:
            pytest.fail(f"{name} is missing; Debian has it in {package}")
        pytest.skip(f"{name} is missing; Debian has it in {package}")
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit, tmp_path):
    copy = tmp_path / unit.name
    command = Path(sys.executable).with_name("quorumbook")
    text = unit.read_text().replace("/opt/quorumbook/bin/quorumbook", str(command))
    copy.write_text(text)
    done = _run(_tool("systemd-analyze", "systemd"), "verify", "--man=no", copy)
    assert (done.returncode, done.stderr) == (0, "")


def test_kubernetes_accepts_the_manifest():
    done = _run(
        Path(sys.executable).with_name("kubernetes-validate"),
        "--strict", "--quiet",
        *(DEPLOY / f"kubernetes/{name}.yaml" for name in ("admin", "quorumbook", "tokens")),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {m["kind"] for m in MANIFESTS} >= {"StatefulSet", "PodDisruptionBudget", "Deployment"}


def test_compose_accepts_its_file():
    done = _run(
        Path(sys.executable).with_name("check-jsonschema"),
        "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose/compose.yaml",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_alerts_and_they_fire_when_they_should():
    promtool = _tool("promtool", "prometheus")
    checked = _run(promtool, "check", "rules", ALERTS)
    assert checked.returncode == 0, checked.stderr
    tested = _run(promtool, "test", "rules", ALERTS.with_name("alerts_test.yml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    settings = ALERTS.with_name("prometheus.yml")
    done = _run(promtool, "check", "config", "--syntax-only", settings)
    assert done.returncode == 0, done.stderr


def test_prometheus_accepts_every_expression_of_the_board(tmp_path):
    rules = [
        {"record": f"r{i}", "expr": expression.replace("$instance", ".*")}
        for i, expression in enumerate(_expressions())
    ]
    file = tmp_path / "board.yml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    done = _run(_tool("promtool", "prometheus"), "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_line_is_one_that_there_is():
    lines = _command_lines()
    assert ["recovery", "run"] in [words[:2] for words in lines]
    for words in lines:
        done = _run(sys.executable, "-m", "quorumbook", *words, "--help")
        assert done.returncode == 0, f"{words}: {done.stderr}"


def test_every_option_is_one_that_there_is(tmp_path):
    manifest = next(m for m in MANIFESTS if m["kind"] == "ConfigMap")
    file = tmp_path / "quorumbook.toml"
    file.write_text(manifest["data"]["quorumbook.toml"])
    values = [word for line in _command_lines() for word in line if word.startswith("--set=")]
    for settings in (SETTINGS, file):
        done = _run(
            sys.executable, "-m", "quorumbook", "config", "show", "--config", settings, *values
        )
        assert done.returncode == 0, done.stderr
    names = {e["name"] for container in _containers() for e in container.get("env", [])}
    names |= {name for service in SERVICES for name in service["environment"]}
    documented = (DEPLOY.parent / "docs/configuration.md").read_text()
    for name in names - {"POD", "NAMESPACE", "QUORUMBOOK_METADATA", "QUORUMBOOK_CONFIG"}:
        section, _, option = name.removeprefix("QUORUMBOOK_").lower().partition("_")
        assert f"## `[{section}]`" in documented
        assert f"| `{option}` |" in documented


def _check_heads(page):
    """Samples are of the metric above them, as its type has them, and its help says what it is."""
    endings = {"counter": {""}, "gauge": {""}, "summary": {"", "_count", "_sum"},
               "histogram": {"_bucket", "_count", "_sum"}}  # fmt: skip
    helps, name, kind, count = {}, "", "", 0
    for line in page.splitlines():
        if line.startswith("# HELP "):
            _, _, named, text = line.split(" ", 3)
            assert named not in helps, f"{named} is there twice"
            helps[named] = text
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helps
        else:
            sample = re.split("[{ ]", line)[0]
            count += 1
            assert sample.startswith(name), line
            assert sample[len(name) :] in endings[kind], f"{line} below a {kind} called {name}"
    assert count
    for named, text in helps.items():
        assert len(text) >= 20, f"{named}: {text!r} says too little"
        assert named.lower() not in text.lower(), f"{named}: {text!r} says its name"
        if "_dir__" not in named and not named.startswith("process_"):
            assert text == text_of(named)


def test_boards_and_alerts_ask_for_metrics_that_there_are(quorumbook, tmp_path):
    """A bookie that runs auto-recovery beside it has its kinds, an application the rest."""
    words = ("--port=0", "--data-dir", tmp_path, "-ojsonl", "--set=recovery.in_bookie=true")
    with quorumbook.running("bookie", "run", *words) as run:
        bookie = json.loads(run.stdout.readline())
        with urllib.request.urlopen(f"{bookie['http']}/metrics") as answer:
            text = answer.read().decode()
    STREAM_METRICS.of("/n", "s")
    text += generate_latest(STREAM_METRICS).decode()
    with quorumbook.running("admin", "run", "--port=0", "-ojsonl") as run:
        admin = json.loads(run.stdout.readline())
        urllib.request.urlopen(f"{admin['url']}/api/v2/cluster").close()
        with urllib.request.urlopen(f"{admin['url']}/metrics") as answer:
            of_admin = answer.read().decode()
    for page in (text, of_admin):
        _check_heads(page)
    names = set(re.findall(r"^(?:# TYPE )?([a-zA-Z_]\w*)", text, re.MULTILINE))
    asked = {
        name
        for expression in _expressions()
        for name in re.findall(
            r"\b(?:bookie|bookkeeper|background|process|replication|stream)_\w+", expression
        )
    }
    assert asked
    assert asked - names == set()
    documented = (DEPLOY.parent / "docs/streams.md").read_text()
    of_streams = set(re.findall(r"^# TYPE (stream_\w+) ", text, re.MULTILINE))
    assert len(of_streams) > 15
    assert {name for name in of_streams if f"`{name}`" not in documented} == set()
    page = (DEPLOY.parent / "docs/reference/metrics.md").read_text()
    shown = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.MULTILINE))
    served = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text + of_admin, re.MULTILINE))
    # A directory's path is in the name of one, as BookKeeper has it.
    served = {n: kind for n, kind in served.items() if "_dir__" not in n}
    told = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.*) \|$", page, re.MULTILINE))
    assert told.keys() == shown.keys()
    assert {name: text.replace("`", "") for name, text in told.items()} == {
        name: text_of(name) for name in told
    }
    assert shown == {n: k for n, k in served.items() if not n.startswith(("stream_", "process_"))}
