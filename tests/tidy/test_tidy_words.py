"""docs/words.md: the same act has the same word on every layer, and both twins have it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from documents import ROOT
from public_names import MODULES, does_something, exported_classes, line_of, public_names
from sources import tree_of

import quorumbook
import quorumbook.streams
import quorumbook.sync
import quorumbook.sync.streams

sys.path.insert(0, str(ROOT))
from tools.website import reference

LAYERS = ("Ledger", "Stream", "Partitioned")
#: What the expressions of the table begin with, and the class that it is of.
OWNERS = {
    "bk": "BookKeeper",
    "ns": "Namespace",
    "stream": "Stream",
    "orders": "PartitionedStream",
    "PartitionedStream": "PartitionedStream",
}
#: Acts that a layer's own word is better for; all others have one word.
_OWN_WORDS = {
    "create": "a ledger and a stream are made by what holds them",
    "open to write": "a ledger is written by whoever creates it",
    "open to read": "a ledger has no object of its own beside its reader",
    "read one after the other": "a reader of a ledger is asked for a range",
    "read many at a time": "partitions have no order that batches could keep",
    "follow while it is written": "a reader of a stream has a place of its own",
    "delete": "a ledger and a stream are deleted by what holds them",
}


def rows() -> dict[str, list[str]]:
    """Return the acts of the table, and the expressions of the three layers."""
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| [a-z]", line) and not line.startswith(("| act ", "| class "))
    ]
    return {act: [cell.strip("`") for cell in rest] for act, *rest in cells}


def expressions() -> list[tuple[str, str, str, str, str]]:
    """Return act, class, word and arguments of every expression, and the layer it is of."""
    found = []
    for act, cells in rows().items():
        for layer, cell in zip(LAYERS, cells, strict=True):
            if cell:
                match = re.fullmatch(r"(\w+)\.(\w+)\((.*)\)", cell)
                assert match is not None, cell
                owner, word, arguments = match.groups()
                kind = OWNERS.get(owner) or f"{layer}{owner.title()}"
                found.append((act, kind, word, arguments, layer))
    return found


def _class_of(kind: str, *modules: Any) -> Any:
    return next(getattr(module, kind) for module in modules if hasattr(module, kind))


@pytest.mark.parametrize(("act", "kind", "word", "arguments", "layer"), expressions())
def test_both_twins_have_every_word_of_the_table(
    act: str, kind: str, word: str, arguments: str, layer: str
) -> None:
    del layer
    ours = getattr(_class_of(kind, quorumbook, quorumbook.streams), word)
    theirs = _class_of(kind, quorumbook.sync, quorumbook.sync.streams)
    assert hasattr(theirs, word) or (word == "__aiter__" and hasattr(theirs, "__next__"))
    given = {name.strip() for name in re.findall(r"(\w+)=", arguments)}
    assert given <= inspect.signature(ours).parameters.keys()
    if act.startswith("open"):
        assert str(inspect.signature(ours).return_annotation).startswith("Opening[")


def test_the_same_act_has_the_same_word() -> None:
    differing = {}
    for act, _, word, _, _ in expressions():
        differing.setdefault(act, set()).add(word)
    assert {act for act, words in differing.items() if len(words) > 1} == set(_OWN_WORDS)


DOING = [
    pytest.param(name, kind, id=f"{module.__name__}.{name}")
    for module in MODULES
    for name, kind in exported_classes(module)
    if does_something(kind)
]


@pytest.mark.parametrize(("name", "kind"), DOING)
def test_every_public_name_of_a_class_that_does_something_is_for_programs(
    name: str, kind: type
) -> None:
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")
    assert line_of(name, kind) in text, "run tests/tidy/public_names.py, or make it private"


@pytest.mark.parametrize(("name", "kind"), DOING)
def test_every_public_name_says_what_it_is_for(name: str, kind: type) -> None:
    members = {each: inspect.getattr_static(kind, each) for each in public_names(kind)}
    assert [f"{name}.{each}" for each, value in members.items() if not inspect.getdoc(value)] == []


#: What people do not say, and what they say instead.
_NOT_SAID = {
    r"\b[Tt]he peer\b": "Apache BookKeeper, or a Java bookie",
    r"\bsay --yes\b": "add --yes",
    r"\banew\b": "again",
    r"(?<!there )\b(is|are) no (a |an )?(position|record|offset|option|text|JSON)\b": "is not a",
}
#: The same of documents; a sentence there names the one who acts.
_NOT_WRITTEN = {
    **_NOT_SAID,
    r"\bfor ever\b": "forever, or permanently",
    r"\bthat (is|are) none\b": "invalid",
    r"\bas ever\b": "as before, as usual, or still",
    r"\b(is|are) no (gap|frame|complete|directory)\b": "is not a",
    r"^(- |\| )?Who [^?|]*$": "name the one who acts",
    r"[a-z)][.;:] Who [^?|]*$": "name the one who acts",
    r"\b[Ww]ho(m)?ever\b": "name the one who acts: a client, every user, everybody",
    r"\bheed(s|ed|ing)?\b": "follow, respect, or use",
    r"\bno more\b(?! than)": "no longer",
    r"\bno sooner\b": "not earlier",
    r"\bthe very (?!same time)": "exactly the",
    r"\b[Ss]hall\b": "should, must, or will",
    r"\bnobody's\b": "of nobody, or name the owner that is missing",
    r"\b(by and by|for want of|in vain|likewise|lest|thrice)\b": "a common word",
}
_WRITTEN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reports"),
]


def prose(text: str) -> list[tuple[int, str]]:
    """Return the numbered lines of a document, without code."""
    is_code = False
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            found.append((number, re.sub(r"`[^`]*`", "``", line)))
    return found


def said(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the texts of a module that people may see: messages, help, and options' texts."""
    private = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            of_click = any("command" in ast.unparse(d) or "group" in ast.unparse(d)
                           for d in getattr(node, "decorator_list", ()))  # fmt: skip
            if not of_click and ast.get_docstring(node) is not None:
                private.add(id(getattr(node.body[0], "value", None)))
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in private
    ]


def test_messages_and_help_say_what_people_say() -> None:
    found = [
        f"{path.name}:{line}: {text!r}: say {better!r}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in said(tree_of(path))
        for wrong, better in _NOT_SAID.items()
        if re.search(wrong, text)
    ]
    assert found == []


@pytest.mark.parametrize("path", _WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_have_no_banned_phrases(path: Path) -> None:
    found = [
        f"{path.name}:{number}: {line!r}: say {better!r}"
        for number, line in prose(path.read_text(encoding="utf-8"))
        for wrong, better in _NOT_WRITTEN.items()
        if re.search(wrong, line)
    ]
    assert found == []


def docstrings() -> list[tuple[str, str]]:
    """Return the docstrings of what the site's reference shows, with the names of their objects."""
    found = {}
    for module in (*reference.MODULES, *reference.ERRORS):
        home = importlib.import_module(module)
        found[module] = inspect.getdoc(home) or ""
        names = reference.exported(module) if module in reference.MODULES else tuple(
            kind.__name__ for kind in reference.errors_of(module)
        )  # fmt: skip
        for name in names:
            value = getattr(home, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{module}.{name}"] = inspect.getdoc(value) or ""
            for each, member in inspect.getmembers(value) if inspect.isclass(value) else ():
                if not each.startswith("_") and isinstance(member, FunctionType | property):
                    found[f"{module}.{name}.{each}"] = inspect.getdoc(member) or ""
    return list(found.items())


def test_public_docstrings_have_no_banned_phrases() -> None:
    texts = docstrings()
    assert len(texts) > 500
    found = [
        f"{name}: {line!r}: say {better!r}"
        for name, text in texts
        for _, line in prose(text)
        for wrong, better in _NOT_WRITTEN.items()
        if re.search(wrong, line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["unlike the peer", "Say it anew.", "a value that is none", "It is for ever.", "is no gap,",
     "Who dies leaves a ledger.", "It ends; say --yes", "it reads as ever",
     "and whoever comes", "writers heed it", "it is no more", "at the very record", "it shall be",
     "it is nobody's", "tried no sooner"],
)  # fmt: skip
def test_a_banned_phrase_is_found_in_prose_and_not_in_code(line: str) -> None:
    def is_found(text: str) -> bool:
        return any(re.search(wrong, each) for wrong in _NOT_WRITTEN for _, each in prose(text))

    assert is_found(line)
    assert not is_found(f"```\n{line}\n```")
    assert not is_found(f"See `{line}` there.")
