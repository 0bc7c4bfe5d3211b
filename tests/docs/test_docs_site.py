"""The site builds without a warning, needs nothing from elsewhere, and finds what is stale."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tools.website import commands, reference, sequence, versions  # noqa: E402 - the path comes first


def test_the_commands_that_take_pictures_of_pages_can_begin():
    for name in ("admin.contact_sheet", "docs.contact_sheet"):
        assert importlib.import_module(name).main


@pytest.mark.xdist_group("site")
def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]+src=\"?https?://", text) == [], page
        assert re.findall(r"<link[^>]+rel=\"?(?:stylesheet|preconnect)[^>]*https?://", text) == []
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8")


def test_a_picture_on_white_is_turned_round_on_dark_pages():
    style = (ROOT / "docs/site.css").read_text(encoding="utf-8")
    on_white = [picture.name for picture in (ROOT / "docs/images").glob("*.svg")
                if re.search(r'fill[:=] ?"?#fff', picture.read_text(encoding="utf-8"))]  # fmt: skip
    assert len(on_white) > 1
    for name in on_white:
        assert f'[src$="{name}"]' in style


@pytest.mark.xdist_group("site")
def test_a_wide_table_has_the_room_and_no_paths_of_tests(site):
    page = (site / "explanation" / "operating-tools.html").read_text(encoding="utf-8")
    assert "<code>test_one_verdict_says_what_is_wrong_from_well_to_critical</code>" in page
    assert "tests/surfaces" not in page
    assert re.search(r'data-md-type="?toc"? hidden', page)


@pytest.mark.xdist_group("site")
def test_every_exported_name_is_on_a_page_and_in_the_search(site):
    found = {each["location"] for each in _index(site)}
    for module in reference.MODULES:
        for name in reference.exported(module):
            assert f"reference/api/{module}.html#{module}.{name}" in found
    for module in ("quorumbook.errors", "quorumbook.streams.errors"):
        for kind in reference.errors_of(module):
            assert f"reference/api/{module}.html#{module}.{kind.__name__}" in found


@pytest.mark.xdist_group("site")
def test_a_command_s_usage_is_printed_behind_its_heading(site):
    text = (site / "commands.html").read_text(encoding="utf-8")
    assert "quorumbook ledger read [OPTIONS] ID" in re.sub(r"<[^>]+>", "", text)


def _index(site):
    return json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("quorumbook ledger raed 0", "no such command: quorumbook ledger raed"),
        ("quorumbook ledger read 0 --frist 3", "no such option: quorumbook ledger read --frist"),
        ("A=b /opt/bin/quorumbook leger ls", "no such command: quorumbook leger"),
        ("echo hello | quorumbook ledger wirte", "no such command: quorumbook ledger wirte"),
        ('echo "$(quorumbook bookie lss -o raw)"', "no such command: quorumbook bookie lss"),
        ("kubectl exec b -- quorumbook bookie dran x", "no such command: quorumbook bookie dran"),
    ],
)  # fmt: skip
def test_a_stale_command_or_option_is_found(line, wrong):
    assert commands.problems(f"```sh\n{line}\n```\n") == [wrong]
    assert commands.problems(f"    {line}\n") == [wrong]


def test_commands_that_there_are_pass():
    assert (
        commands.problems("```sh\nquorumbook ledger read 0 --first 3 \\\n  --last 4\n```\n") == []
    )
    assert commands.problems("`quorumbook spark JOB` and `quorumbook COMMAND --help`") == []
    assert commands.problems("    kubectl exec quorumbook bookie-3\n") == []


def test_versions_are_ordered_by_number_and_the_first_page_leads_to_the_newest(tmp_path):
    site = tmp_path / "built"
    site.mkdir()
    for version in ("0.9.0", "1.0.0", "0.10.0", "1.0.0rc1"):
        (site / "index.html").write_text(version)
        found = versions.placed(site, tmp_path / "all", version)
    assert found == ["1.0.0", "1.0.0rc1", "0.10.0", "0.9.0"]
    assert (tmp_path / "all" / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert "url=1.0.0/index.html" in (tmp_path / "all" / "index.html").read_text()
    listed = json.loads((tmp_path / "all" / "versions.json").read_text())
    assert [each["aliases"] for each in listed] == [["latest"], [], [], []]


def test_a_name_without_a_docstring_is_found(monkeypatch):
    class Bare:
        def method(self):
            pass

        method.__module__ = "quorumbook.example"

    monkeypatch.setattr("quorumbook.Entry", Bare, raising=False)
    assert "quorumbook.Entry has no docstring" in reference.problems()
    assert "quorumbook.Entry.method has no docstring" in reference.problems()


def test_a_sequence_is_drawn_and_a_slip_in_it_is_an_error():
    picture = sequence.drawn("```sequence\na, b\na -> b: add\nb -x a: lost\nnote b: safe\n```\n")
    assert picture.startswith("<figure><svg")
    assert picture.count("<line") == 4
    assert ">add<" in picture
    with pytest.raises(ValueError, match="no such actor: 'c'"):
        sequence.svg("a, b\na -> c: add")
    with pytest.raises(ValueError, match="neither a message nor a note"):
        sequence.svg("a, b\na => b: add")
