"""``quorumbook spark template``: a ``spark-pipelines`` project that reads and writes streams."""

from __future__ import annotations

import json
import os
import shutil
import string

import click

import quorumbook.spark
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.spark.run import connection_of


@click.command(cls=ClusterCommand)
@click.argument("directory", metavar="DIR")
@click.option("--from", "source", metavar="STREAM", required=True, help="The stream it reads.")
@click.option("--to", "target", metavar="STREAM", required=True, help="The stream it writes.")
@click.pass_obj
def template(call: Call, directory: str, source: str, target: str) -> None:
    """Make a declarative pipeline: a stream into tables, and what comes of it into a stream."""
    directory = os.path.abspath(directory)
    if os.path.exists(directory):
        raise click.UsageError(f"{directory} is there already")
    values = {
        "name": os.path.basename(directory),
        "storage": f"file://{directory}/pipeline-storage",
        "metadata": connection_of(call).metadata_uri,
        "source": source,
        "target": target,
    }
    origin = os.path.join(os.path.dirname(quorumbook.spark.__file__), "template")
    shutil.copytree(origin, directory, ignore=shutil.ignore_patterns("__pycache__"))
    with open(os.path.join(directory, "spark-pipeline.yml"), "r+", encoding="utf-8") as file:
        # A string of JSON is one of YAML.
        quoted = {key: json.dumps(value) for key, value in values.items()}
        text = string.Template(file.read()).substitute(quoted)
        file.seek(0)
        file.write(text)
    call.note(
        f"Run it with: pip install 'quorumbook[spark]' 'pyspark[pipelines]<4.4'; cd {directory};"
        " spark-pipelines --conf spark.sql.catalogImplementation=hive run"
    )
