"""``quorumbook help`` and ``cheat``: what an error means, and the commands for a purpose."""

from __future__ import annotations

import difflib
import sys

import click

from quorumbook.cli.explained.codes import explanations
from quorumbook.cli.known.cheats import CHEATS


@click.command(name="help")
@click.argument("code", required=False, metavar="[CODE]")
def help_(code: str | None) -> int:
    r"""Explain an error: what happened, and what to do.

    The code stands at the end of an error's line.  Without one, all codes are listed.

    \b
    Example:
      quorumbook help ledger-fenced
    """
    known = explanations()
    if code is None:
        for name, explained in known.items():
            print(f"{name:28}{explained.happened}")
        return 0
    wanted = code.lower().removesuffix("error")
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "`quorumbook help` lists all codes"
        raise click.UsageError(f"there is no error '{code}'; {hint}")
    happened, advice, kind = known[wanted]
    print(happened)
    for sentence in advice:
        print(f"\n- {sentence}")
    if kind is not None:
        print(f"\nIn Python: {kind.__module__}.{kind.__name__}")
    return 0


@click.command()
@click.argument("topic", required=False, metavar="[TOPIC]", type=click.Choice(list(CHEATS)))
def cheat(topic: str | None) -> None:
    r"""Show the commands for one purpose, on one page.

    Without TOPIC it lists the topics.

    \b
    Example:
      quorumbook cheat streams
    """
    if topic is None:
        for name, (about, _) in CHEATS.items():
            print(f"{name:10}{about}")
        print("\nquorumbook cheat TOPIC shows its commands", file=sys.stderr)
        return
    for about, command in CHEATS[topic][1]:
        print(f"# {about}\n{command}" if about else command)
