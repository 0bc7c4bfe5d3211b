"""``quorumbook help``: what an error means, and what to do about it."""

from __future__ import annotations

import difflib
import sys

import click

from quorumbook.cli.errors import WRONG_USE
from quorumbook.cli.explained import ADVICE, happened, kinds


@click.command(name="help")
@click.argument("code", required=False, metavar="[CODE]")
def help_(code: str | None) -> int:
    r"""Explain an error: what happened, and what to do.

    The code stands at the end of an error's line.  Without one, all codes are listed.

    \b
    Example:
      quorumbook help ledger-fenced
    """
    known = kinds()
    if code is None:
        for name, kind in known.items():
            print(f"{name:28}{happened(kind)}")
        return 0
    wanted = code.lower().removesuffix("error")
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else "`quorumbook help` lists all codes"
        print(f"quorumbook: there is no error '{code}'; {hint}", file=sys.stderr)
        return WRONG_USE
    print(happened(known[wanted]))
    for sentence in ADVICE[wanted]:
        print(f"\n- {sentence}")
    print(f"\nIn Python: {known[wanted].__module__}.{known[wanted].__name__}")
    return 0
