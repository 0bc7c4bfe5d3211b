r"""Every command and option that a page shows is one that there is.

problems("```sh\nquorumbook ledger raed 0\n```")  ->  ["no such command: quorumbook ledger raed"]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

import click

from quorumbook.cli.main import root

_BLOCK = re.compile(r"^```(?:sh|console|bash)?\n(.*?)^```$|((?:^(?: {4}|\t).*\n?)+)", re.M | re.S)
_INLINE = re.compile(r"`(quorumbook [^`\n]+)`")
_HEADING = re.compile(r"^### `(quorumbook [^`]+)`$", re.M)
#: Where a line runs the command: at its start, behind variables or a path, or in a container.
_RUN = re.compile(r"(?:^(?:sudo |time |[A-Z_]+=\S+ )*(?:\S*/)?|-- )(quorumbook [a-z-].*)")
_PLACEHOLDER = re.compile(r"^[A-Z][A-Z_-]*$|^…$|^\.\.\.$")


@cache
def leaves() -> dict[str, click.Command]:
    """Return every command that is no group, by its full name."""
    found: dict[str, click.Command] = {}

    def walk(command: click.Command, path: str) -> None:
        if not isinstance(command, click.Group):
            found[path] = command
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            walk(child, f"{path} {name}")

    walk(root, "quorumbook")
    return found


@cache
def groups() -> frozenset[str]:
    """Return the names of all groups."""
    return frozenset(
        " ".join(path.split()[:n]) for path in leaves() for n in range(1, len(path.split()))
    )


def with_usage(markdown: str) -> str:
    """Put the usage of each command behind its heading."""

    def usage(match: re.Match[str]) -> str:
        path = " ".join(word for word in match[1].split() if word.islower())
        command = leaves().get(path)
        if command is None:
            return match[0]
        context = click.Context(command, info_name=path)
        pieces = " ".join(command.collect_usage_pieces(context))
        return f"{match[0]}\n\n```\n{path} {pieces}\n```"

    return _HEADING.sub(usage, markdown)


def shown(markdown: str) -> Iterator[str]:
    """Yield each command line of a page."""
    for match in _BLOCK.finditer(markdown):
        text = re.sub(r"\\\n\s*", " ", match[1] or match[2] or "")
        for line in text.splitlines():
            for piece in re.split(r"\$\(|[;|&]+ ", line.strip().removeprefix("$ ")):
                at = _RUN.search(piece.strip())
                if at:
                    yield at[1]
    for match in _INLINE.finditer(markdown):
        yield match[1]


def problems(markdown: str) -> list[str]:
    """Return what is wrong with the commands of a page."""
    found = []
    for line in shown(markdown):
        wrong = _problem(line)
        if wrong:
            found.append(wrong)
    return found


def _problem(line: str) -> str:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in a sentence
        words = line.split()
    path, rest = "quorumbook", words[1:]
    while rest and f"{path} {rest[0]}" in groups() | leaves().keys():
        path, rest = f"{path} {rest[0]}", rest[1:]
    command = leaves().get(path)
    if command is None:
        following = rest[0] if rest else ""
        if not following or following.startswith("-") or _PLACEHOLDER.match(following):
            return ""
        return f"no such command: {path} {following}"
    known = {name for parameter in command.params for name in parameter.opts}
    known |= {name for parameter in command.params for name in parameter.secondary_opts}
    known |= {"-h", "--help"}
    for word in rest:
        name = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*", name) and name not in known:
            return f"no such option: {path} {name}"
    return ""
