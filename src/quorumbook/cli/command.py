"""What every command is: its common options, and how it ends.

A command is declared with ``cls=ClusterCommand``, a group of them with ``cls=Commands``.  Errors
end as one line and an exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.errors import verdict
from quorumbook.cli.explained.codes import code_of, with_code
from quorumbook.cli.output import FORMATS, TABLE

#: The common options, which make the call and are no arguments of the command.
_OWN = ("metadata", "context", "config_file", "peer_file", "overrides", "is_verbose", "output_form",
        "log_format", "log_levels")  # fmt: skip
#: What other tools call commands.
_ELSEWHERE = {
    "add": "create", "new": "create", "rm": "delete", "remove": "delete", "list": "ls",
    "info": "show", "describe": "show", "cat": "read", "produce": "write", "append": "write",
    "subscribe": "consume", "follow": "tail", "status": "ls",
}  # fmt: skip
#: Longer than any.
_SENTENCE = 1000


def _log_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--log-format"], type=click.Choice(["text", "json"]),
            help="How a line of the log is written [default: text].",
        ),
        click.Option(
            ["--log-level", "log_levels"], metavar="[ROOM=]LEVEL", multiple=True,
            help="From which level on lines are written, everywhere or by one room: debug, info, "
                 "warning, error; may be given several times.",
        ),
    ]  # fmt: skip


class ClusterCommand(click.Command):
    """A command with the common options; its errors are one line and an exit code."""

    def __init__(
        self,
        *arguments: Any,
        forms: Sequence[str] = FORMATS,
        form: str = TABLE,
        has_metadata: bool = True,
        has_peer_file: bool = False,
        has_log: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._forms = tuple(forms)
        if has_log:
            self.params += _log_options()
        if has_metadata:
            self.params.append(
                click.Option(
                    ["--metadata"], metavar="URI",
                    help="Where the cluster's metadata is (also QUORUMBOOK_METADATA).",
                )
            )  # fmt: skip
            self.params.append(
                click.Option(["--context"], metavar="NAME", help="The cluster of this name.")
            )
        if has_peer_file:
            self.params.append(
                click.Option(
                    ["--conf", "peer_file"], metavar="FILE",
                    help="Read a Java bookie's bk_server.conf as well.",
                )
            )  # fmt: skip
        self.params += [
            click.Option(
                ["--config", "config_file"], metavar="FILE",
                help="Configuration file [default: quorumbook.toml here, or in /etc/quorumbook].",
            ),
            click.Option(
                ["--set", "overrides"], metavar="KEY=VALUE", multiple=True,
                help="Set an option; `quorumbook config show` lists them.",
            ),
            click.Option(["-v", "--verbose", "is_verbose"], is_flag=True,
                         help="Log more, and show the trace of an error."),
        ]  # fmt: skip
        if forms:
            self.params.append(
                click.Option(
                    ["-o", "--output", "output_form"],
                    type=click.Choice(forms),
                    default=form,
                    show_default=True,
                    help="Form of the output.",
                )
            )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an exception becomes a line on standard error."""
        own = {name: ctx.params.pop(name) for name in _OWN if name in ctx.params}
        self._take_from_before(ctx, own)
        ctx.obj = Call(**own, uses_contexts="metadata" in own)
        if ctx.obj.is_verbose:
            configure_logging(is_verbose=True)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except BaseExceptionGroup as group:
            return self._failed(_leaf(group), group, is_verbose=ctx.obj.is_verbose)
        except (Exception, KeyboardInterrupt) as error:
            return self._failed(error, error, is_verbose=ctx.obj.is_verbose)
        return result

    def _take_from_before(self, ctx: click.Context, own: dict[str, Any]) -> None:
        """Take the common options that stand before the command, too."""
        before = ctx.find_root().params if ctx.parent is not None else {}
        for name in ("metadata", "context", "config_file"):
            if name in own and own[name] is None:
                own[name] = before.get(name)
        own["is_verbose"] = own.get("is_verbose") or bool(before.get("is_verbose"))
        if "overrides" in own:
            own["overrides"] = (*(before.get("overrides") or ()), *own["overrides"])
        form = before.get("output_form")
        source = ctx.get_parameter_source("output_form")
        if form is None or source is click.core.ParameterSource.COMMANDLINE:
            return
        if form not in self._forms:
            known = ", ".join(self._forms) or "none"
            ctx.fail(f"-o {form} is not a form of this command's output; it has: {known}")
        own["output_form"] = form

    def _failed(self, error: BaseException, whole: BaseException, *, is_verbose: bool) -> int:
        result = verdict(error)
        if is_verbose and not isinstance(error, KeyboardInterrupt | BrokenPipeError):
            traceback.print_exception(whole)
        if result.message:
            print(f"quorumbook: {with_code(result.line(), code_of(error))}", file=sys.stderr)
        if isinstance(error, BrokenPipeError):
            # The interpreter flushes once more at its end and would complain then.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return result.code


class Commands(click.Group):
    """A group whose help says of each command what it does, to the end of the sentence."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one that others have under another name gets ours."""
        ours = _ELSEWHERE.get(args[0]) if args and args[0] not in self.commands else None
        if ours in self.commands:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{ours}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table of commands; click would cut it off at the width of the window."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(limit=_SENTENCE))
            for name, command in found
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def configure_logging(*, is_verbose: bool) -> None:
    """Send the library's log to standard error, for commands that run for long."""
    import logging

    from quorumbook.env.log import FloodFilter

    handler = logging.StreamHandler()
    handler.addFilter(FloodFilter())
    logging.basicConfig(
        level=logging.DEBUG if is_verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[handler],
    )
