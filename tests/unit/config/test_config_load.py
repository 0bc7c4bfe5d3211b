"""Options come from a file, the environment and --set, and each value says from where."""

from __future__ import annotations

import pytest

from quorumbook.config import OPTIONS, load
from quorumbook.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _write(tmp_path, text, name="quorumbook.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_without_any_source_every_option_has_its_default():
    settings = load(environment={})
    assert [setting.option for setting in settings] == list(OPTIONS)
    assert all(setting.is_default for setting in settings)
    assert settings.integer("bookie.port") == 3181


def test_a_file_in_the_working_directory_is_read_without_being_named(tmp_path):
    _write(tmp_path, "[bookie]\nport = 4000\n")
    setting = load(environment={})["bookie.port"]
    assert setting.value == 4000
    assert setting.source == "file quorumbook.toml"


def test_a_named_file_is_read_instead_of_the_one_in_the_working_directory(tmp_path):
    _write(tmp_path, "[bookie]\nport = 4000\n")
    path = _write(tmp_path, "[bookie]\nhost = '::1'\n", "other.toml")
    settings = load(file=path, environment={})
    assert settings["bookie.port"].is_default
    assert settings["bookie.host"].source == f"file {path}"


def test_the_environment_wins_over_the_file_and_set_over_both(tmp_path):
    _write(tmp_path, "[bookie]\nport = 4000\nhost = 'file'\nbookie_id = 'file'\n")
    environment = {"QUORUMBOOK_BOOKIE_PORT": "4001", "QUORUMBOOK_BOOKIE_HOST": "variable"}
    settings = load(environment=environment, overrides=["bookie.port=4002"])
    assert (settings["bookie.port"].value, settings["bookie.port"].source) == (4002, "--set")
    assert settings["bookie.host"].source == "environment QUORUMBOOK_BOOKIE_HOST"
    assert settings["bookie.bookie_id"].source == "file quorumbook.toml"


def test_the_metadata_uri_has_a_short_variable():
    settings = load(environment={"QUORUMBOOK_METADATA": "memory://x"})
    assert settings.text("metadata.uri") == "memory://x"
    assert settings["metadata.uri"].source == "environment QUORUMBOOK_METADATA"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_every_default_is_a_legal_value_of_its_option(option):
    assert option.parse(option.default, source="test") == option.default
    assert option.parse(option.as_text(option.default), source="test") == option.default


def test_no_two_options_share_a_name_a_variable_or_a_key_of_the_peer():
    assert len({option.key for option in OPTIONS}) == len(OPTIONS)
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)
    peer_keys = [option.peer_key for option in OPTIONS if option.peer_key]
    assert len(set(peer_keys)) == len(peer_keys)


def test_the_peers_key_is_accepted_with_its_value_in_the_peers_unit(tmp_path):
    _write(tmp_path, "bookiePort = 4000\n[bookie]\ndiskCheckInterval = 2500\n")
    settings = load(environment={}, overrides=["zkTimeout=20000", "speculativeReadTimeout=1s"])
    assert settings.integer("bookie.port") == 4000
    assert settings.number("bookie.disk_check_interval_s") == 2.5
    assert settings.number("metadata.session_timeout_s") == 20.0
    assert settings.number("client.speculative_read_s") == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("64K", 65536), ("4 MiB", 4 << 20), ("1.5mb", 3 << 19), ("1G", 1 << 30)],
)
def test_sizes_may_have_a_unit(text, value):
    settings = load(environment={}, overrides=[f"client.read_batch_bytes={text}"])
    assert settings.integer("client.read_batch_bytes") == value


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3.0), ("250ms", 0.25), ("2 min", 120.0), ("1h", 3600.0)]
)
def test_durations_may_have_a_unit(text, value):
    settings = load(environment={}, overrides=[f"client.read_timeout_s={text}"])
    assert settings.number("client.read_timeout_s") == value


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("bookie.prot=1", "bookie.port"),
        ("bookiePrt=1", "bookiePort"),
        ("port=1", "port"),
        ("client.ack_quorum=1", "client.ack_quorum_size"),
        ("no.such.thing.at.all=1", "quorumbook config show"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(override, suggestion):
    with pytest.raises(ConfigError, match=r"\(--set\) is not an option") as caught:
        load(environment={}, overrides=[override])
    assert suggestion in str(caught.value).partition("is not an option")[2]


def test_an_unknown_variable_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean QUORUMBOOK_BOOKIE_PORT"):
        load(environment={"QUORUMBOOK_BOOKIE_PROT": "1"})


def test_an_unknown_section_and_an_unknown_key_of_a_file_name_the_file(tmp_path):
    path = _write(tmp_path, "[bookies]\nport = 1\n", "a.toml")
    with pytest.raises(ConfigError, match=r"bookies \(file .*a\.toml\).*did you mean bookie\?"):
        load(file=path, environment={})
    path = _write(tmp_path, "[bookie]\nprot = 1\n", "b.toml")
    with pytest.raises(ConfigError, match=r"bookie\.prot \(file .*b\.toml\).*bookie\.port\?"):
        load(file=path, environment={})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bookie.port=70000", r"out of bounds \(0 to 65535\)"),
        ("bookie.port=many", "is not an integer"),
        ("bookie.force_read_only=perhaps", "is not true or false"),
        ("client.read_batch_bytes=4 elephants", "is not a size"),
        ("client.read_timeout_s=soon", "is not a duration"),
        ("client.read_timeout_s=0", r"out of bounds \(at least 0.001\)"),
        ("client.digest_type=md5", "is not one of crc32c"),
        ("bookie.max_disk_usage=nan", "is not a number"),
        ("bookie.port", "write KEY=VALUE"),
    ],
)
def test_a_bad_value_is_refused_with_the_reason(override, message):
    with pytest.raises(ConfigError, match=message):
        load(environment={}, overrides=[override])


def test_a_value_of_the_wrong_toml_type_is_refused(tmp_path):
    for line in ("port = true", "port = 1.5", "host = 7", "port = [1]"):
        path = _write(tmp_path, f"[bookie]\n{line}\n", "c.toml")
        with pytest.raises(ConfigError, match=r"c\.toml"):
            load(file=path, environment={})


def test_quorums_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError) as caught:
        load(environment={}, overrides=["client.ack_quorum_size=4"])
    assert str(caught.value) == (
        "client.ack_quorum_size: 4 (--set) is out of bounds (1 to client.write_quorum_size, which"
        " is 3)"
    )


def test_a_missing_or_broken_file_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file=str(tmp_path / "none.toml"), environment={})
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(file=_write(tmp_path, "port = ", "d.toml"), environment={})
    (tmp_path / "e.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(file=str(tmp_path / "e.toml"), environment={})


def test_a_commands_own_option_replaces_a_value_and_says_so():
    settings = load(environment={}).replaced("bookie.port", 4003, "--port")
    assert (settings["bookie.port"].value, settings["bookie.port"].source) == (4003, "--port")
    with pytest.raises(ConfigError, match="--port"):
        settings.replaced("bookie.port", 99999, "--port")
