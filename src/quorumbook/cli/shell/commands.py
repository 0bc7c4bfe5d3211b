"""``quorumbook shell``: runs our command for one of ``bin/bookkeeper shell``, and says which."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from quorumbook.cli.output import JSON, TABLE, Output
from quorumbook.cli.shell.names import ARGUMENT, NAMES, Given, Named


class ShellCommand(click.Command):
    """Everything behind the name belongs to the other command, ``-h`` and ``--help`` included."""

    allow_interspersed_args = False
    ignore_unknown_options = True


@click.command(cls=ShellCommand)
@click.option("--explain", is_flag=True, help="Say which command of ours it is, and don't run it.")
@click.argument("name", required=False, metavar="[NAME]")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
@click.pass_context
def shell(context: click.Context, explain: bool, name: str | None, words: tuple[str, ...]) -> Any:
    """Take a command of Apache BookKeeper's shell, and answer with ours.

    Without NAME it lists what each of them is here.  `quorumbook --metadata URI shell NAME` says
    for which cluster.
    """
    before = context.find_root().params
    if name in (None, "help") and not words:
        Output(before.get("output_form") or TABLE).rows(_rows(), ["name", "ours"])
        return 0
    if name == "help":
        name, words, explain = words[0], (), True
    assert name is not None
    ours = our_words(name, words, note=lambda text: print(f"quorumbook: {text}", file=sys.stderr))
    line = f"quorumbook {shlex.join(ours)}"
    if explain:
        form = before.get("output_form")
        print(line) if form != JSON else Output(JSON).record({"name": name, "ours": line})
        return 0
    print(line, file=sys.stderr)
    root = context.find_root()
    return root.command.main(
        args=[*_common(before), *ours], prog_name=root.info_name, standalone_mode=False
    )


def _rows() -> list[dict[str, object]]:
    return [
        {"name": name, "ours": f"quorumbook {each.ours}" if each.ours else each.instead}
        for name, each in NAMES.items()
        if name != "help"
    ]


def _common(before: dict[str, Any]) -> list[str]:
    """Return the common options that stood before ``shell``."""
    words = []
    for name, flag in (("metadata", "--metadata"), ("context", "--context"),
                       ("config_file", "--config"), ("output_form", "--output")):  # fmt: skip
        if before.get(name) is not None:
            words += [flag, before[name]]
    for text in before.get("overrides") or ():
        words += ["--set", text]
    return [*words, "--verbose"] if before.get("is_verbose") else words


def our_words(name: str, words: Sequence[str], *, note: Any) -> list[str]:
    """Return the words of our command.

    Args:
        name: The other shell's command.
        words: What is behind it.
        note: Told what of it changes nothing.

    Raises:
        UsageError: There is no such command, option, or counterpart; the message says which
            there are, or what to do instead.
    """
    named = NAMES.get(name)
    if named is None:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else "`quorumbook shell` lists those there are"
        raise click.UsageError(f"the shell of Apache BookKeeper has no command {name}; {hint}")
    if named.instead:
        raise click.UsageError(f"{name} has no counterpart. {named.instead}")
    return _translated(name, named, list(words), note)


def _translated(name: str, named: Named, words: list[str], note: Any) -> list[str]:
    ours, options, arguments = named.ours, [], []
    defaults = dict(named.defaults)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            if not named.arguments:
                note(f"{word!r} is left out: `quorumbook {named.ours}` takes no argument")
            arguments += word.split(",") if named.arguments else []
            continue
        spelt, equals, value = word.lstrip("-").partition("=")
        given = _option(name, named, spelt)
        if given.takes and not equals:
            if not words:
                raise click.UsageError(f"{name} {word}: a value is missing behind it")
            value = words.pop(0)
        if given.refusal:
            raise click.UsageError(f"{name} {word}: {given.refusal}")
        if given.note:
            note(f"{word}: {given.note}")
        ours = given.replaces or ours
        if given.to == ARGUMENT:
            arguments.append(value)
        elif given.to:
            options += [given.to, value] if given.takes else [given.to]
            defaults.pop(given.to, None)
    usual = [each for pair in defaults.items() for each in pair]
    return [*ours.split(), *options, *usual, *arguments]


def _option(name: str, named: Named, spelt: str) -> Given:
    for given in named.options:
        if spelt in given.names:
            return given
    known = ", ".join(f"-{given.names[0]}" for given in named.options) or "none"
    raise click.UsageError(f"{name} has no option -{spelt}; it has: {known}")
