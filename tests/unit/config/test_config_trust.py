"""Code is named only by files that nobody else can change, and never by Spark's options."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sys
from types import SimpleNamespace

import pytest

from quorumbook.auth.plugins import load_bookie_plugin, load_client_plugin
from quorumbook.config import OPTIONS, Kind, load, trust
from quorumbook.errors import ConfigError
from quorumbook.metadata.uri import open_store, parse_uri
from quorumbook.streams.metadata import address as streams_address

#: Each option that can name code, with a value that does.
CODE = {
    "client.auth_plugin": "os:system",
    "bookie.auth_plugin": "os:system",
    "placement.rack_class": "os:system",
    "placement.rack_script": "/bin/true",
}
#: Ways in which somebody else may write to a file: mode, owner, group.
OPEN = {
    "to all": (0o646, None, None),
    "to a group": (0o664, None, 12345),
    "to its owner": (0o644, 54321, None),
}


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(path, key, value):
    section, _, name = key.partition(".")
    path.write_text(f"[{section}]\n{name} = {value!r}\n")
    path.chmod(0o600)


def give_away(monkeypatch, path, mode, owner, group):
    """Let a file look as if it were somebody else's; changing its owner takes root."""
    path.chmod(mode)
    real = os.stat_result

    def seen(found: real):
        return SimpleNamespace(
            st_mode=found.st_mode,
            st_uid=found.st_uid if owner is None else owner,
            st_gid=found.st_gid if group is None else group,
        )

    judge = trust.distrust_of
    module = sys.modules["quorumbook.config.load"]
    monkeypatch.setattr(module, "distrust_of", lambda found: judge(seen(found)))


def test_all_options_that_name_code_are_tried_here():
    kinds = (Kind.PLUG_IN, Kind.PROGRAM)
    assert {option.key for option in OPTIONS if option.kind in kinds} == set(CODE)


@pytest.mark.parametrize("key", CODE)
@pytest.mark.parametrize("way", OPEN)
def test_a_file_that_others_can_change_names_no_code(tmp_path, monkeypatch, key, way):
    path = tmp_path / "given.toml"
    write(path, key, CODE[key])
    assert load(file=str(path), environment={}).text(key) == CODE[key]
    give_away(monkeypatch, path, *OPEN[way])
    with pytest.raises(ConfigError, match=f"{key}: .*names code to be run.*by --config"):
        load(file=str(path), environment={})
    with pytest.raises(ConfigError, match="names code to be run"):
        load(environment={"QUORUMBOOK_CONFIG": str(path)})


@pytest.mark.parametrize("way", OPEN)
def test_a_file_in_the_working_directory_that_others_can_change_is_ignored_and_said_so(
    tmp_path, monkeypatch, way, caplog
):
    path = tmp_path / "quorumbook.toml"
    write(path, "client.auth_settings", "/home/me/secret")
    assert load(environment={}).text("client.auth_settings") == "/home/me/secret"
    give_away(monkeypatch, path, *OPEN[way])
    assert load(environment={})["client.auth_settings"].is_default
    assert f"{path} is ignored: " in caplog.text
    assert "give --config quorumbook.toml" in caplog.text


def test_the_file_that_was_judged_is_the_one_that_is_read(tmp_path, monkeypatch, caplog):
    """Whoever may write to the directory swaps the file while it is looked at."""
    path = tmp_path / "quorumbook.toml"
    write(path, "client.auth_settings", "/home/me/secret")
    module = sys.modules["quorumbook.config.load"]
    judge = trust.distrust_of

    def swapped(found):
        other = tmp_path / "other"
        write(other, "client.auth_settings", "/tmp/stranger")
        other.rename(path)
        return judge(found)

    monkeypatch.setattr(module, "distrust_of", swapped)
    assert load(environment={}).text("client.auth_settings") == "/home/me/secret"
    write(path, "client.auth_settings", "/home/me/secret")
    path.chmod(0o646)
    assert load(environment={})["client.auth_settings"].is_default
    assert f"{path} is ignored: everybody may write to it" in caplog.text
    peer_file = tmp_path / "bk_server.conf"
    peer_file.write_text("networkTopologyScriptFileName=/bin/true\n")
    peer_file.chmod(0o646)
    with pytest.raises(ConfigError, match="everybody may write to it"):
        load(peer_file=str(peer_file), environment={})


def test_a_file_of_somebody_else_that_cannot_be_opened_is_ignored(tmp_path, monkeypatch, caplog):
    path = tmp_path / "quorumbook.toml"
    write(path, "client.auth_settings", "/home/me/secret")
    monkeypatch.setattr(os, "open", lambda *_: os.stat(tmp_path / "nothing"))
    assert load(environment={})["client.auth_settings"].is_default
    assert "ignored" not in caplog.text

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        load(environment={})
    give_away(monkeypatch, path, *OPEN["to its owner"])
    assert load(environment={})["client.auth_settings"].is_default
    assert "is ignored: it belongs to another user" in caplog.text


def test_a_named_pipe_in_the_working_directory_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "quorumbook.toml", 0o600)
    assert load(environment={})["client.auth_settings"].is_default


def test_what_names_no_code_may_come_from_a_named_file_of_somebody_else(tmp_path, monkeypatch):
    path = tmp_path / "given.toml"
    write(path, "client.auth_plugin", "shared-secret")
    give_away(monkeypatch, path, *OPEN["to all"])
    assert load(file=str(path), environment={}).text("client.auth_plugin") == "shared-secret"


@pytest.mark.parametrize("key", CODE)
def test_somebody_foreign_names_no_code_by_option_or_file(tmp_path, key):
    path = tmp_path / "given.toml"
    write(path, key, CODE[key])
    said = {"environment": {}, "foreign": "an option of Spark"}
    for source in ({"overrides": [f"{key}={CODE[key]}"]}, {"file": str(path)}):
        with pytest.raises(ConfigError, match=f"{key}: .*refused from here: an option of Spark"):
            load(**source, **said)
    assert load(environment={"QUORUMBOOK_CONFIG": str(path)}, foreign="x").text(key) == CODE[key]


@pytest.mark.parametrize("key", CODE)
def test_a_uri_of_metadata_or_streams_names_no_code(key):
    said = f"{key}={CODE[key]}"
    for store in ("zk://h:2181/ledgers", "zk+flat://h/ledgers?chroot=/a", "etcd://h/ledgers"):
        uri = f"{store}{'&' if '?' in store else '?'}{said}"
        # A stream's namespace may stand behind it.
        for address in (uri, f"{uri}#/streams"):
            store_uri = streams_address.parse_address(address).metadata_uri
            with pytest.raises(ConfigError, match=f"'{key}' is (unknown|not known here)"):
                asyncio.run(open_store(store_uri))
    # These have no options: it is part of a name.
    assert parse_uri(f"memory://a?{key}=os:system").location == f"a?{key}=os:system"
    assert parse_uri(f"sqlite:///a?{said}").location == f"a?{said}"
    peer_form = streams_address.parse_address(f"distributedlog://h:1/a?{said}")
    assert (peer_form.metadata_uri, peer_form.path) == ("zk://h:1/ledgers", f"/a?{said}")


def test_a_group_without_other_members_is_nobody_else(monkeypatch):
    me = SimpleNamespace(pw_gid=1000, pw_name="ann")
    group = SimpleNamespace(gr_name="ann", gr_mem=["ann"])
    monkeypatch.setattr(trust.pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(trust.grp, "getgrgid", lambda gid: group)
    found = SimpleNamespace(st_uid=os.geteuid(), st_mode=0o100664, st_gid=1000)
    assert trust.distrust_of(found) == ""
    group.gr_mem.append("bob")
    assert trust.distrust_of(found) == "a group may write to it (gid 1000)"
    group.gr_mem.remove("bob")
    group.gr_name = "staff"
    assert trust.distrust_of(found) == "a group may write to it (gid 1000)"


class Toy:
    """A plug-in."""

    name = "toy"

    def __init__(self, settings):
        self.settings = settings


def test_an_installed_plug_in_is_found_by_its_name(monkeypatch):
    entry = importlib.metadata.EntryPoint("toy", f"{__name__}:Toy", "")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Toy.__module__])
    installed = importlib.metadata.EntryPoints([entry])
    asked = []

    def entry_points(group):
        asked.append(group)
        return installed

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert load_client_plugin("toy", "a").settings == "a"
    assert load_bookie_plugin("toy", "b").settings == "b"
    assert asked == ["quorumbook.client_auth", "quorumbook.bookie_auth"]
    assert load(environment={}, overrides=["client.auth_plugin=toy"], foreign="x")
