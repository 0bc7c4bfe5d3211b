"""What ``.option(...)`` and the path may say; no Spark needed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumbook.errors import ConfigError
from quorumbook.spark.options import Use
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.request.selection import Selected, parse_ledger_ids

URI = {"metadataServiceUri": "sqlite:///m.db"}


def read_options(use=None, **options):
    return ReadOptions.of({**URI, "path": "ledger:1", **options}, use)


def test_case_does_not_matter():
    assert read_options(MAXBATCHROWS="7").max_batch_rows == 7
    assert read_options(maxbatchrows="7").max_batch_rows == 7


def test_an_unknown_option_is_refused_with_the_nearest_names():
    with pytest.raises(ConfigError, match=r"no option maxBatchRow; the nearest are maxBatchRows"):
        read_options(maxBatchRow="7")
    with pytest.raises(ConfigError, match=r"client\.read_ahead_bytes"):
        read_options(**{"client.read_ahead_byte": "7"}).connection.client_options()


@pytest.mark.parametrize(("name", "use", "hint"), [
    ("kafka.bootstrap.servers", Use.READ, "metadataServiceUri"),
    ("subscribe", Use.READ_STREAM, "stream:NAME"),
    ("subscribePattern", Use.READ, "streamPattern"),
    ("assign", Use.READ, "orders/p0"),
    ("topic", Use.WRITE_STREAM, "save"),
    ("maxOffsetsPerTrigger", Use.READ_STREAM, "maxRecordsPerTrigger"),
    ("minOffsetsPerTrigger", Use.READ_STREAM, "minEntriesPerTrigger"),
    ("kafka.group.id", Use.READ_STREAM, "cursor"),
    ("groupIdPrefix", Use.READ_STREAM, "cursor"),
    ("kafka.security.protocol", Use.READ, "client\\. or tls\\."),
])  # fmt: skip
def test_an_option_of_kafkas_is_refused_with_what_stands_for_it_here(name, use, hint):
    with pytest.raises(ConfigError, match=f"no option {name}; .*{hint}"):
        read_options(use, **{name: "1"})


def test_a_table_of_sparks_catalog_is_refused_with_what_keeps_options():
    for told in {"provider": "quorumbook"}, {"owner": "me", "stream": "s"}:
        with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW v USING quorumbook OPTIONS"):
            read_options(**told)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client.auth_plugin", "os:system"),
        ("placement.rack_class", "os:system"),
        ("placement.rack_script", "/bin/true"),
    ],
)
def test_an_option_names_no_code(name, value, tmp_path):
    with pytest.raises(ConfigError, match="refused from here: an option of Spark"):
        read_options(**{name: value}).connection.client_options()
    section, _, key = name.partition(".")
    (tmp_path / "q.toml").write_text(f"[{section}]\n{key} = {value!r}\n")
    with pytest.raises(ConfigError, match="refused from here: an option of Spark"):
        read_options(configFile=str(tmp_path / "q.toml")).connection.client_options()


@pytest.mark.parametrize("name", ["password", "secret", "Token"])
def test_a_secret_is_refused_as_an_option(name):
    with pytest.raises(ConfigError, match="passwordFile"):
        read_options(**{name: "hush"})


def test_a_password_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "password"
    file.write_bytes(b"hush\n")
    assert read_options(passwordFile=str(file)).connection.password() == b"hush"
    monkeypatch.setenv("LEDGERS", "hush")
    assert read_options(passwordEnv="LEDGERS").connection.password() == b"hush"
    assert "hush" not in repr(read_options(passwordEnv="LEDGERS"))
    with pytest.raises(ConfigError, match=r"spark\.executorEnv\.NOWHERE"):
        read_options(passwordEnv="NOWHERE").connection.password()
    with pytest.raises(ConfigError, match="No such file"):
        read_options(passwordFile=str(tmp_path / "none")).connection.password()
    with pytest.raises(ConfigError, match="both"):
        read_options(passwordFile=str(file), passwordEnv="LEDGERS")


def test_what_is_no_value_is_refused():
    with pytest.raises(ConfigError, match=r"maxBatchBytes.*size"):
        read_options(maxBatchBytes="many")
    with pytest.raises(ConfigError, match="one of norecovery"):
        read_options(openMode="fence")


def test_an_option_for_another_use_says_for_which():
    assert read_options(Use.READ, openMode="recover").open_mode == "recover"
    with pytest.raises(ConfigError, match="openMode is for read, not for readStream"):
        read_options(Use.READ_STREAM, openMode="recover")


def test_the_cluster_must_be_named():
    with pytest.raises(ConfigError, match="metadataServiceUri is missing"):
        ReadOptions.of({"path": "ledger:1"})
    with pytest.raises(ConfigError, match="other processes"):
        ReadOptions.of({"path": "ledger:1", "metadataServiceUri": "memory://x"})


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (None, {}, "nothing says what is read"),
        ("orders", {}, "does not say what is read"),
        ("topic:orders", {}, "no 'topic' to read"),
        ("stream:", {}, "names no stream"),
        ("ledger:", {}, "name no ledger"),
        ("ledger:5-3", {}, "neither an id nor FIRST-LAST"),
        ("ledger:x", {}, "neither an id nor FIRST-LAST"),
        ("meta:ledger", {}, "did you mean ledgers"),
        ("stream:a", {"stream": "b"}, "both say"),
        ("stream:a", {"ledgerIds": "3"}, "contradict each other"),
        (None, {"stream": "a", "streamPattern": "b"}, "contradict each other"),
        (None, {"streamPattern": "("}, "not a regular expression"),
        (None, {"ledgerFilter": "owner"}, "KEY=VALUE"),
    ],
)
def test_a_path_that_says_nothing_sensible_is_refused(path, options, message):
    given_options = {**URI, **options}
    if path is not None:
        given_options["path"] = path
    with pytest.raises(ConfigError, match=message):
        ReadOptions.of(given_options)


def test_what_is_read_is_said_by_path_or_options():
    by_path = read_options(path="stream:eu/orders, b,eu/orders").selection
    assert by_path.kind is Selected.STREAM
    assert by_path.streams == ("eu/orders", "b")
    by_option = ReadOptions.of({**URI, "streams": "eu/orders,b"}).selection
    assert by_option == by_path
    filtered = ReadOptions.of({**URI, "ledgerFilter": "owner=me, x=1"}).selection
    assert filtered.ledger_filter == {"owner": b"me", "x": b"1"}
    assert filtered.ledgers == parse_ledger_ids("*")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))))
def test_ranges_of_ledgers_are_merged(ranges):
    text = ",".join(f"{first}-{first + more}" for first, more in ranges)
    merged = parse_ledger_ids(text)
    wanted = {n for first, more in ranges for n in range(first, first + more + 1)}
    assert [n for first, last in merged for n in range(first, last + 1)] == sorted(wanted)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(merged))


def test_amounts_of_the_source_have_units_and_a_refused_one_names_bounds_and_source():
    told = read_options(Use.READ_STREAM, maxTriggerDelay="1.5h", maxBytesPerTrigger="64M")
    assert (told.max_trigger_delay_s, told.max_bytes) == (5400.0, 64 << 20)
    with pytest.raises(
        ConfigError, match=r"maxBatchBytes: '2G' \(option\) is out of bounds \(1 to 1073741824\)"
    ):
        read_options(maxBatchBytes="2G")
