"""``quorumbook bench``: how fast this cluster is for one client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli import load
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.ledger.options import QUORUM_OPTIONS
from quorumbook.cli.values import Written
from quorumbook.options import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorumbook import BookKeeper, LedgerWriter

#: Ledgers that are created or closed at the same time.
_AT_ONCE = 64
_RATE = click.IntRange(min=1)


@click.group(cls=Commands)
def bench() -> None:
    """Measure a cluster."""


def _options(*, count: int, in_flight: int) -> Callable[[Any], Any]:
    size = click.IntRange(min=1)
    options = (
        *QUORUM_OPTIONS,
        click.option(
            "--entry-size", type=Written.amount(Kind.SIZE, minimum=8), default="1K",
            metavar="SIZE", show_default=True, help="Bytes of an entry.",
        ),
        click.option(
            "--count", type=size, default=count, show_default=True, help="Number of entries."
        ),
        click.option(
            "--in-flight", type=size, default=in_flight, show_default=True,
            help="Entries under way at a time.",
        ),
    )  # fmt: skip

    def apply(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


@bench.command(cls=ClusterCommand)
@_options(count=100_000, in_flight=1000)
@click.option("--rate", type=_RATE, help="Open loop: entries due each second.")
@click.option(
    "--ledgers", type=click.IntRange(min=1), default=1, show_default=True,
    help="Number of ledgers, written in turn.",
)  # fmt: skip
@click.option("--stamp", is_flag=True, hidden=True)
@click.pass_obj
def write(call: Call, /, **options: Any) -> None:
    """Append entries and report rate and latencies."""
    call.output.record(call.run(_write(call, **options)))


@bench.command(cls=ClusterCommand)
@_options(count=100_000, in_flight=1)
@click.option("--ledger", "ledger_id", type=click.IntRange(min=0), metavar="ID",
              help="Read this one [default: write one first].")  # fmt: skip
@click.option("--random", "is_random", is_flag=True, help="Single entries in random order.")
@click.pass_obj
def read(call: Call, /, **options: Any) -> None:
    """Read a ledger and report rate and latencies."""
    call.output.record(call.run(_read(call, **options)))


@bench.command(cls=ClusterCommand)
@QUORUM_OPTIONS[0]
@QUORUM_OPTIONS[1]
@QUORUM_OPTIONS[2]
@click.option("--count", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Number of ledgers.")  # fmt: skip
@click.option("--in-flight", type=click.IntRange(min=1), default=1, show_default=True,
              help="Ledgers under way at a time.")  # fmt: skip
@click.pass_obj
def ledgers(call: Call, /, **options: Any) -> None:
    """Create and close empty ledgers, which only the metadata store notices."""
    call.output.record(call.run(_ledgers(call, **options)))


@bench.command(cls=ClusterCommand)
@_options(count=10_000, in_flight=1000)
@click.option("--rate", type=_RATE, default=1000, show_default=True,
              help="Entries due each second.")  # fmt: skip
@click.pass_obj
def tail(call: Call, /, **options: Any) -> None:
    """Follow a ledger that another process writes.

    Latency counts from when an entry was due at the writer to when it was read here.
    """
    call.output.record(call.run(_tail(call, **options)))


def _client(call: Call, in_flight: int, entry_size: int) -> BookKeeper:
    return call.connect(
        max_pending_entries=2 * in_flight, max_pending_bytes=2 * in_flight * (entry_size + 512)
    )


async def _write(
    call: Call,
    *,
    ensemble_size: int | None,
    write_quorum: int | None,
    ack_quorum: int | None,
    entry_size: int,
    count: int,
    in_flight: int,
    rate: int | None,
    ledgers: int,
    stamp: bool,
) -> dict[str, object]:
    async with _client(call, in_flight, entry_size) as bk:
        shape = call.new_ledger_options(ensemble_size, write_quorum, ack_quorum)
        writers = await _create(bk, ledgers, shape)
        payload = os.urandom(entry_size)
        if stamp:
            # The reader in the other process waits for this line, and says when it is ready.
            print(json.dumps({"ledger_id": writers[0].id}), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        else:
            # Connections are made outside the measurement.
            await writers[0].append(payload)
        if rate is None:
            took, latencies = await load.write_closed(writers, payload, count, in_flight)
        else:
            payloads = load.stamped(entry_size) if stamp else lambda _: payload
            took, latencies = await load.write_open(writers[0], payloads, count, in_flight, rate)
        await _in_parts(writers, lambda writer: writer.close())
        return load.summary(writers[0].id, count, count * entry_size, took, latencies)


async def _ledgers(
    call: Call,
    *,
    count: int,
    in_flight: int,
    ensemble_size: int | None,
    write_quorum: int | None,
    ack_quorum: int | None,
) -> dict[str, object]:
    shape = call.new_ledger_options(ensemble_size, write_quorum, ack_quorum)
    latencies = load.Latencies()
    left = iter(range(count))
    last = -1

    async def one_after_the_other(bk: BookKeeper) -> None:
        nonlocal last
        for _ in left:
            began = load.now()
            async with bk.create_ledger(**shape) as writer:
                last = writer.id
            latencies.add(load.now() - began)

    async with call.connect() as bk:
        # The session and the first look at the bookies are outside the measurement.
        await (await bk.create_ledger(**shape)).close()
        began = load.now()
        await asyncio.gather(*(one_after_the_other(bk) for _ in range(in_flight)))
        took = load.now() - began
    return {
        "ledger_id": last,
        "ledgers": count,
        "seconds": round(took, 4),
        "ledgers_per_s": round(count / took, 1),
        **latencies.percentiles_ms(),
    }


async def _create(bk: BookKeeper, count: int, shape: dict[str, Any]) -> list[LedgerWriter]:
    writers: list[LedgerWriter] = []

    async def create(_: object) -> None:
        writers.append(await bk.create_ledger(**shape))

    await _in_parts(range(count), create)
    return writers


async def _in_parts(things: Any, work: Callable[[Any], Any]) -> None:
    waiting = list(things)
    for start in range(0, len(waiting), _AT_ONCE):
        await asyncio.gather(*(work(thing) for thing in waiting[start : start + _AT_ONCE]))


async def _read(
    call: Call,
    *,
    ledger_id: int | None,
    is_random: bool,
    count: int,
    in_flight: int,
    entry_size: int,
    **shape: int | None,
) -> dict[str, object]:
    limit = None
    if ledger_id is None:
        limit = count  # one more is written before the clock runs
        written = await _write(
            call, entry_size=entry_size, count=count, in_flight=1000, rate=None, ledgers=1,
            stamp=False, **shape,
        )  # fmt: skip
        ledger_id = int(str(written["ledger_id"]))
    async with (
        _client(call, in_flight, entry_size) as bk,
        bk.open_ledger(ledger_id, recover=False) as ledger,
    ):
        if is_random:
            entries, size, took, latencies = await load.read_at_random(ledger, count, in_flight)
        else:
            entries, size, took, latencies = await load.read_in_order(ledger, limit)
    return load.summary(ledger_id, entries, size, took, latencies)


async def _tail(
    call: Call,
    *,
    entry_size: int,
    count: int,
    in_flight: int,
    rate: int,
    **shape: int | None,
) -> dict[str, object]:
    words = ["--entry-size", entry_size, "--count", count, "--in-flight", in_flight]
    words += ["--rate", rate, "--stamp", "-o", "jsonl"]
    words += call.forwarded()
    for name, value in shape.items():
        words += [] if value is None else [f"--{name.replace('_', '-')}", value]
    command = [sys.executable, "-m", "quorumbook", "bench", "write", *map(str, words)]
    pipe = asyncio.subprocess.PIPE
    # A Ctrl-C is answered by this process alone.
    writer = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, env=call.environment(), start_new_session=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        line = await writer.stdout.readline()
        if not line:
            # It has told why in a line of its own.
            raise click.exceptions.Exit(await writer.wait())
        ledger_id = json.loads(line)["ledger_id"]
        latencies, entries = load.Latencies(), 0
        async with (
            _client(call, in_flight, entry_size) as bk,
            bk.open_ledger(ledger_id, recover=False) as ledger,
        ):
            writer.stdin.write(b"\n")
            began = load.now()
            async for entry in ledger.tail(first=0):
                latencies.add(load.age_s(entry.payload))
                entries += 1
                if entries == count:
                    break
            took = load.now() - began
        await writer.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            writer.kill()
    return load.summary(ledger_id, entries, entries * entry_size, took, latencies)
