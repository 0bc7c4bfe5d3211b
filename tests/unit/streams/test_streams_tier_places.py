"""Where files are: what may be said of a place, and what is put together from it."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.errors import ConfigError
from quorumbook.streams.tier import places

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("location", "inside"),
    [
        ("/data/tier", "/data/tier/a/b"),
        ("/data/tier/", "/data/tier/a/b"),
        ("what?/tier", "what?/tier/a/b"),
        ("s3://bucket", "s3://bucket/a/b"),
        ("s3://bucket/dir/?scheme=http&region=x", "s3://bucket/dir/a/b?scheme=http&region=x"),
    ],
)
def test_options_of_a_uri_stay_behind_what_is_added(location: str, inside: str) -> None:
    assert places.below(location, "a", "b") == inside
    assert places.below(places.below(location, "a"), "b") == inside
    assert places.relative(inside, location) == "a/b"


def test_names_of_streams_become_files_names_that_no_uri_escapes() -> None:
    names = ["orders", "eu/orders", "eu~2Forders", "eu%2Forders", "a?b#c", "größe", "a" * 300]
    names += ["a" * 301, "ö" * 100]
    safe = [places.safe_name(name) for name in names]
    assert safe[:2] == ["orders", "eu~2Forders"]
    assert len(set(safe)) == len(safe)
    for each in safe:
        assert len(each) <= 150
        assert set(each) <= set("~._-") | {c for c in map(chr, range(128)) if c.isalnum()}


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://key:{SECRET}@bucket/dir",
        f"s3a://{SECRET}@bucket/dir",
        f"s3://key:{SECRET}/with/slashes@bucket/dir",
        f"hdfs://user:{SECRET}@host:8020/dir",
        f"abfs://:{SECRET}@account.dfs.core.windows.net/dir",
        f"abfs://c@account.dfs.core.windows.net/dir?client_secret={SECRET}",
        f"s3://bucket/dir?region=x&secret_key={SECRET}",
    ],
)
def test_credentials_in_a_uri_are_refused_without_saying_them(uri: str) -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        places.check_uri(uri)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "/a:b@c/d",
        "s3://bucket/a:b@c?endpoint_override=http://keys.example:9000&region=x",
        "hdfs://user@host:8020/dir",
        "abfs://container@account.dfs.core.windows.net/dir",
        "gs://bucket/dir",
    ],
)
def test_places_without_credentials_are_taken(location: str) -> None:
    places.check_uri(location)


class Store:
    """A bucket of which one may be told or not."""

    type_name = "s3"

    def __init__(self, *refused: str) -> None:
        self._refused = refused

    def get_file_info(self, asked: Any) -> Any:
        fs = pytest.importorskip("pyarrow.fs", reason="pip install 'quorumbook[spark]'")
        what = "bucket" if isinstance(asked, str) else "list"
        if what in self._refused:
            raise OSError("ACCESS_DENIED")
        return fs.FileInfo("bucket", type=fs.FileType.Directory) if what == "bucket" else []


def test_who_may_see_a_part_of_a_bucket_may_put_files_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(*refused: str) -> None:
        monkeypatch.setattr(places, "file_system", lambda _: (Store(*refused), "bucket/dir"))
        places.check_place("s3://bucket/dir")

    check()
    check("bucket")
    with pytest.raises(ConfigError, match="ACCESS_DENIED"):
        check("bucket", "list")
