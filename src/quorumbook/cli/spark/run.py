"""What every job of ``quorumbook spark`` takes, how it is run, and how it ends."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.explained.codes import with_code
from quorumbook.cli.progress import progress
from quorumbook.cli.values import derived
from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.options import Options, option
from quorumbook.spark.jobs.options import FollowOptions, JobOptions, StreamJobOptions

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.spark.connection import Connection
    from quorumbook.spark.jobs.batches import Batches
    from quorumbook.spark.jobs.engine import Limits
    from quorumbook.spark.jobs.frame import JobPlan, Report, Unit
    from quorumbook.spark.jobs.journal import JobJournal
    from quorumbook.streams import Namespace

Job = TypeVar("Job", bound=JobOptions)
#: Where there is no terminal, somebody reads a line so often.
_LINE_EVERY_S = 10.0
#: So many units a dry run names.
_SHOWN_UNITS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun(Options):
    """What every job is told."""

    SECTION: ClassVar = ""

    master: str = option("", "Where Spark runs; local[*] if nothing says it.", metavar="URL")
    is_dry_run: bool = option(False, "Only say what would be done.", word="--dry-run")
    json_report: str = option(
        "", "Write a report in JSON; - for standard output.", metavar="FILE"
    )  # fmt: skip
    max_bookie_mbps: float = option(
        0.0, "Megabytes a second to ask of each bookie at most.", minimum=0
    )
    max_bookie_inflight: int = option(
        0, "Tasks that ask a bookie at once, at most.", minimum=0
    )  # fmt: skip
    resume: str = option("", "Go on with a job that did not come to its end.", metavar="ID")
    state_dir: str = option("quorumbook-jobs", "Where jobs keep what they did.", metavar="DIR")


def job_command(
    options: type[Job],
) -> Callable[[Callable[[Call, JobRun, Job], int]], click.Command]:
    """Make a job's command: its options are those of a class, and what every job is told."""

    def made(function: Callable[[Call, JobRun, Job], int]) -> click.Command:
        @functools.wraps(function)
        def command(call: Call, /, **values: Any) -> int:
            run = JobRun(**{each.name: values.pop(each.name) for each in JobRun.declared()})
            own = options(**values)
            check_spark(run.master or None)
            return function(call, run, own)

        params: list[click.Parameter] = [*derived(options), *derived(JobRun)]
        return click.command(cls=JobCommand, params=params)(click.pass_obj(command))

    return made


def of_namespace(
    call: Call, path: str, make_plan: Callable[[Namespace], Coroutine[Any, Any, JobPlan]]
) -> Callable[[BookKeeper], Coroutine[Any, Any, JobPlan]]:
    """Return what plans with a client, of what plans with a namespace."""

    async def planned(client: BookKeeper) -> JobPlan:
        from quorumbook.streams import Namespace

        address = f"{call.metadata_uri}#{path}"
        async with Namespace.open(address, client=client) as namespace:
            return await make_plan(namespace)

    return planned


class SparkFailedError(QuorumbookError):
    """Spark could not carry a job out."""


class JobCommand(ClusterCommand):
    """A command whose errors may be Spark's."""

    def _failed(self, error: BaseException, whole: BaseException, *, is_verbose: bool) -> int:
        if type(error).__module__.startswith(("pyspark.", "py4j.")):
            error = _reason(error)
        return super()._failed(error, whole, is_verbose=is_verbose)


def _reason(error: BaseException) -> QuorumbookError:
    """Return what a message of Spark's, which has the stacks of three languages, comes to."""
    from quorumbook.spark.short_errors import shown_in

    own = shown_in(str(error))
    if own is not None:
        return SparkFailedError(with_code(f"Spark: {own.message}", own.code))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("quorumbook.", ": org.apache.spark."))]
    told = told or [line for line in lines if line.startswith(": ")]
    text = told[-1].lstrip(": ").partition(": ")[2] if told else (lines or [repr(error)])[0]
    if "S3AFileSystem" in text:
        text += "; put hadoop-aws on Spark's class path, of the version of its Hadoop"
    return SparkFailedError(f"Spark: {text}")


def connection_of(call: Call, namespace: str = "", *, metadata_uri: str = "") -> Connection:
    """Return where the cluster is, or another one, for drivers and executors."""
    from quorumbook.spark.connection import Connection
    from quorumbook.streams.metadata.address import DEFAULT_PATH

    uri = metadata_uri or call.metadata_uri
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        import os

        # Executors have another working directory.
        uri = "sqlite:///" + os.path.abspath(uri.removeprefix("sqlite:///"))
    return Connection(
        metadata_uri=uri,
        namespace_path=namespace or DEFAULT_PATH,
        config_file=call.config_path,
        passed_on=call.overrides,
    )


def run_stream_job(
    call: Call,
    run: JobRun,
    options: StreamJobOptions,
    make_plan: Callable[[Namespace], Coroutine[Any, Any, JobPlan]],
    conclude: Callable[[Report], None],
) -> Report:
    """Run a job that plans with a namespace; see ``run_job``."""
    path = options.namespace
    planned = of_namespace(call, path, make_plan)
    return run_job(call, run, options.arguments(), planned, conclude, namespace=path)


def run_job(
    call: Call,
    run: JobRun,
    arguments: Mapping[str, Any],
    make_plan: Callable[[BookKeeper], Coroutine[Any, Any, JobPlan]],
    conclude: Callable[[Report], None],
    *,
    namespace: str = "",
) -> Report:
    """Plan a job, run it on Spark or only say what would be done, and write its report.

    Args:
        call: The command's.
        run: What every job is told.
        arguments: What the plan depends on; a resumed job must have the same.
        make_plan: Plans, with a client of the cluster.
        conclude: Sums the results up.
        namespace: Where streams are.

    Raises:
        ConfigError: there is nothing to resume.
    """
    began_s = time.monotonic()

    async def planned() -> JobPlan:
        async with call.connect() as client:
            return await make_plan(client)

    plan = call.run(planned())
    report = run_planned(call, run, arguments, plan, conclude, connection_of(call, namespace))
    report.began_s = began_s
    tell(call, run, report)
    return report


def run_planned(
    call: Call,
    run: JobRun,
    arguments: Mapping[str, Any],
    plan: JobPlan,
    conclude: Callable[[Report], None],
    connection: Connection,
) -> Report:
    """Run a plan on Spark, or only say what would be done; see ``run_job``."""
    from quorumbook.spark.jobs.engine import run_plan

    if run.is_dry_run:
        return dry_report(plan.job, plan.units)
    journal = open_journal(call, run, plan.job, arguments)
    limits = limits_of(run)
    with (
        open_session(call, run, is_needed=bool(plan.units)) as session,
        progress(plan.job, len(plan.units)) as advance,
    ):
        told = Lines(call, len(plan.units), advance)
        report = run_plan(session, connection, plan, journal, limits, told)
    conclude(report)
    return report


def run_following(
    call: Call,
    run: JobRun,
    job: str,
    options: FollowOptions,
    make: Callable[[str], Batches],
    connection: Connection,
) -> Report:
    """Run a job that follows streams in batches.

    Args:
        call: The command's.
        run: What every job is told.
        job: Its name.
        options: What this one is told; a resumed job must have the same.
        make: Makes it, with its id.
        connection: Where the streams are.
    """
    from quorumbook.spark.jobs.batches import run_batches

    journal = open_journal(call, run, job, options.arguments())
    work = make(journal.job_id)
    with open_session(call, run) as session, progress(job, None) as advance:
        told = Lines(call, None, advance)
        report = run_batches(
            session, connection, work, journal, limits_of(run),
            every_s=options.look_every_s, on_progress=told,
        )  # fmt: skip
    work.conclude(report)
    return report


def dry_report(job: str, units: Sequence[Unit]) -> Report:
    """Return what a dry run says of units."""
    from quorumbook.spark.jobs.frame import Report

    return Report(
        job,
        "",
        is_dry_run=True,
        planned=[unit.key for unit in units[:_SHOWN_UNITS]],
        units=len(units),
        size_bytes=sum(unit.size_bytes for unit in units),
    )


def tell(call: Call, run: JobRun, report: Report) -> None:
    """Name what failed, and write the report."""
    for key, error in report.errors.items():
        call.warn("unit-failed", f"{report.job}: {key}: {error}")
    write_report(run, report)


def open_journal(call: Call, run: JobRun, job: str, arguments: Mapping[str, Any]) -> JobJournal:
    """Begin a job, or go on with the one that ``--resume`` names."""
    from quorumbook.spark.jobs.journal import JobJournal

    if run.resume:
        return JobJournal.resume(run.state_dir, run.resume, job, arguments)
    journal = JobJournal.begin(run.state_dir, job, arguments)
    call.note(f"{job}: if it does not come to its end, --resume {journal.job_id}")
    return journal


def limits_of(run: JobRun) -> Limits:
    """Return what a job may ask of the cluster."""
    from quorumbook.spark.jobs.engine import Limits

    return Limits(max_bookie_mbps=run.max_bookie_mbps, max_bookie_inflight=run.max_bookie_inflight)


class Lines:
    """Says now and then how far a job is, where no bar does."""

    def __init__(self, call: Call, units: int | None, advance: Callable[[int], None]) -> None:
        """Take how many units there are, if that is known, and what moves the bar."""
        self._call, self._units, self._advance = call, units, advance
        self._done = 0
        self._told_s = time.monotonic()

    def __call__(self, units: int, size_bytes: int) -> None:
        """Take in what was done since the last call."""
        del size_bytes
        self._done += units
        self._advance(units)
        if not sys.stderr.isatty() and time.monotonic() - self._told_s > _LINE_EVERY_S:
            self._told_s = time.monotonic()
            of_all = "" if self._units is None else f" of {self._units}"
            self._call.note(f"{self._done}{of_all} units")


def write_report(run: JobRun, report: Report) -> None:
    """Write the report where ``--json-report`` says."""
    if not run.json_report:
        return
    text = json.dumps(report.as_json(), indent=2) + "\n"
    if run.json_report == "-":
        sys.stdout.write(text)
        return
    with open(run.json_report, "w", encoding="utf-8") as file:
        file.write(text)


def check_spark(master: str | None = None) -> None:
    """Raise ConfigError, with what to do, if PySpark or Java is missing."""
    try:
        from quorumbook.spark.session import check_environment
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'quorumbook[spark]'") from error
    check_environment(master)


@contextlib.contextmanager
def open_session(call: Call, run: JobRun, *, is_needed: bool = True) -> Iterator[Any]:
    """Yield a Spark session, if there is anything to do; one that was there before stays."""
    from quorumbook.spark.session import active_session, is_remote, spark_session

    if not is_needed:
        yield None
        return
    found = active_session()
    # Progress is shown by units, and standard error is for people to read.
    quiet = {} if is_remote(run.master or None) else {"spark.ui.showConsoleProgress": "false"}
    session = found or spark_session(
        "quorumbook spark", master=run.master or None, configuration=quiet
    )
    if not call.is_verbose and found is None and not is_remote(run.master or None):
        session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        if found is None:
            session.stop()


def show(call: Call, run: JobRun, report: Report, *hidden: str) -> int:
    """Print what a job came to, unless its report goes to standard output; return its code."""
    if run.json_report != "-":
        hidden = ("exit_code", "rows", *hidden)
        values = {k: v for k, v in report.as_json().items() if k not in hidden}
        call.output.record({**values, "errors": len(report.errors)})
    return report.exit_code
