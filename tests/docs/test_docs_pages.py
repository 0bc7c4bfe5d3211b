"""Tutorials do what they show when they are typed from top to bottom."""

from __future__ import annotations

import random
import re
import socket

import pytest

from docs.pages import DOCS, ROOT, Reader, fits
from doubles.clusters import local_cluster

TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
#: These need Java, and have tests of their own.
WITH_JAVA = {"spark-pipeline.md", "java-cluster.md", "pulsar.md"}
#: How-tos that are run; the commands of the others are held against the command line.
HOW_TOS = (
    "elect-a-leader", "keep-a-table", "read-with-pandas", "store-a-file", "take-over-a-stream",
    "test-your-program", "use-without-asyncio", "write-exactly-once", "write-fast",
)  # fmt: skip
#: In these a killed process holds others up until its session ends.
WITH_KILLED = {"state-machine", "consumer-group"}
_PORTS = (3181, 3182, 3183, 3184)


def free_ports() -> dict[str, str]:
    """Return four free ports in a row, in the place of those that pages show."""
    while True:
        first = random.randrange(15000, 30000)
        with socket.socket() as a, socket.socket() as b, socket.socket() as c, socket.socket() as d:
            try:
                for at, probe in enumerate((a, b, c, d)):
                    probe.bind(("127.0.0.1", first + at))
            except OSError:
                continue
        return {str(shown): str(first + at) for at, shown in enumerate(_PORTS)}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "page",
    [p for p in TUTORIALS if p.name not in WITH_JAVA | {"index.md"}],
    ids=lambda page: page.stem,
)
def test_a_tutorial_can_be_typed_from_top_to_bottom(page, tmp_path):
    with Reader(tmp_path, free_ports()) as reader:
        if page.stem in WITH_KILLED:
            reader.miss_the_killed_soon()
        reader.follow(page.read_text(encoding="utf-8"))


cluster = local_cluster(scope="module")


@pytest.mark.parametrize("name", HOW_TOS)
def test_a_how_to_does_what_it_shows(name, cluster, tmp_path):
    with Reader(
        tmp_path, {"sqlite:///quorumbook-data/metadata.db": cluster.metadata_uri}
    ) as reader:
        reader.use(cluster.metadata_uri)
        reader.follow((DOCS / "how-to" / f"{name}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("expected", "printed", "is_fit"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc", False),
        ("a ... c", "a b c", True),
        ("a ... c", "a b d", False),
        ("...\nb", "x\ny\nb", True),
        ("a\n...", "a", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a", "a\nb", False),
        ("", "a", False),
    ],
)
def test_dots_stand_for_anything_and_nothing_else_does(expected, printed, is_fit):
    assert fits(expected, printed) is is_fit


def test_a_page_that_shows_something_else_is_found(tmp_path):
    page = "```sh\nexport A=1\n```\n```sh\necho $A\n```\n```text\n2\n```\n"
    with Reader(tmp_path, {}) as reader, pytest.raises(AssertionError, match="shown:\n2"):
        reader.follow(page)
    with Reader(tmp_path, {}) as reader, pytest.raises(AssertionError, match="ends with 1"):
        reader.follow("```sh\nfalse\n```\n")


def test_a_page_s_files_and_environment_stay(tmp_path):
    page = '```python title="a.py"\nprint(3181)\n```\n'
    page += "```sh\nA=4 && python a.py\n```\n```text\n7\n```"
    with Reader(tmp_path, {"3181": "7"}) as reader:
        reader.follow(page)


def test_no_tutorial_or_how_to_is_long_and_each_begins_with_an_example():
    """Whatever the navigation shows as one, wherever its file lies."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    sections = re.split(r"^  - ([\w-]+):", navigation, flags=re.MULTILINE)
    shown = dict(zip(sections[1::2], sections[2::2], strict=True))
    pages = re.findall(r"[\w/-]+\.md", shown["Tutorials"] + shown["How-to"])
    assert set(pages) >= {
        page.relative_to(DOCS).as_posix() for page in [*TUTORIALS, *(DOCS / "how-to").glob("*.md")]
    }
    for page in pages:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert len(text.split()) <= 900, page
        if not page.endswith("/index.md"):
            first = re.search(r"^ *```", text, re.MULTILINE)
            assert first is not None, page
            assert text[: first.start()].count("\n") < 25, f"{page}: no example on top"


def test_code_within_a_list_does_not_end_the_list():
    """The site's Markdown takes four blanks for within; with fewer each item is number 1."""
    pages = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "reports"]
    found = [
        f"{page.relative_to(DOCS)}: {line!r}"
        for page in pages
        for line in re.findall(r"^ {1,3}```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    # A line further left ends the code, and what is left of it is text.
    found += [
        f"{page.relative_to(DOCS)}: {line!r}"
        for page in pages
        for code in re.findall(
            r"^    ```\w*\n(.*?)^    ```$",
            page.read_text(encoding="utf-8"),
            re.DOTALL | re.MULTILINE,
        )
        for line in code.splitlines()
        if line and not line.startswith("    ")
    ]
    assert found == []


def test_each_word_of_the_glossary_leads_to_the_page_that_explains_it():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z -]+) \| (.*) \|$", text, re.MULTILINE)
    words = {word: meaning for word, meaning in rows if word != "word"}
    assert len(words) > 40
    assert list(words) == sorted(words, key=lambda word: word.replace("-", ""))
    assert [word for word, meaning in words.items() if "](" not in meaning] == []
