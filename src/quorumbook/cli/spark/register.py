"""``quorumbook spark register``: streams, ledgers and metadata as tables of Spark's catalog."""

from __future__ import annotations

import os

import click

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    check_spark,
    connection_of,
    open_session,
)
from quorumbook.errors import ConfigError


@click.command(cls=JobCommand, forms=("table", "json", "jsonl"))
@click.argument("names", metavar="[STREAM]...", nargs=-1)
@click.option("--database", metavar="NAME", default="quorumbook", show_default=True,
              help="Where the tables are; it is made if it is missing.")  # fmt: skip
@click.option("--namespace", metavar="PATH", default="/streams", show_default=True,
              help="The namespace of the streams.")  # fmt: skip
@click.option("--master", metavar="URL", default="", help="Where Spark runs.")
@click.pass_obj
def register(
    call: Call, names: tuple[str, ...], database: str, namespace: str, master: str
) -> None:
    """Make tables of Spark's catalog what streams, ledgers and metadata are now.

    Without a STREAM all streams of the namespace get a table.  Given again it adds, changes and
    drops tables, and leaves those of others alone.  The catalog has to outlive the command: that of
    a Hive metastore (spark.sql.catalogImplementation hive in spark-defaults.conf), or of a Spark
    Connect server (--master sc://HOST).
    """
    check_spark(master or None)
    from quorumbook.spark.session import is_remote
    from quorumbook.spark.tables import register as register_tables

    connection = connection_of(call)
    given = {"namespace": namespace}
    if connection.config_file:
        given["configFile"] = os.path.abspath(connection.config_file)
    with open_session(call, JobRun(master=master)) as spark:
        kept = spark.conf.get("spark.sql.catalogImplementation")
        if kept == "in-memory" and not is_remote(master):
            raise ConfigError(
                "this Spark keeps its catalog in memory, so tables would be gone with the command: "
                "set spark.sql.catalogImplementation to hive in spark-defaults.conf, or name a "
                "Spark Connect server by --master sc://HOST"
            )
        found = register_tables(spark, connection.metadata_uri, *names, database=database, **given)
    rows = [
        {"table": f"{database}.{name}", "outcome": word}
        for word in ("made", "changed", "dropped", "kept")
        for name in getattr(found, word)
    ]
    call.output.rows(rows, ("table", "outcome"))
