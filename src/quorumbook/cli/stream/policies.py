"""``quorumbook stream policy``, ``alter`` and ``orphans``: what holds for streams, and is left."""

from __future__ import annotations

from collections.abc import Sequence

import click

from quorumbook.admin.facts.words import of_policy
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import RAW, Worded
from quorumbook.cli.stream.options import name_argument, namespace_option, opened
from quorumbook.cli.values import duration


def policy_texts(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read ``NAME=VALUE``, given any number of times."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{option} {text}: write NAME=VALUE")
        found[name] = value
    return found


@click.command(cls=ClusterCommand)
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--policy", "policies", multiple=True, metavar="NAME=VALUE",
              help="Set this policy; may be given several times.")  # fmt: skip
@click.option(
    "--inherit", "inherited", multiple=True, metavar="NAME", help="Inherit this policy again."
)
@namespace_option
@click.pass_obj
def policy(
    call: Call, name: str | None, policies: Sequence[str], inherited: Sequence[str], path: str
) -> None:
    """Show or change the policy of a namespace, or of a stream.

    A change holds for writers from their next opening on, for retention at once.  A policy that
    is damaged in the metadata is replaced by what a change gives.
    """
    from quorumbook.errors import ConfigError
    from quorumbook.streams import StreamPolicy
    from quorumbook.streams.metadata.policy import DEFAULTS

    changes = StreamPolicy.parse(policy_texts(policies, "--policy"), "--policy").given()
    StreamPolicy.of(dict.fromkeys(inherited))  # says what is no policy

    async def run() -> list[dict[str, object]]:
        is_change = bool(changes or inherited)
        async with opened(call, path, bind=is_change) as namespace:
            stream = None if name is None else namespace.stream(name)
            expected: StreamPolicy | None
            try:
                own = expected = await (stream or namespace).policy()
            except ConfigError as error:
                if not is_change:
                    raise
                call.warn("config", f"{error}; it is replaced by what you give")
                own, expected = StreamPolicy(), None
            if is_change:
                given = {k: v for k, v in own.given().items() if k not in inherited}
                changed = StreamPolicy.of(given | changes)
                await (stream or namespace).set_policy(changed, expected=expected)
                own = changed
            shared = own if stream is None else await namespace.policy()
            whole = own.over(shared).over(DEFAULTS).given()
            return [
                {
                    "policy": key,
                    "value": Worded(value, of_policy(value, key)),
                    "from": _origin(key, own, shared, name),
                }
                for key, value in whole.items()
            ]

    call.output.rows(call.run(run()), ["policy", "value", "from"])


@click.command(cls=ClusterCommand, form=RAW)
@name_argument
@click.option("--partitions", type=click.IntRange(min=1), required=True, metavar="N",
              help="How many partitions it is to have; the number only grows.")  # fmt: skip
@namespace_option
@click.pass_obj
def alter(call: Call, name: str, partitions: int, path: str) -> None:
    """Add partitions to a partitioned stream.

    Keys go to other partitions from then on; records stay where they are.
    """

    async def run() -> list[dict[str, object]]:
        from quorumbook.streams import PartitionedStream

        async with opened(call, path) as namespace:
            stream = await PartitionedStream.open(namespace, name)
            before = len(stream.partitions)
            await stream.grow(partitions)
            return [{"name": part.name} for part in stream.partitions[before:]]

    call.output.rows(call.run(run()), ["name"], empty="it has this many partitions already")


def _origin(key: str, own: object, shared: object, name: str | None) -> str:
    if name is not None and getattr(own, key) is not None:
        return "stream"
    own_or_shared = own if name is None else shared
    return "default" if getattr(own_or_shared, key) is None else "namespace"


@click.command(cls=ClusterCommand)
@click.option("--delete", is_flag=True,
              help="Mark what is found; delete what an earlier run has marked.")  # fmt: skip
@duration("--grace", "grace_s", "1h", "How long what is marked stays.")
@namespace_option
@click.pass_obj
def orphans(call: Call, delete: bool, grace_s: float, path: str) -> None:
    """List ledgers that were made for streams and that nothing refers to.

    A writer that dies at the wrong moment leaves one.
    """

    async def run() -> list[dict[str, object]]:
        async with opened(call, path) as namespace:
            return [
                {"ledger_id": each.ledger_id, "stream": each.stream, "bytes": each.size_bytes,
                 "state": str(each.state)}
                for each in await namespace.orphans(delete=delete, grace_s=grace_s)
            ]  # fmt: skip

    columns = ["ledger_id", "stream", "bytes", "state"]
    call.output.rows(call.run(run()), columns, empty="every ledger has its stream")
