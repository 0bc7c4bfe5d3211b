"""``quorumbook admin run`` and ``quorumbook console``: the HTTP API, and pages for a browser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.known.context_file import context_names
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.serving.stopping import stop_wanted

if TYPE_CHECKING:
    from quorumbook.admin.http.service import Service
    from quorumbook.config import Settings

_contexts_argument = click.argument(
    "contexts", nargs=-1, metavar="[CONTEXT]...", shell_complete=context_names
)
_host_option = click.option("--host", metavar="A", help="Where to listen [default: 127.0.0.1].")
_port_option = click.option(
    "--port", type=click.IntRange(0, 65535), help="Its port; 0 is a free one [default: 8085]."
)


@click.group(cls=Commands)
def admin() -> None:
    """Serve the HTTP API."""


@admin.command("run", cls=ClusterCommand, has_log=True)
@_contexts_argument
@_host_option
@_port_option
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.pass_obj
def run(
    call: Call, contexts: Sequence[str], host: str | None, port: int | None, stop_with_parent: bool
) -> None:
    """Serve the HTTP API and the console until Ctrl-C or SIGTERM.

    With names of contexts it serves those clusters, the first at /, others at /clusters/CONTEXT.
    """
    settings = _placed(call, contexts, host, port)
    begin_log(settings, is_verbose=call.is_verbose)
    call.run(_serve(call, settings, contexts, is_child=stop_with_parent))


@click.command(cls=ClusterCommand, has_log=True)
@_contexts_argument
@_host_option
@_port_option
@click.pass_obj
def console(call: Call, contexts: Sequence[str], host: str | None, port: int | None) -> None:
    """Serve the console of a cluster for a browser, until Ctrl-C.

    With names of contexts it shows those clusters, one beside the other.
    """
    settings = _placed(call, contexts, host, port)
    begin_log(settings, is_verbose=call.is_verbose, usual="warning")
    call.run(_serve(call, settings, contexts, is_child=False))


def _placed(call: Call, contexts: Sequence[str], host: str | None, port: int | None) -> Settings:
    if contexts and call.names_cluster:
        raise click.UsageError("give names of contexts, or --metadata or --context, not both")
    if len(set(contexts)) < len(contexts):
        raise click.UsageError("a context is named twice")
    settings = call.settings
    if host is not None:
        settings = settings.replaced("admin.host", host, "--host")
    if port is not None:
        settings = settings.replaced("admin.port", port, "--port")
    return settings


async def _serve(
    call: Call, settings: Settings, contexts: Sequence[str], *, is_child: bool
) -> None:
    from quorumbook.admin.options import AdminOptions
    from quorumbook.admin.server import AdminServer

    first, *others = _services(call, settings, contexts)
    server = AdminServer(settings.made(AdminOptions), first, others)
    await server.start()
    if not is_child:  # else every bookie that starts would have its server read all ledgers
        for each in (first, *others):
            each.read_ahead()
    try:
        stop = await stop_wanted(with_parent=is_child)
        row: dict[str, object] = {"url": server.url, "metadata": first.shown_uri}
        if others:
            row["clusters"] = [each.options.cluster for each in (first, *others)]
        call.output.record(row)
        sys.stdout.flush()
        await stop.wait()
    finally:
        await server.stop()


def _services(call: Call, settings: Settings, contexts: Sequence[str]) -> list[Service]:
    """Return one for each cluster; the first one's paths begin at the server's root."""
    from quorumbook.cli.known.context_file import settings_meant

    if not contexts:
        return [_service(settings, call.cluster_name, call.metadata_uri)]
    found = []
    for number, name in enumerate(contexts):
        own, _ = settings_meant(
            config_file=None, overrides=call.overrides, metadata=None, context=name
        )
        base = f"/clusters/{name}" if number else ""
        found.append(_service(own, name, own.text("metadata.uri"), base, settings))
    return found


def _service(
    settings: Settings, name: str, uri: str, base: str = "", own: Settings | None = None
) -> Service:
    """Return what serves one cluster.

    Args:
        settings: Those of the cluster.
        name: What it is called; empty: nothing.
        uri: Where its metadata is.
        base: Where its paths begin.
        own: Those of the server, if they are others.
    """
    from quorumbook.admin.http.service import Service, ServiceOptions
    from quorumbook.client.client import BookKeeper
    from quorumbook.config.made import client_options

    of_server = own or settings
    client = client_options(settings)
    return Service(
        ServiceOptions(
            metadata_uri=uri,
            connect=lambda: BookKeeper(uri, options=client),
            token_file=of_server.text("admin.token_file"),
            bookie_token_file=settings.text("http.token_file"),
            io_rate_bytes=settings.integer("background.io_rate_bytes"),
            settings=_shown_settings(of_server),
            quorums=(
                settings.integer("client.ensemble_size"),
                settings.integer("client.write_quorum_size"),
                settings.integer("client.ack_quorum_size"),
            ),
            audit_stream=of_server.text("admin.audit_stream"),
            cluster=name,
            base=base,
        )
    )


def _shown_settings(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return what was set, without secrets."""
    from quorumbook.cli.config import shown_value

    return tuple(
        (setting.option.key, str(shown_value(settings, setting)))
        for setting in settings
        if not setting.is_default
    )
