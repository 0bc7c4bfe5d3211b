"""Canaries instead of secrets, looked for in errors, printed objects, job files and settings."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import traceback
from pathlib import Path
from typing import Any

import pytest

import quorumbook
from quorumbook.auth.plugins import load_bookie_plugin, load_client_plugin
from quorumbook.cli.main import main
from quorumbook.env.secret_files import read_secret_file
from quorumbook.env.shown import shown
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.uri import named_layout, open_store
from quorumbook.metadata.zookeeper.jute import Connected
from quorumbook.spark.connection import CONNECTION_OPTIONS, Connection
from quorumbook.spark.options import parse
from quorumbook.storage.states.state_file import StoredLedger
from quorumbook.streams.metadata.address import parse_address

SECRET = "canary-of-a-secret"
SCHEMES = ("zk", "zk+flat", "zk+none", "etcd", "sqlite", "memory", "http", "distributedlog",
           "distributedlog-bk", "")  # fmt: skip
#: What stands behind the scheme.
PLACES = (
    f"writer:{SECRET}@h/ledgers", f"writer:{SECRET}@h:1,h:2/ledgers/", f":{SECRET}@h/",
    f"{SECRET}@h/ledgers?tls=perhaps", f"w:a/{SECRET}@h/ledgers", f"w:a?{SECRET}@h/ledgers",
    f"w:a#{SECRET}@h/ledgers",
    f"w:a@{SECRET}@h/ledgers", f"h/ledgers?password={SECRET}", f"h/ledgers?tls=no&token={SECRET}",
    f"h/ledgers?tls.key_password={SECRET}&acl=none",
)  # fmt: skip


def _said(error: BaseException) -> str:
    chain = [*traceback.format_exception(error)]
    found: BaseException | None = error
    while found is not None:
        chain += [str(found), repr(found)]
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "\n".join(chain)


def _check(error: pytest.ExceptionInfo[BaseException]) -> None:
    # Lines of this file show the canaries themselves.
    said = [line for line in _said(error.value).splitlines() if "SECRET" not in line]
    assert SECRET not in "\n".join(said)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_no_error_about_a_metadata_uri_repeats_a_password(scheme: str, place: str) -> None:
    uri = f"{scheme}://{place}" if scheme else place
    with pytest.raises(QuorumbookError) as error:
        store = await open_store(uri)
        await store.close()
    _check(error)
    for read in (named_layout, parse_address, _connection):
        assert SECRET not in _refusal(read, uri)


def _refusal(read: Any, uri: str) -> str:
    """Return what is said of an address, if it is refused."""
    try:
        read(uri)
    except QuorumbookError as error:
        return _said(error)
    return ""


def _connection(uri: str) -> Connection:
    return Connection.of(parse({"metadataServiceUri": uri}, CONNECTION_OPTIONS))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("zk://h1:2181,h2/ledgers?tls=true&auth_file=/x", None),
        ("zk://h/ledgers?kerberos=true&kerberos.principal=a/b@C", None),
        ("zk://h/ledgers?tls.key_password_file=/x", None),
        ("sqlite:////data/metadata.db", None),
        ("zk://u:p@h/ledgers?tls=true", "zk://***@h/ledgers?tls=true"),
        ("h/l?token=x&a=b", "h/l?token=***&a=b"),
    ],
)
def test_an_address_is_shown_but_for_its_secrets(address: str, said: str | None) -> None:
    assert shown(address) == (said or address)


@pytest.mark.parametrize(
    "settings", [SECRET, f"writer:{SECRET}", f"password={SECRET}", f"'{SECRET}"]
)
@pytest.mark.parametrize("load", [load_client_plugin, load_bookie_plugin])
@pytest.mark.parametrize("name", ["shared-secret", "sasl-digest-md5", "sasl-kerberos"])
def test_a_secret_where_its_file_belongs_is_not_repeated(
    name: str, load: Any, settings: str
) -> None:
    with pytest.raises(QuorumbookError) as error:
        load(name, settings)
    _check(error)


def test_a_file_of_secrets_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuorumbookError, match=str(tmp_path / "none")):
        read_secret_file(str(tmp_path / "none"), "an option")


def _classes() -> list[type[Any]]:
    found = {}
    for module in pkgutil.walk_packages(quorumbook.__path__, "quorumbook."):
        if "template" in module.name or module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name:
                found[value] = None
    return list(found)


_SECRET_NAMES = frozenset(
    {"password", "secret", "auth_settings", "master_key", "passed_on", "csrf"}
)


def test_no_object_prints_a_secret_that_it_holds() -> None:
    looked_at = 0
    for kind in _classes():
        if not dataclasses.is_dataclass(kind) or "__repr__" not in vars(kind):
            continue
        if not any(field.name in _SECRET_NAMES for field in dataclasses.fields(kind)):
            continue
        looked_at += 1
        made = object.__new__(kind)
        for field in dataclasses.fields(kind):
            is_secret = field.name in _SECRET_NAMES
            object.__setattr__(made, field.name, SECRET.encode() if is_secret else 0)
        assert SECRET not in repr(made), kind
    assert looked_at >= 5


def test_no_named_tuple_prints_a_secret_that_it_holds() -> None:
    tuples = [kind for kind in _classes() if issubclass(kind, tuple)]
    fields = {kind: getattr(kind, "_fields", ()) for kind in tuples}
    holders = [kind for kind in tuples if not _SECRET_NAMES.isdisjoint(fields[kind])]
    assert {Connected, StoredLedger} <= set(holders)
    for kind in holders:
        made = kind._make(SECRET.encode() if n in _SECRET_NAMES else 0 for n in fields[kind])
        assert SECRET not in repr(made), kind


@pytest.mark.parametrize(
    ("overrides", "is_shown"),
    [
        ([f"client.auth_settings={SECRET}", "client.auth_plugin=of.others:Plugin"], False),
        ([f"bookie.auth_settings={SECRET}", "bookie.auth_plugin=shared-secret"], False),
        ([f"client.auth_settings={SECRET}/x", "client.auth_plugin=of.others:Plugin"], False),
        ([f"client.auth_settings={SECRET}"], False),
        ([f"metadata.uri=zk://u:{SECRET}@h/ledgers"], False),
        (["client.auth_settings=/etc/a-file", "client.auth_plugin=shared-secret"], True),
    ],
)
def test_the_settings_are_shown_without_secrets(
    overrides: list[str], is_shown: bool, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for override in overrides for word in ("--set", override)]
    for form in ("table", "json"):
        assert main(["config", "show", "--changed", "-o", form, *words]) == 0
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err
        assert ("/etc/a-file" in said.out) is is_shown
