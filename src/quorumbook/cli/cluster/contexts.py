"""``quorumbook context``: clusters by name, and which one is meant where nothing else is said.

    ~/.config/quorumbook/contexts.json
    {"current": "prod", "contexts": {"prod": {"metadata": "zk://zk1/ledgers", "config": null}}}

No secret is kept: a URI with a name and a password is refused, and a configuration file is named.
"""

from __future__ import annotations

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.known.context_file import NamedContext, read_contexts, write_contexts


@click.group(cls=Commands)
def context() -> None:
    """Name clusters, and choose the one that commands are about."""


@context.command("add", cls=ClusterCommand)
@click.argument("name")
@click.option("--use", is_flag=True, help="Use it from now on.")
@click.pass_obj
def add(call: Call, name: str, use: bool) -> None:
    """Name the cluster of --metadata, with the file of --config.

    Who uses the context gets both: what the file sets, such as TLS, and where the metadata are.
    """
    if call.overrides:
        raise click.UsageError("a context keeps no --set; put them into a file and give --config")
    uri = call.metadata_uri
    known = read_contexts()
    known.contexts[name] = NamedContext.checked(name, uri, call.config_path)
    if use or len(known.contexts) == 1:
        known = known._replace(current=name)
    write_contexts(known)
    call.output.record(known.row(name))


@context.command("use", cls=ClusterCommand, has_metadata=False)
@click.argument("name", shell_complete=lambda *_: list(read_contexts().contexts))
@click.pass_obj
def use(call: Call, name: str) -> None:
    """Choose the cluster that commands are about."""
    known = read_contexts()
    known.get(name)
    write_contexts(known._replace(current=name))
    call.output.record(known._replace(current=name).row(name))


@context.command("ls", cls=ClusterCommand, has_metadata=False)
@click.pass_obj
def ls(call: Call) -> None:
    """List the named clusters."""
    known = read_contexts()
    call.output.rows(
        [known.row(name) for name in sorted(known.contexts)],
        ["name", "current", "metadata", "config"],
        empty="no context; `quorumbook context add NAME --metadata URI` makes one",
    )


@context.command("rm", cls=ClusterCommand, has_metadata=False)
@click.argument("name", shell_complete=lambda *_: list(read_contexts().contexts))
@click.pass_obj
def rm(call: Call, name: str) -> None:
    """Forget a name; the cluster stays as it is."""
    known = read_contexts()
    row = known.row(name)
    del known.contexts[name]
    write_contexts(known._replace(current="") if known.current == name else known)
    call.output.record(row)
