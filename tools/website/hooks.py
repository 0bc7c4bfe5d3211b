"""MkDocs calls these functions while it builds the site.

Pages that come from the code are added, pages outside ``docs/`` get a place, links that lead out
of ``docs/`` are turned towards it, and whatever is wrong is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.website import commands, reference, sequence  # noqa: E402 - the path comes first

_LOG = logging.getLogger("mkdocs.quorumbook")

#: Pages that live beside ``docs/``, and where the site has them.
_ELSEWHERE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "project/examples.md",
    "bench/README.md": "project/bench.md",
    "README.md": "index.md",
}
#: What is one wide table needs the room beside it more than its few headings do.
_WIDE = {"explanation/operating-tools.md"}
#: How the search's worker makes the text of a state of its words.
_TEXT_OF_STATE = "e=e+s+o.id}return e"
_LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the version beside the name."""
    config.site_name = f"Quorumbook {reference.version()}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and what lives elsewhere."""
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for source, place in _ELSEWHERE.items():
        if place != "index.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, place, content=_turned(text, source, place)))
    for problem in reference.problems():
        _LOG.warning(problem)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links, draw sequences, and hold commands against the command line."""
    place = page.file.src_uri
    if place.startswith(("project/", "reports/")):
        # They tell of the work on the project; whoever searches wants to use it.
        page.meta["search"] = {"boost": 0.1}
    if place in _WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.generated_by is None:
        markdown = _turned(markdown, f"docs/{place}", place)
    if place == "commands.md":
        markdown = commands.with_usage(markdown)
    if not place.startswith(("project/", "reports/")):
        for problem in commands.problems(markdown):
            _LOG.warning("%s: %s", place, problem)
    return sequence.drawn(markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Mend the search's library, which takes one set of words for another.

    It tells the states of its automaton apart by a text: each letter that leads on, and the number
    of the state it leads to, without anything between them.  Where letters are digits, two states
    can have the same text; a word that begins like thousands then finds nothing at all
    (olivernn/lunr.js issue 503).  A comma behind each number makes the texts differ.
    """
    (worker,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js")
    code = worker.read_text(encoding="utf-8")
    if code.count(_TEXT_OF_STATE) != 1:
        _LOG.warning("%s: the text of a state is made otherwise than it was", worker.name)
    code = code.replace(_TEXT_OF_STATE, _TEXT_OF_STATE.replace("o.id", 'o.id+","'))
    worker.write_text(code, encoding="utf-8")


def _turned(text: str, source: str, place: str) -> str:
    """Turn the links of a file of the repository towards the site.

    Args:
        text: The file's.
        source: Where it is in the repository.
        place: Where it is on the site.
    """

    def turn(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        full = normpath(str(PurePosixPath(source).parent / target))
        if full in _ELSEWHERE:
            goal = _ELSEWHERE[full]
        elif full.startswith("docs/"):
            goal = full.removeprefix("docs/")
        elif (ROOT / full).exists():
            # The site shows pages; a file of the repository is named, and a test names itself.
            is_named = words.strip("`") == full or words.startswith("`test_")
            return words if is_named else f"{words} (`{full}`)"
        else:
            return match[0]
        start = str(PurePosixPath(place).parent)
        return f"[{words}]({relpath(goal, start)}{anchor})"

    parts = re.split(r"(^```.*?^```$|^    [^\n]*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if at % 2 else _LINK.sub(turn, part) for at, part in enumerate(parts))
