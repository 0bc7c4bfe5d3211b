"""Which cluster a command is about: contexts, options before the command, the system's file."""

from __future__ import annotations

import json
import sys

import httpx
import pytest

from quorumbook.config import load
from surfaces.conftest import CommandLine


@pytest.fixture
def nobody(cluster, tmp_path):
    """A command line whose environment names no cluster."""
    command = CommandLine(cluster.metadata_uri, str(tmp_path))
    del command.environment["QUORUMBOOK_METADATA"]
    command.environment["XDG_CONFIG_HOME"] = str(tmp_path / "home")
    return command


def test_a_context_is_added_chosen_and_forgotten(nobody, cluster):
    uri = cluster.metadata_uri
    assert "context add" in nobody("context", "ls").err
    nobody("context", "add", "here", "--metadata", uri)
    nobody("context", "add", "there", "--metadata", "zk://127.0.0.1:1/ledgers")
    ids = sorted(cluster.bookie_ids)
    # The first one is chosen.
    ls = ("bookie", "ls")
    for words in (ls, ("--context", "here", *ls), (*ls, "--context", "here"),
                  ("--metadata", uri, *ls)):  # fmt: skip
        found = json.loads(nobody(*words, "-o", "json").text)
        assert sorted(row["bookie_id"] for row in found) == ids
    nobody("context", "use", "there")
    nobody.environment["QUORUMBOOK_CONTEXT"] = "here"
    assert len(json.loads(nobody(*ls, "-o", "json").text)) == len(ids)
    del nobody.environment["QUORUMBOOK_CONTEXT"]
    nobody("context", "use", "here")
    rows = json.loads(nobody("-o", "json", "context", "ls").text)
    assert [(row["name"], row["current"]) for row in rows] == [("here", True), ("there", False)]
    nobody("context", "use", "there")
    assert json.loads(nobody("--context", "here", "-o", "json", "status", code=1).text)
    nobody("context", "rm", "there")
    assert "no context nowhere" in nobody("--context", "nowhere", "bookie", "ls", code=2).err
    nobody("context", "use", "there", code=2)


def test_a_context_is_its_configuration_file_too_however_it_was_chosen(nobody, cluster, tmp_path):
    (tmp_path / "tls.toml").write_text("tls.enabled = true\ntls.ca_file = 'ca.pem'\n")
    uri = cluster.metadata_uri
    nobody("context", "add", "safe", "--metadata", uri, "--config", "tls.toml")
    nobody("context", "add", "plain", "--metadata", "zk://127.0.0.1:1/ledgers")

    def tls(*words):
        found = json.loads(nobody("config", "show", "-o", "json", *words).text)
        shown = {row["option"]: row["value"] for row in found}
        return shown["tls.enabled"], shown["metadata.uri"]

    assert tls() == tls("--context", "safe") == (True, uri)
    assert tls("--context", "plain") == (False, "zk://127.0.0.1:1/ledgers")
    nobody.environment["QUORUMBOOK_CONTEXT"] = "plain"
    assert not tls()[0]
    assert tls("--context", "safe")[0]
    nobody.environment["QUORUMBOOK_CONTEXT"] = "safe"
    assert tls() == (True, uri)
    both = nobody("--context", "safe", "bookie", "ls", "--metadata", uri, code=2).err
    assert "--metadata and --context both say which cluster" in both
    (tmp_path / "tls.toml").unlink()
    assert "tls.toml of context safe is not there" in nobody("bookie", "ls", code=2).err
    kept = nobody("context", "add", "x", "--metadata", uri, "--set", "tls.enabled=true", code=2)
    assert "keeps no --set" in kept.err


def test_a_context_keeps_no_secret(nobody, tmp_path):
    for uri in ("zk://me:canary@127.0.0.1/ledgers", "etcd://h/l?tls.key_password=canary"):
        failed = nobody("context", "add", "x", "--metadata", uri, code=2)
        assert "canary" not in failed.err
    assert not (tmp_path / "home" / "quorumbook" / "contexts.json").exists()
    nobody("context", "add", "../x", "--metadata", "zk://h/l", code=2)
    (tmp_path / "home/quorumbook").mkdir(parents=True)
    (tmp_path / "home/quorumbook/contexts.json").write_text('{"contexts": 7}')
    assert "is not a file of contexts" in nobody("bookie", "ls", code=2).err


def test_common_options_before_the_command_are_those_behind_it(quorumbook):
    rows = json.loads(quorumbook("-o", "json", "bookie", "ls").text)
    assert len(rows) == 3
    assert json.loads(quorumbook("-o", "raw", "bookie", "ls", "-o", "json").text) == rows
    assert "is not a form" in quorumbook("-o", "yaml", "bookie", "ls", code=2).err
    shown = json.loads(
        quorumbook("--set", "bookie.port=4000", "-o", "json", "config", "show", "bookie.port").text
    )
    assert shown[0]["value"] == 4000


def test_a_namespace_without_streams_is_an_empty_list(quorumbook):
    done = quorumbook("stream", "ls", "--namespace", "/nothing-yet", "-o", "json")
    assert json.loads(done.text) == []


def test_what_is_no_place_says_which_forms_there_are(quorumbook):
    quorumbook("stream", "create", "s")
    assert quorumbook("stream", "read", "s", "--from", "-1h").out == b""
    failed = quorumbook("stream", "read", "s", "--from", "soon", code=2)
    assert "yesterday" in failed.err


def test_a_console_serves_several_contexts(nobody, cluster):
    nobody("context", "add", "here", "--metadata", cluster.metadata_uri)
    nobody("context", "add", "away", "--metadata", "zk://127.0.0.1:1/ledgers")
    both = nobody("--metadata", cluster.metadata_uri, "console", "here", "away", code=2)
    assert "names of contexts, or --metadata" in both.err
    assert "no context nowhere" in nobody("console", "here", "nowhere", code=2).err
    assert "named twice" in nobody("console", "here", "here", code=2).err
    with nobody.running("console", "away", "here", "--port", "0", "-o", "jsonl") as process:
        row = json.loads(process.stdout.readline())
        assert row["clusters"] == ["away", "here"]
        with httpx.Client(base_url=row["url"], timeout=30) as http:
            found = http.get("/clusters/here/api/v2/bookies").json()["bookies"]
            assert [each["bookie_id"] for each in found] == sorted(cluster.bookie_ids)
            # One that is away keeps nobody from the other, and says so.
            rows = http.get("/api/v2/clusters").json()["clusters"]
            assert [(each["name"], each["status"] == "unknown") for each in rows] == [
                ("away", True), ("here", False),
            ]  # fmt: skip
            assert "/clusters/here/ui" in http.get("/ui/clusters").text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(quorumbook, shell):
    assert "_QUORUMBOOK_COMPLETE" in quorumbook("completion", shell).text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_contexts_bookies_and_streams_are_completed(quorumbook, cluster, tmp_path, shell):
    quorumbook.environment["XDG_CONFIG_HOME"] = str(tmp_path / "home")

    def completed(*words: str) -> list[str]:
        line = " ".join(("quorumbook", *words))
        # zsh says the number of the word, fish the word itself.
        at = words[-1] if shell == "fish" else str(len(words))
        asking = {"_QUORUMBOOK_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": at}
        quorumbook.environment |= asking
        text = quorumbook().text
        for name in asking:
            del quorumbook.environment[name]
        if shell == "zsh":  # a kind, a name and its help, a line each
            return text.splitlines()[1::3]
        return [line.partition(",")[2].partition("\t")[0] for line in text.splitlines()]

    stream = f"orders-{shell}"
    quorumbook("stream", "create", stream)
    quorumbook("context", "add", "production", "--metadata", cluster.metadata_uri)
    assert completed("stat") == ["status"]
    assert sorted(completed("bookie", "drain", "127")) == sorted(cluster.bookie_ids)
    assert completed("stream", "read", stream[:-1]) == [stream]
    assert completed("context", "use", "prod") == ["production"]
    assert completed("console", "prod") == ["production"]


def test_the_systems_file_is_found_where_there_is_none_here(tmp_path, monkeypatch):
    system = tmp_path / "system.toml"
    system.write_text("[bookie]\nport = 4001\n")
    monkeypatch.setattr(sys.modules["quorumbook.config.load"], "SYSTEM_FILE", str(system))
    monkeypatch.chdir(tmp_path)
    assert load(environment={})["bookie.port"].value == 4001
    (tmp_path / "quorumbook.toml").write_text("[bookie]\nport = 4002\n")
    assert load(environment={})["bookie.port"].value == 4002
