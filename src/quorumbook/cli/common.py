"""What every command takes, and what it gets for it.

A command is declared with ``cls=Command`` and receives a ``Call`` as its first argument
(``click.pass_obj``): the configuration with the source of each value, the metadata URI, the
output form, and an event loop to run a coroutine on.  Errors end as one line.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumbook.cli.errors import verdict
from quorumbook.cli.explained.codes import code_of, with_code
from quorumbook.cli.output import FORMATS, TABLE, Output

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from quorumbook import BookKeeper
    from quorumbook.config import Settings

T = TypeVar("T")

#: How long a thread that computes keeps the interpreter from others.  An entry needs it back some
#: five times on its way: the loop after each wait, the journal's thread after write and sync.
#: Beside a checkpoint that computed, each of them took the interpreter's own 5 ms: 23 ms for one
#: write and sync where it is 3 without.
_SWITCH_INTERVAL_S = 0.0002
_OWN = ("metadata", "context", "config_file", "peer_file", "overrides", "is_verbose", "output_form",
        "log_format", "log_levels")  # fmt: skip
#: The source of what ``--log-format`` and ``--log-level`` say.
_OPTION = "command line"


class Call:
    """One invocation of a command."""

    def __init__(
        self,
        *,
        config_file: str | None,
        overrides: Sequence[str],
        is_verbose: bool,
        peer_file: str | None = None,
        metadata: str | None = None,
        context: str | None = None,
        output_form: str = TABLE,
        log_format: str | None = None,
        log_levels: Sequence[str] = (),
        uses_contexts: bool = True,
    ) -> None:
        if context and metadata:
            raise click.UsageError("--metadata and --context both say which cluster; give one")
        self._context = context
        #: False: the command makes a cluster of its own, or is about none.
        self._uses_contexts = uses_contexts
        self._metadata = metadata
        self._config_file = config_file
        #: The peer's configuration file that is read as well, or None.
        self.peer_file = peer_file
        self._overrides = overrides
        self.is_verbose = is_verbose
        self._log = (("log.format", log_format), ("log.level", ",".join(log_levels)))
        self.output = Output(output_form)

    @property
    def config_path(self) -> str:
        """The configuration file that says where the cluster is, absolute; empty if none does."""
        named = self._config_file or os.environ.get("QUORUMBOOK_CONFIG")
        kind, _, path = self.settings["metadata.uri"].source.partition(" ")
        named = named or (path if kind == "file" else None)
        return os.path.abspath(named) if named else ""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Options as they were given."""
        return tuple(self._overrides)

    @functools.cached_property
    def settings(self) -> Settings:
        """Every option's value; read when first asked for."""
        from quorumbook.cli.known.context_file import settings_meant

        settings, self._config_file = settings_meant(
            config_file=self._config_file,
            peer_file=self.peer_file,
            overrides=self._overrides,
            metadata=self._metadata,
            context=self._context,
            uses_contexts=self._uses_contexts,
        )
        for key, value in self._log:
            if value:
                settings = settings.replaced(key, value, _OPTION)
        return settings

    @property
    def metadata_uri(self) -> str:
        """Where the cluster's metadata is."""
        uri = self.settings.text("metadata.uri")
        if uri.startswith("memory://"):
            from quorumbook.env.shown import shown
            from quorumbook.errors import ConfigError

            raise ConfigError(
                f"metadata URI {shown(uri)} is for one process and would end with this command;"
                " use sqlite:///FILE"
            )
        return uri

    def connect(self, **least: int) -> BookKeeper:
        """Return a client of the cluster; use it with ``async with``.

        Args:
            least: numbers of the client section that must not be smaller than this.
        """
        import logging

        from quorumbook.client.client import BookKeeper
        from quorumbook.config.made import client_options

        if not self.is_verbose:
            logging.basicConfig(level=logging.WARNING, format="quorumbook: %(message)s")
            # Which bookie is avoided for how long matters to programs that go on for longer.
            logging.getLogger("quorumbook.client.bookies").setLevel(logging.ERROR)
        options = client_options(self.settings)
        raised = {name: max(getattr(options, name), number) for name, number in least.items()}
        return BookKeeper(self.metadata_uri, options=dataclasses.replace(options, **raised))

    def new_ledger_options(
        self, ensemble_size: int | None, write_quorum: int | None, ack_quorum: int | None
    ) -> dict[str, Any]:
        """Return keyword arguments of ``create_ledger``: what the command says, or is configured.

        A command that asks for a small ensemble alone gets quorums that fit into it.
        """
        from quorumbook.protocol.digest import DigestType

        settings = self.settings
        ensemble = ensemble_size or settings.integer("client.ensemble_size")
        writes = write_quorum or min(settings.integer("client.write_quorum_size"), ensemble)
        acks = ack_quorum or min(settings.integer("client.ack_quorum_size"), writes)
        return {
            "ensemble_size": ensemble,
            "write_quorum_size": writes,
            "ack_quorum_size": acks,
            "digest_type": DigestType[settings.text("client.digest_type").upper()],
        }

    def use_metadata(self, uri: str) -> None:
        """Point this call at a cluster that the command itself has made."""
        self.settings = self.settings.replaced("metadata.uri", uri, "the command")

    def forwarded(self) -> list[str]:
        """Return the words of a child that finds the same configuration; see ``environment``."""
        words = ["--config", self._config_file] if self._config_file else []
        return [*words, "-v"] if self.is_verbose else words

    def environment(self) -> dict[str, str]:
        """Return the environment of such a child.

        What may be secret is there: whoever has a login here can read a command line.
        """
        from quorumbook.cli.known.context_file import BY_CONTEXT
        from quorumbook.config.load import CONTEXT_VARIABLE

        set_here = self.settings.variables(
            "--set", "--metadata", _OPTION, BY_CONTEXT, "the command"
        )
        # The child is told where the metadata are; a context must not say otherwise.
        inherited = {name: v for name, v in os.environ.items() if name != CONTEXT_VARIABLE}
        return {**inherited, **set_here}

    def show_warnings(self) -> None:
        """Tell people what of the peer's file has no effect."""
        for warning in self.settings.warnings:
            self.warn("option-without-effect", warning)

    def note(self, text: str) -> None:
        """Tell people something beside the result."""
        print(text, file=sys.stderr, flush=True)

    def warn(self, code: str, text: str) -> None:
        """Tell people what they should do something about, and how they learn what."""
        self.note(f"warning: {with_code(text, code)}")

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, on uvloop where it exists."""
        from quorumbook.env.allocator import keep_freed_memory

        keep_freed_memory()
        start_telemetry()
        _calm_collector()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=_loop_factory(), debug=False) as runner:
            return runner.run(main)


def _calm_collector() -> None:
    """Have the garbage collector look less often, and never at what was imported.

    It walks through everything that refers to something, write caches full of runs included, and
    what it looks for, garbage in circles, is rare here: all it does often is to pause.  What is
    neither new nor old is looked through when it is 10,000 objects: 50,000 held a bookie with very
    many requests under way up for 40 ms.  All there is, which takes 150 ms where half a million
    objects live, is looked through when a billion were made.
    """
    gc.freeze()
    gc.set_threshold(5_000, 1, 100_000)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


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


def start_telemetry() -> None:
    """Send traces, metrics and logs of this command, if the environment says where to."""
    from quorumbook.env.log import is_telemetry_wanted

    if not is_telemetry_wanted():
        return
    try:
        from quorumbook.otel.process import start
    except ImportError:
        print(
            "quorumbook: nothing is sent to OpenTelemetry: pip install 'quorumbook[otel]'",
            file=sys.stderr,
        )
        return
    context = click.get_current_context(silent=True)
    words = context.command_path.split() if context is not None else []
    start("-".join(["quorumbook", *words[1:2]]))


def send_metrics(families: Callable[[], Iterable[Metric]]) -> None:
    """Send a server's own numbers, too, if anything is sent; called on its loop."""
    if "quorumbook.otel.process" in sys.modules:
        from quorumbook.otel.process import meter

        meter(families)
