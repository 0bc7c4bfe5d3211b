"""The root of the command line: which groups there are, and how the process ends.

Results go to standard output, everything else to standard error.  Exit codes stand in
``errors.py``.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from quorumbook.cli.known.examples import add_examples

#: Name, where it is, one sentence for ``--help``; nothing is imported to print the list.
_COMMANDS: dict[str, tuple[str, str]] = {
    "standalone": ("cluster.standalone:standalone", "Run a whole cluster on this machine."),
    "demo": (
        "demo.commands:demo",
        "Write real events, kill a bookie meanwhile, read everything back.",
    ),
    "status": ("cluster.status:status", "Say whether the cluster is healthy, and what to do."),
    "top": ("diagnosis.top:top", "Show what the bookies do at the moment."),
    "doctor": (
        "diagnosis.doctor:doctor",
        "Check whether this machine is fit for a bookie and reaches the cluster.",
    ),
    "support-bundle": (
        "diagnosis.support_bundle:support_bundle",
        "Write a file without secrets for somebody who helps.",
    ),
    "cluster": ("cluster.commands:cluster", "Make a new cluster, and look at it."),
    "bookie": ("bookie.commands:bookie", "Run bookies and list them."),
    "disk": ("bookie.disk:disk", "Look through a stopped bookie's files, and mend them."),
    "ledger": ("ledger.commands:ledger", "Create, write, read, list and delete ledgers."),
    "stream": ("stream.commands:stream", "Create, write, read and truncate streams."),
    "recovery": (
        "bookie.recovery:recovery",
        "See which ledgers lack replicas, and switch their repair.",
    ),
    "spark": ("spark.commands:spark", "Run jobs over a whole cluster on Apache Spark."),
    "metadata": ("cluster.metadata:metadata", "Move a cluster's metadata, or keep it in a file."),
    "zookeeper": ("cluster.zookeeper:zookeeper", "Run a ZooKeeper for a cluster's metadata."),
    "console": ("cluster.admin:console", "Show a cluster in a browser."),
    "admin": ("cluster.admin:admin", "Serve the HTTP API and the console."),
    "token": ("cluster.tokens:token", "Make and revoke tokens for the HTTP API."),
    "config": ("config:config", "Show every option and where its value comes from."),
    "bench": ("bench:bench", "Measure a cluster."),
    "deploy": ("cluster.deploy:deploy", "Write the files that run a cluster for good."),
    "shell": ("shell.commands:shell", "Take the commands of Apache BookKeeper's shell."),
    "cheat": ("help:cheat", "Show the commands for one purpose, on one page."),
    "help": ("help:help_", "Explain an error, and what to do about it."),
    "context": ("cluster.contexts:context", "Name clusters, and choose one."),
    "completion": ("cluster.completion:completion", "Complete commands and names in a shell."),
}

#: What commands of the kind are called elsewhere.
_ELSEWHERE = {
    "ui": "console",
    "web": "console",
    "dashboard": "console",
    "health": "status",
    "check": "doctor",
    "init": "cluster init",
    "profile": "context",
    "version": "--version",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"quorumbook.cli.{module}"), attribute)
        add_examples(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a misspelt one gets the name of the nearest."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            elsewhere = _ELSEWHERE.get(args[0])
            close = [elsewhere] if elsewhere else difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        click.echo(f"quorumbook {version('quorumbook')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  quorumbook standalone --ephemeral",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.option("--metadata", metavar="URI", help="Where the cluster's metadata is.")
@click.option("--context", metavar="NAME", help="The cluster of this name.")
@click.option("--config", "config_file", metavar="FILE", help="Configuration file.")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Set an option.")
@click.option("-o", "--output", "output_form", metavar="FORM", help="Form of the output.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Log more.")
def root(**_given: object) -> None:
    """A replicated log store, compatible with Apache BookKeeper.

    First steps: `quorumbook standalone` runs a cluster in ./quorumbook-data;
    `echo hello | quorumbook ledger write` stores a line and prints the ledger's id;
    `quorumbook ledger read ID` prints it again.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if not __debug__:
        # Our invariants are asserts; without them damage could be written instead of reported.
        print("quorumbook does not run under python -O", file=sys.stderr)
        return 2
    _open_standard_files()
    try:
        result: Any = root.main(args=arguments, prog_name="quorumbook", standalone_mode=False)
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return result if isinstance(result, int) else 0


def _open_standard_files() -> None:
    """Put the null device where a caller closed standard input, output or error.

    Otherwise the next file or connection would get that number.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is taken, which is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            file = open(fd, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, file)


def _show(error: click.ClickException) -> None:
    """Print a usage error as one line with the way to the help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    from quorumbook.cli.explained.codes import code_of

    text = " ".join(error.format_message().split()).rstrip(".")
    more = f"(quorumbook help {code_of(error)})"
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        print(f"quorumbook: {text} {more}", file=sys.stderr)
    else:
        path = context.command_path
        text += " " if text.endswith("?") else "; "
        print(f"{path}: {text}`{path} --help` says what there is {more}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
