"""What a bookie does in the background, over HTTP: garbage, scrubbing, and how fast."""

from __future__ import annotations

from urllib.parse import quote

import click

from quorumbook.admin.facts.bookie_http import look
from quorumbook.cli.bookie.http_client import address_of, change, look_through
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.known.names import bookie_ids
from quorumbook.cli.output import Moment
from quorumbook.config import OPTIONS


@click.command(cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@click.option("--minor", is_flag=True, help="With a minor compaction.")
@click.option("--major", is_flag=True, help="With a major compaction.")
@click.option("--suspend", "choice", flag_value="suspend", help="Compact nothing from now on.")
@click.option("--resume", "choice", flag_value="resume", help="Compact again.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def gc(
    call: Call, bookie: str, minor: bool, major: bool, choice: str | None, dry_run: bool
) -> None:
    """Have a bookie collect garbage now, or suspend and resume its compaction."""
    if dry_run and choice is not None:
        raise click.UsageError(f"--dry-run does not go with --{choice}")
    address = address_of(call, bookie)
    chosen = "&".join(name for name, on in (("minor=true", minor), ("major=true", major)) if on)
    if dry_run:
        call.output.record(look_through(call, address, f"/api/v1/bookie/gc_plan?{chosen}"))
        return
    if choice is None:
        change(call, address, f"/api/v1/bookie/gc?{chosen}")
    else:
        change(call, address, f"/api/v1/bookie/gc/{choice}_compaction")
    call.output.record(look(address, "/api/v1/bookie/gc_details"))


@click.command("gc-hold", cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@click.option("--approve", metavar="SET", help="Let exactly this set of ledgers be deleted.")
@click.pass_obj
def gc_hold(call: Call, bookie: str, approve: str | None) -> None:
    """Show which deletions of a bookie wait for your approval, and why; or approve of them."""
    address, path = address_of(call, bookie), "/api/v1/bookie/gc_hold"
    if approve is not None:
        state = change(call, address, f"{path}?approve={quote(approve)}")
    else:
        state = look(address, path)
    call.output.record(state)


@click.command("explain-gc", cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@click.pass_obj
def explain_gc(call: Call, bookie: str) -> None:
    """Say of each entry log of a bookie what keeps it, and what happens to it next."""
    call.output.rows(
        look_through(call, address_of(call, bookie), "/api/v1/bookie/gc_logs"),
        ["entry_log", "size_bytes", "live_bytes", "ledgers", "fate"],
        empty="the bookie has no entry logs",
    )


@click.command(cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@click.option("--now", is_flag=True, help="Begin to read all of it now.")
@click.pass_obj
def scrub(call: Call, bookie: str, now: bool) -> None:
    """Say how far a bookie's search for damage is, or begin one."""
    address, path = address_of(call, bookie), "/api/v1/bookie/scrub"
    found = change(call, address, path) if now else look(address, path)
    # Under the name that times have in the output of commands.
    call.output.record(
        {
            name.removesuffix("_ms"): Moment.known(value) if name == "finished_at_ms" else value
            for name, value in found.items()
        }
    )


@click.command("background-io", cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@click.option("--rate-bytes", metavar="SIZE", help="The rate from now on; 0 sets no limit.")
@click.pass_obj
def background_io(call: Call, bookie: str, rate_bytes: str | None) -> None:
    """Show or change how much compaction, scrubbing and replication may read and write."""
    path = "/api/v1/background_io"
    if rate_bytes is None:
        state = look(address_of(call, bookie), path)
    else:
        option = next(option for option in OPTIONS if option.key == "background.io_rate_bytes")
        rate = option.parse(rate_bytes, source="--rate-bytes")
        state = change(call, address_of(call, bookie), f"{path}?rate_bytes={rate}")
    call.output.record(state)
