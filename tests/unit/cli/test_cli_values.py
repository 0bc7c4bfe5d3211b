"""Amounts have units wherever somebody writes them, and one message refuses what is not one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from quorumbook.cli.main import main, root
from quorumbook.cli.spark.commands import spark
from quorumbook.cli.spark.run import JobCommand, JobRun
from quorumbook.cli.values import derived, with_unit
from quorumbook.errors import ConfigError
from quorumbook.options import Kind, Option
from quorumbook.spark.jobs import options as jobs

_JOBS = {
    "audit": jobs.AuditOptions, "usage": jobs.UsageOptions, "fsck-meta": jobs.FsckOptions,
    "gc-orphans": jobs.OrphanOptions, "compact-segments": jobs.CompactOptions,
    "compact-keys": jobs.CompactKeysOptions, "offload": jobs.OffloadOptions,
    "restore": jobs.RestoreOptions, "tier-verify": jobs.SomeStreamsOptions,
    "rereplicate": jobs.RereplicateOptions, "decommission": jobs.DecommissionOptions,
    "rebalance": jobs.RebalanceOptions, "export": jobs.ExportOptions,
    "ingest": jobs.IngestOptions, "transform": jobs.TransformOptions,
    "analytics": jobs.AnalyticsOptions, "lake-sink": jobs.LakeSinkOptions,
    "xcluster": jobs.CrossClusterOptions,
}  # fmt: skip


def _commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_every_job_has_the_options_of_its_class_and_no_others() -> None:
    found = {name for name, command in _commands(spark) if isinstance(command, JobCommand)}
    # Which are no jobs that are cut into tasks.
    assert found == {*_JOBS, "register", "pipeline run", "lake-changes"}
    common = {param.name for param in JobCommand("x").params}
    for name, kind in _JOBS.items():
        command = spark.commands[name]
        own = {param.name for param in command.params} - common
        assert own == {each.name for each in (*kind.declared(), *JobRun.declared())}, name


@pytest.mark.parametrize(
    ("text", "value"), [("7d", 604800.0), ("500ms", 0.5), ("90", 90.0), ("1.5h", 5400.0)]
)
def test_a_duration_is_written_with_its_unit(text: str, value: float) -> None:
    assert _parsed(jobs.CompactOptions, "older_than_s", ["--older-than", text]) == value


@pytest.mark.parametrize(("text", "value"), [("64M", 64 << 20), ("1GiB", 1 << 30), ("4096", 4096)])
def test_a_size_is_written_with_its_unit(text: str, value: int) -> None:
    assert _parsed(jobs.CompactOptions, "target_bytes", ["--target-bytes", text]) == value


def _parsed(kind: type[jobs.JobOptions], name: str, words: list[str]) -> object:
    command = click.Command("job", params=list(derived(kind)))
    return command.make_context("job", words).params[name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("spark offload --to x --older-than 7x",
         "--older-than: '7x' (command line) is not a duration"),
        ("spark offload --to x --older-than=-7d",
         "--older-than: '-7d' (command line) is out of bounds (at least 0)"),
        ("spark compact-segments --target-bytes 0K",
         "--target-bytes: '0K' (command line) is out of bounds (at least 1)"),
        ("spark audit --sample 101",
         "--sample: '101' (command line) is out of bounds (0 to 100)"),
        ("spark ingest --to ledger --format csv --option header",
         "--option: ['header'] (command line) is not a list of key=value"),
        ("stream write s --wait soon", "--wait: 'soon' (command line) is not a duration"),
        ("recovery delay 2x", "DURATION: '2x' (command line) is not a duration"),
        ("status --every 10ms",
         "--every: '10ms' (command line) is out of bounds (0.2 to 86400)"),
        ("bench write --entry-size 4", "--entry-size: '4' (command line) is out of bounds"),
    ],
)  # fmt: skip
def test_what_is_refused_names_option_value_bounds_and_source(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (jobs.OffloadOptions, {"to": "x", "older_than_s": -1.0}, "--older-than: -1.0"),
        (jobs.ExportOptions, {"source": "stream:*", "out": "x", "span": "5"}, "--range 5"),
        (jobs.ExportOptions, {"source": "stream:*", "out": "x", "since": "soon"}, "--since soon"),
        (jobs.AuditOptions, {"ledgers": "1,x"}, "--ledgers 1,x: ids of ledgers"),
        (jobs.RestoreOptions, {"segments": ("x",)}, "--segment x: the number of a segment"),
        (jobs.LakeSinkOptions, {"source": "stream:*", "table": "t", "catalog": {"uri": "u"}},
         "--catalog is for --format iceberg"),
        (jobs.RereplicateOptions, {}, "--bookie is missing"),
    ],
)  # fmt: skip
def test_a_program_is_told_the_same(
    kind: type[jobs.JobOptions], given: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        kind(**given)


def test_no_command_takes_an_amount_without_its_unit() -> None:
    """Seconds and bytes are the types of ``cli.values``: ranges of numbers are for counts."""
    amounts = re.compile("seconds|bytes|how long|so long|so often", re.IGNORECASE)
    bare = [
        f"{path} {param.opts[0]}"
        for path, command in _commands(root)
        for param in command.params
        if isinstance(param.type, click.IntRange | click.FloatRange)
        and isinstance(param, click.Option)
        and amounts.search(f"{param.help} {param.metavar}")
    ]
    assert bare == ["token add --days"]  # its name is the unit


def test_a_job_is_resumed_by_what_its_units_depend_on() -> None:
    first = jobs.LakeSinkOptions(source="stream:s", table="t", catalog={}, follows=True)
    other = jobs.LakeSinkOptions(source="stream:s", table="t", every_s=1.0, batch_bytes=7)
    assert first.arguments() == other.arguments()
    assert first.arguments()["from"] == "stream:s"
    assert jobs.LakeSinkOptions(source="stream:s", table="u").arguments() != first.arguments()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Kind.DURATION, 86400.0, "1d"), (Kind.DURATION, 5400.0, "90m"), (Kind.DURATION, 0.5, "0.5"),
        (Kind.DURATION, 0.0, "0"), (Kind.SIZE, 128 << 20, "128M"), (Kind.SIZE, 1500, "1500"),
    ],
)  # fmt: skip
def test_a_default_is_shown_as_it_is_written(kind: Kind, value: float, text: str) -> None:
    assert with_unit(kind, value) == text
    assert Option("", "x", kind, 0, "").parse(text, source="here") == value
