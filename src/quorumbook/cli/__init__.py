"""The command ``quorumbook``: one file for a group of commands.

``main.py`` knows the groups by name and imports one only when it is used, so that ``--help`` and
errors come at once.  ``command.py`` holds what every command takes (metadata URI, configuration,
output format) and ``call.py`` what it gets for that, ``errors.py`` turns an exception into one
line and an exit code, ``output.py`` prints results.  This is the room that composes the others:
it makes a bookie's and a client's options out of the configuration.
"""

from __future__ import annotations


def main() -> int:
    """Run the command line; what ``quorumbook`` and ``python -m quorumbook`` call."""
    try:
        # Imported here, so that Ctrl-C is answered without a trace also while this takes time.
        from quorumbook.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
