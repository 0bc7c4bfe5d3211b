"""Every option of the configuration reaches the room it is for, with the same default there."""

from __future__ import annotations

import dataclasses

import pytest

from quorumbook.bookie.options import BookieOptions, HttpOptions
from quorumbook.cli.bookie.commands import in_directory
from quorumbook.client.options import ClientOptions
from quorumbook.config import load
from quorumbook.config.made import bookie_options, client_options
from quorumbook.env import TlsOptions
from quorumbook.errors import ConfigError
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_defaults_of_a_bookie_are_those_of_its_own_options():
    made = bookie_options(load(environment={}, overrides=["http.enabled=false"]))
    own = BookieOptions(
        journal_directories=made.journal_directories, ledger_directories=made.ledger_directories
    )
    assert dataclasses.asdict(made) == dataclasses.asdict(own)


def test_every_field_of_a_bookie_and_its_storage_can_be_configured():
    settings = load(environment={})
    bookie = {field.name for field in dataclasses.fields(BookieOptions)}
    elsewhere = {"journal_directories", "ledger_directories", "index_directories"}
    elsewhere |= {"storage", "http", "tls", "gc", "scrub"}
    assert set(settings.section("bookie")) == bookie - elsewhere
    storage = {field.name for field in dataclasses.fields(StorageOptions)}
    directories = {
        "journal_directories", "ledger_directories", "index_directories", "peer_storage",
    }  # fmt: skip
    assert set(settings.section("storage")) == storage | directories
    assert settings.section("gc") == dataclasses.asdict(GcOptions())
    assert bookie_options(settings).gc == GcOptions()
    assert settings.section("scrub") == dataclasses.asdict(ScrubOptions())
    assert bookie_options(settings).scrub == ScrubOptions()


def test_tls_is_off_and_every_part_of_it_can_be_configured():
    assert bookie_options(load(environment={})).tls is None
    settings = load(environment={}, overrides=["tls.enabled=true"])
    assert bookie_options(settings).tls == client_options(settings).tls == TlsOptions()
    fields = {field.name for field in dataclasses.fields(TlsOptions)}
    assert set(settings.section("tls")) == fields | {"enabled", "key_format", "ca_format"}


def test_requiring_tls_without_tls_is_a_contradiction():
    with pytest.raises(ConfigError, match=r"tls\.require needs tls\.enabled"):
        load(environment={}, overrides=["tls.require=true"])


def test_stores_of_java_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"tls\.key_format: 'JKS'"):
        load(environment={}, overrides=["tlsKeyStoreType=JKS"])


def test_the_defaults_of_a_client_are_those_of_its_own_options():
    assert client_options(load(environment={})) == ClientOptions()


def test_values_arrive_where_they_belong():
    settings = load(
        environment={},
        overrides=[
            "bookie.bookie_id=b1",
            "storage.write_cache_size_bytes=1M",
            "client.max_ensemble_changes=3",
            "metadata.session_timeout_s=4",
            "http.port=0",
        ],
    )
    made = bookie_options(settings)
    assert made.bookie_id == "b1"
    assert made.storage.write_cache_size_bytes == 1 << 20
    assert made.http == HttpOptions(port=0)
    assert client_options(settings).max_ensemble_changes == 3
    assert client_options(settings).session_timeout_s == 4.0


def test_a_data_directory_holds_everything_that_set_does_not_put_elsewhere():
    settings = load(environment={}, overrides=["storage.journal_directories=/ssd"])
    made = bookie_options(in_directory(settings, "/data"))
    assert tuple(made.journal_directories) == ("/ssd",)
    assert tuple(made.ledger_directories) == ("/data/ledgers",)
