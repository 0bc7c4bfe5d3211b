"""Samples sentences of the site, for somebody to say in words of their own.

    python -m tools.website.sentences [SEED] [COUNT] [--all]

A sentence that its reader has to read twice, or restates wrongly, is rewritten.  The same seed
gives the same sentences of the same pages.  They are those that are read and not looked up: README,
tutorials, how-tos, and what ``quorumbook help`` says; with ``--all`` of every page but reports, and
tables that name tests, which have other readers.  docs/reports/fresh-reader.md has what was found.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

from quorumbook.cli.explained.codes import explanations

ROOT = Path(__file__).parents[2]
_LEFT_OUT = {"track-record.md", "compatibility.md", "divergence.md", "protocol.md"}
_READ = ("README", "docs/tutorials/", "docs/how-to/", "quorumbook help")
_SENTENCE = re.compile(r"[A-Z`][^.!?]*(?:[.!?](?=\S)[^.!?]*)*[.!?](?=\s|$)")


def sentences() -> list[tuple[str, str]]:
    """Return place and sentence, for all sentences of seven words and more."""
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", *sorted(docs.rglob("*.md"))]
    texts = [
        (str(page.relative_to(ROOT)), line)
        for page in pages
        if page.parent.name != "reports" and page.name not in _LEFT_OUT
        for line in prose(page.read_text(encoding="utf-8"))
    ]
    texts += [
        (f"quorumbook help {code}", text)
        for code, explained in explanations().items()
        for text in (explained.happened, *explained.advice)
    ]
    return [
        (place, found)
        for place, line in texts
        for found in _SENTENCE.findall(line)
        if len(found.split()) >= 7
    ]


def prose(text: str) -> list[str]:
    """Return the lines and the cells of tables that hold sentences, without code."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found: list[str] = []
    for line in text.splitlines():
        if not line.startswith(("    ", "#")):
            found += (cell.strip(" -") for cell in line.split(" | "))
    return found


def main() -> None:
    """Print the sample."""
    words = [word for word in sys.argv[1:] if word != "--all"]
    seed, count = int(words[0]) if words else 21, int(words[1]) if len(words) > 1 else 20
    found = sentences()
    if "--all" not in sys.argv:
        found = [each for each in found if each[0].startswith(_READ)]
    chosen = random.Random(seed).sample(found, count)
    for number, (page, sentence) in enumerate(chosen, 1):
        print(f"{number:2}. {page}: {sentence.strip('| ')}")


if __name__ == "__main__":
    main()
