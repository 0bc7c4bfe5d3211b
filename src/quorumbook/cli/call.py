"""One invocation of a command: what it was told, and a loop to run a coroutine on.

A command receives it as its first argument (``click.pass_obj``): the configuration with the source
of each value, the metadata URI, the output form.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumbook.cli.explained.codes import with_code
from quorumbook.cli.output import TABLE, Output
from quorumbook.cli.serving.telemetry import start_telemetry

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.config import Settings

T = TypeVar("T")

#: How long a thread that computes keeps the interpreter from others.  An entry needs it back some
#: five times on its way: the loop after each wait, the journal's thread after write and sync.
#: Beside a checkpoint that computed, each of them took the interpreter's own 5 ms: 23 ms for one
#: write and sync where it is 3 without.
_SWITCH_INTERVAL_S = 0.0002
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

    @property
    def names_cluster(self) -> bool:
        """Whether the command line says which cluster is meant."""
        return bool(self._metadata or self._context)

    @property
    def cluster_name(self) -> str:
        """The name of the context that says which cluster; empty if none does."""
        from quorumbook.cli.known.context_file import BY_CONTEXT, chosen_name

        by_context = self.settings["metadata.uri"].source == BY_CONTEXT
        return chosen_name(self._context) if by_context else ""

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
        from quorumbook.client.options import NewLedgerOptions
        from quorumbook.protocol.digest import DigestType

        settings, most = self.settings, None
        for key, size, flag in (
            ("client.ensemble_size", ensemble_size, "--ensemble-size"),
            ("client.write_quorum_size", write_quorum, "--write-quorum"),
            ("client.ack_quorum_size", ack_quorum, "--ack-quorum"),
        ):
            if size is not None:
                settings = settings.replaced(key, size, flag)
            elif most is not None and settings.integer(key) > most:
                settings = settings.replaced(key, most, settings[key].source)
            most = settings.integer(key)
        made = settings.made(NewLedgerOptions).keywords()
        return made | {"digest_type": DigestType[made["digest_type"].upper()]}

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
    neither new nor old is looked through when it is 3,000 objects: 50,000 held a bookie with very
    many requests under way up for 40 ms, 10,000 for up to 6.  All there is, which takes 150 ms
    where half a million objects live, is looked through when a billion were made.
    """
    gc.freeze()
    gc.set_threshold(1_500, 1, 400_000)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
