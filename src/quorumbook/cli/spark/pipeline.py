"""``quorumbook spark pipeline``: runs what a file declares, lists what runs, and forgets it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.output import Moment
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    check_spark,
    connection_of,
    open_session,
)
from quorumbook.cli.stream.options import opened
from quorumbook.errors import ConfigError

_COLUMNS = (
    "step", "state", "commits", "records_read", "rows_written", "dead_letters", "restarts", "error",
)  # fmt: skip
_LISTED = (
    "pipeline", "step", "state", "input_rate", "lag_entries", "commits", "rows_written",
    "dead_letters", "restarts", "error", "told",
)  # fmt: skip
_namespace_option = click.option(
    "--namespace", "path", metavar="PATH", default="/streams", show_default=True,
    help="The namespace of the pipelines' streams.",
)  # fmt: skip
#: Where there is no terminal to look at, a line for each step comes so often.
_LINES_EVERY_S = 10.0
#: A step failed for good.
_FAILED = 1


@click.group(cls=Commands)
def pipeline() -> None:
    """Streams, steps between them and where they end, declared in a file."""


@pipeline.command(cls=JobCommand, forms=("table", "json", "jsonl"))
@click.argument("file", metavar="FILE")
@click.option("--master", metavar="URL", default="", help="Where Spark runs.")
@click.option("--once", "is_once", is_flag=True,
              help="Read what there is, step after step, and end.")  # fmt: skip
@click.option("--picture", metavar="FILE", default="",
              help="Keep a picture of the graph with its rates there, an SVG.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve the steps' numbers for Prometheus there; 0: any free port.")  # fmt: skip
@click.option("--metrics-host", metavar="HOST", default="127.0.0.1", show_default=True,
              help="On which address of this machine.")  # fmt: skip
@click.option("--dry-run", "is_dry_run", is_flag=True,
              help="Only check the file and draw the picture.")  # fmt: skip
@click.pass_obj
def run(
    call: Call,
    file: str,
    master: str,
    is_once: bool,
    picture: str,
    metrics_port: int | None,
    metrics_host: str,
    is_dry_run: bool,
) -> int:
    """Run the pipeline of a TOML file until it is interrupted.

    A step that fails is started again from its checkpoint, at once and then at growing intervals;
    one that fails too often in a row is given up, while the others go on.  The exit code is 1 then.
    """
    check_spark(master or None)
    from quorumbook.spark.pipeline.declaration import parse_pipeline
    from quorumbook.spark.pipeline.numbers import StepNumbers
    from quorumbook.spark.pipeline.picture import picture as picture_of
    from quorumbook.spark.pipeline.running import RunningPipeline
    from quorumbook.spark.pipeline.telling import told

    declared = _parsed(parse_pipeline, file)
    if is_dry_run:
        numbers = {step.name: StepNumbers() for step in declared.steps}
        _draw(picture, picture_of(told(declared, numbers, began_at_ms=0)))
        _show(call, numbers)
        return 0
    connection = connection_of(call, declared.whole.namespace)
    with open_session(call, JobRun(master=master)) as spark:
        running = RunningPipeline(spark, connection, declared, is_once=is_once)
        running.prepare()
        if metrics_port is not None:
            _serve(call, metrics_host, metrics_port, declared.whole.name, running)
        told_s = 0.0

        def on_look() -> None:
            nonlocal told_s
            _draw(picture, picture_of(running.told()))
            if time.monotonic() - told_s >= _LINES_EVERY_S and not is_once:
                told_s = time.monotonic()
                for name, found in running.numbers.items():
                    call.note(_line(name, found))

        try:
            are_done = running.run(on_look)
        except KeyboardInterrupt:
            are_done = all(found.state != "failed" for found in running.numbers.values())
        _show(call, running.numbers)
    return 0 if are_done else _FAILED


@pipeline.command(cls=ClusterCommand)
@_namespace_option
@click.pass_obj
def ls(call: Call, path: str) -> None:
    """List the pipelines that were run in a namespace, with what their steps told last.

    A pipeline tells how it goes every five seconds.  One that is "silent" was killed, stands still,
    or cannot reach the metadata.
    """

    async def run() -> None:
        from quorumbook.client.context import client_store
        from quorumbook.streams.errors import NamespaceNotBoundError
        from quorumbook.streams.metadata.pipeline_nodes import told_of

        found = []
        with contextlib.suppress(NamespaceNotBoundError):  # the first stream makes it
            async with opened(call, path) as namespace:
                found = await told_of(client_store(namespace.client), namespace.path)
        rows = [
            {
                **{column: step[column] for column in _LISTED[3:-1]},
                "pipeline": each["name"],
                "step": step["step"],
                "state": each["state"] if each["state"] == "silent" else step["state"],
                "told": Moment(each["told_at_ms"]),
            }
            for each in found
            for step in each["steps"]
        ]
        empty = f"no pipeline was run in {path}; `quorumbook spark pipeline run FILE` runs one"
        call.output.rows(rows, _LISTED, empty=empty)

    call.run(run())


@pipeline.command(cls=ClusterCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_namespace_option
@click.pass_obj
def rm(call: Call, names: Sequence[str], path: str) -> None:
    """Forget what pipelines told that do not run any more.

    Their streams, checkpoints and cursors stay, so that a pipeline that is run again goes on, and
    is listed again.
    """
    forgotten: list[dict[str, object]] = []

    async def run() -> None:
        from quorumbook.client.context import client_store
        from quorumbook.streams.metadata.pipeline_nodes import forget

        async with opened(call, path) as namespace:
            for name in names:
                await forget(client_store(namespace.client), namespace.path, name)
                forgotten.append({"name": name, "state": "forgotten"})

    try:
        call.run(run())
    finally:
        call.output.rows(forgotten, ["name", "state"])


def _parsed(parse: Any, file: str) -> Any:
    with open(file, encoding="utf-8") as opened:
        text = opened.read()
    try:
        return parse(text, os.path.dirname(os.path.abspath(file)))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _draw(picture: str, text: str) -> None:
    """Put a picture in the place of the one before, never half of it."""
    if not picture:
        return
    with open(f"{picture}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{picture}.new", picture)


def _serve(call: Call, host: str, port: int, name: str, running: Any) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    from quorumbook.spark.pipeline.metrics import PipelineMetrics

    registry = CollectorRegistry()
    registry.register(PipelineMetrics(name, lambda: running.numbers))
    server, _ = start_http_server(port, host, registry)
    call.note(f"Metrics: http://{host}:{server.server_port}/metrics")


def _line(name: str, found: Any) -> str:
    text = (
        f"{name}: {found.state}, {found.input_rate:,.0f} records/s come, {found.rate:,.0f} can, "
        f"{found.lag_entries:,} entries behind ({found.lag_s:.0f} s), {found.commits:,} commits, "
        f"{found.segments:,} segments, {found.dead_letters:,} dead letters"
    )
    return f"{text}; {found.error}" if found.error and found.state != "running" else text


def _show(call: Call, numbers: Any) -> None:
    sys.stderr.flush()
    rows = [
        {"step": name, **{column: getattr(found, column) for column in _COLUMNS[1:]}}
        for name, found in numbers.items()
    ]
    call.output.rows(rows, _COLUMNS)
