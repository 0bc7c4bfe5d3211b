"""``quorumbook stream schema``: what records are decoded by, its versions and its rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.output import TABLE
from quorumbook.cli.stream.options import name_argument, namespace_option, opened, whole_or_part

if TYPE_CHECKING:
    from quorumbook.streams import Schema

_KINDS = ("json", "avro", "protobuf")
_RULES = ("backward", "forward", "full", "none")

kind_option = click.option(
    "--kind", type=click.Choice(_KINDS),
    help="What FILE is; by default from its name: .avsc is avro, .desc and .pb are protobuf.",
)  # fmt: skip
message_option = click.option(
    "--message", default="", metavar="NAME", help="Protobuf's message, as shop.Order."
)


@click.group(cls=Commands)
def schema() -> None:
    r"""Show and set the schema of a stream's records: JSON Schema, Avro or Protobuf.

    \b
    quorumbook stream schema set orders order.avsc
    quorumbook stream schema import orders --registry http://registry:8081
    quorumbook stream read orders --decode schema
    """


@schema.command(cls=ClusterCommand)
@name_argument
@click.option("--version", type=click.IntRange(min=1), metavar="N",
              help="Print this version as it was set.")  # fmt: skip
@namespace_option
@click.pass_obj
def show(call: Call, name: str, version: int | None, path: str) -> None:
    """List the versions of a schema, or print one."""

    async def run() -> list[dict[str, object]]:
        async with opened(call, path) as namespace:
            schemas = await (await whole_or_part(namespace, name, None)).schemas()
            if version is not None:
                schemas.of(version)  # says so if there is none
            return [
                {"version": number, "kind": each.kind.value, "message": each.message,
                 "registry_id": each.registry_id or None, "bytes": len(each.text.encode()),
                 "compatibility": schemas.compatibility.value, "text": each.text}
                for number, each in enumerate(schemas.versions, 1) if version in (None, number)
            ]  # fmt: skip

    rows = call.run(run())
    if version is None:
        columns = ["version", "kind", "message", "registry_id", "bytes", "compatibility"]
        call.output.rows([{name: row[name] for name in columns} for row in rows], columns)
    elif call.output.form == TABLE:
        print(rows[0]["text"])
    else:
        call.output.record(rows[0])


@schema.command("set", cls=ClusterCommand)
@name_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@kind_option
@message_option
@click.option("--compatibility", type=click.Choice(_RULES),
              help="What this and each later version must keep to [backward].")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say whether it could be set, and set nothing.")
@namespace_option
@click.pass_obj
def set_command(
    call: Call, name: str, file: str | None, kind: str | None, message: str,
    compatibility: str | None, dry_run: bool, path: str,
) -> None:  # fmt: skip
    """Set the schema in FILE as a stream's next version.

    It is compared with all versions before it.  Without FILE only the rule is changed.
    """
    if file is None and compatibility is None:
        raise click.UsageError("give a FILE, or --compatibility to change the rule alone")
    found = None if file is None else read_schema(file, kind, message)

    async def run() -> dict[str, object]:
        from quorumbook.streams import Compatibility
        from quorumbook.streams.errors import SchemaNotFoundError
        from quorumbook.streams.schemas.compatibility import check_follows

        rule = None if compatibility is None else Compatibility(compatibility)
        async with opened(call, path) as namespace:
            stream = await whole_or_part(namespace, name, None)
            if not dry_run:
                now = await stream.set_schema(found, compatibility=rule)
                return {"name": name, "version": now.last, "compatibility": now.compatibility.value}
            try:
                now = await stream.schemas()
                before, rule = now.versions, rule or now.compatibility
            except SchemaNotFoundError:
                before, rule = (), rule or Compatibility.BACKWARD
            if found is not None and before[-1:] != (found,):
                check_follows(name, found, before, rule)
                before = (*before, found)
            return {"name": name, "version": len(before), "compatibility": rule.value}

    call.output.record(call.run(run()))


@schema.command("import", cls=ClusterCommand)
@name_argument
@click.option("--registry", "url", required=True, metavar="URL",
              help="Where the registry is, as http://HOST:8081.")  # fmt: skip
@click.option(
    "--subject", metavar="SUBJECT", help="The subject's name in the registry [NAME-value]."
)
@click.option("--message", default="", metavar="NAME",
              help="Protobuf's message, as shop.Order [the first of its file].")  # fmt: skip
@click.option("--compatibility", type=click.Choice(_RULES),
              help="What these and each later version must keep to [backward].")  # fmt: skip
@click.option("--login-file", metavar="FILE", help="USER:PASSWORD for the registry.")
@click.option(
    "--ca-file", default="", metavar="FILE", help="The CAs that may have signed its certificate."
)
@namespace_option
@click.pass_obj
def import_command(
    call: Call, name: str, url: str, subject: str | None, message: str, compatibility: str | None,
    login_file: str | None, ca_file: str, path: str,
) -> None:  # fmt: skip
    """Add the versions of a subject in a schema registry to a stream's schema.

    Records that a serializer of the registry framed are decoded by them, whether the registry is
    there or not.  Versions that the stream has are left alone, so the command may be repeated.
    """

    async def run() -> dict[str, object]:
        from quorumbook.env.secret_files import read_secret_file
        from quorumbook.streams import Compatibility
        from quorumbook.streams.schemas.registry import SchemaRegistry, import_schemas

        login = read_secret_file(login_file, "--login-file").decode().strip() if login_file else ""
        registry = SchemaRegistry(url, login, ca_file)
        rule = None if compatibility is None else Compatibility(compatibility)
        async with opened(call, path) as namespace:
            stream = await whole_or_part(namespace, name, None)
            now = await import_schemas(
                stream, registry, subject or f"{name}-value", message=message, compatibility=rule
            )
        return {"name": name, "version": now.last, "compatibility": now.compatibility.value}

    call.output.record(call.run(run()))


def read_schema(file: str, kind: str | None, message: str) -> Schema:
    """Read a schema from a file."""
    import base64

    from quorumbook.errors import ConfigError
    from quorumbook.streams import Schema, SchemaKind

    if kind is None:
        ending = file.rpartition(".")[2]
        kind = {"avsc": "avro", "desc": "protobuf", "pb": "protobuf"}.get(ending, "json")
    with open(file, "rb") as opened_file:
        data = opened_file.read()
    try:
        text = base64.b64encode(data).decode() if kind == "protobuf" else data.decode()
        return Schema(SchemaKind(kind), text, message)
    except (UnicodeDecodeError, ConfigError) as error:
        raise click.UsageError(f"{file} is not a schema: {error}") from error
