"""``quorumbook top``: what the bookies do at the moment, and which ledgers and streams are busy."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import JSON, JSONL, TABLE
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.values import duration

if TYPE_CHECKING:
    from quorumbook.admin.activity.looks import Activity

_BOOKIE_COLUMNS = ["bookie", "state", "adds_per_s", "reads_per_s", "written", "read", "add_p50_ms",
                   "add_p99_ms", "read_p99_ms", "fullest_disk", "sync_ms"]  # fmt: skip


@click.command(cls=ClusterCommand, forms=(TABLE, JSON, JSONL), has_log=True)
@click.option("--once", is_flag=True, help="Print one picture and end.")
@duration("--every", "every", "2s", "Time from one look to the next.", minimum=0.2, maximum=3600)
@click.option(
    "--count", type=click.IntRange(1, 1000), default=10, show_default=True,
    help="The largest number of ledgers, and of streams, to show.",
)  # fmt: skip
@click.pass_obj
def top(call: Call, once: bool, every: float, count: int) -> None:
    """Show what the bookies do: rates, latencies, disks, the busiest ledgers and streams.

    On a terminal the picture is renewed until Ctrl-C. With `--once`, and with `-o json`, one is
    printed; `-o jsonl` prints one after the other.
    """
    begin_log(call.settings, is_verbose=call.is_verbose, usual="error")
    is_once = once or call.output.form == JSON
    call.run(_run(call, every, count, is_once=is_once))


async def _run(call: Call, every_s: float, count: int, *, is_once: bool) -> None:
    from quorumbook.admin.activity.looks import Eye, activity
    from quorumbook.metadata.uri import open_store

    async with call.connect() as bk, contextlib.AsyncExitStack() as stack:
        store = await open_store(call.metadata_uri)
        stack.push_async_callback(store.close)
        eye = Eye(bk, store)
        before = await eye.look()
        while True:
            await asyncio.sleep(every_s)
            after = await eye.look()
            _show(call, activity(before, after, count), is_once=is_once)
            if is_once:
                return
            before = after


def _show(call: Call, seen: Activity, *, is_once: bool) -> None:
    if call.output.form != TABLE:
        call.output.record(seen.row())
        sys.stdout.flush()
        return
    if not is_once and sys.stdout.isatty():
        click.clear()
    _show_table(call, seen)
    sys.stdout.flush()


def _show_table(call: Call, seen: Activity) -> None:
    from quorumbook.admin.facts.words import counted, sized

    def told(row: dict[str, object]) -> dict[str, object]:
        shown = {**row, "bookie": row["bookie_id"], "sync_ms": row.get("sync_ms_mean")}
        for name in ("written", "read"):
            amount = row.get(f"{name}_bytes_per_s")
            shown[name] = "-" if amount is None else f"{sized(round(float(str(amount))))}/s"
        if "used" in row:
            shown["fullest_disk"] = f"{float(str(row['used'])):.0%} of {row['fullest_disk']}"
        return {name: _brief(shown.get(name)) for name in _BOOKIE_COLUMNS}

    call.output.rows([told(row) for row in seen.bookies], _BOOKIE_COLUMNS)
    print(f"\n{counted(seen.open_ledgers, 'open ledger')}", end="")
    unasked = seen.unasked_ledgers
    print(f", {unasked:,} of them not looked at" if unasked else "")
    if not seen.ledgers:
        print("nothing is appended to them at the moment")
        return
    call.output.rows(seen.ledgers, ["ledger_id", "entries_per_s", "last_entry_id", "stream"])
    if seen.streams:
        print()
        call.output.rows(seen.streams, ["stream", "entries_per_s"])


def _brief(value: object) -> object:
    """Return a number with as many digits as anybody reads in a moment."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and value < 1000 else value
