"""``quorumbook status``: one verdict on a cluster, its reasons, and what to do about each.

The exit code is the verdict: 0 ok, 1 warning, 2 critical.  As for every command, 2 without
anything on standard output is wrong use, 3 says that there is no cluster.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.errors import NOT_THERE
from quorumbook.cli.output import FORMATS, RAW, TABLE
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.values import duration

if TYPE_CHECKING:
    from quorumbook.admin.facts.cluster import ClusterFacts
    from quorumbook.admin.facts.verdict import Judgement

PLUGIN = "plugin"
#: Errors that say that there is nothing to look at are not verdicts; plug-ins call that UNKNOWN.
_UNKNOWN = NOT_THERE


@click.command(cls=ClusterCommand, forms=(*FORMATS, PLUGIN), has_log=True)
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@duration("--every", "every", "5s", "With --watch: time from one look to the next.",
          minimum=0.2, maximum=86400)  # fmt: skip
@click.pass_obj
def status(call: Call, watch: bool, every: float) -> int:
    """Say whether the cluster is healthy, and if not, why and what to do.

    The exit code is 0 (ok), 1 (warning) or 2 (critical). `-o plugin` prints one line for Nagios
    and its kin.
    """
    begin_log(call.settings, is_verbose=call.is_verbose, usual="error")
    return call.run(_status(call, every if watch else None))


async def _status(call: Call, every_s: float | None) -> int:
    from quorumbook.errors import ClusterNotInitializedError

    while True:
        try:
            facts, judgement = await _look(call)
        except ClusterNotInitializedError as error:
            if call.output.form != PLUGIN:
                raise
            print(f"QUORUMBOOK UNKNOWN - {error}")
            return _UNKNOWN
        if every_s is not None and call.output.form == TABLE and sys.stdout.isatty():
            click.clear()
        _show(call, facts, judgement)
        if every_s is None:
            return int(judgement.level)
        sys.stdout.flush()
        await asyncio.sleep(every_s)


async def _look(call: Call) -> tuple[ClusterFacts | None, Judgement]:
    """Return what is to be seen; no facts where the metadata store does not answer.

    Raises:
        ClusterNotInitializedError: It answers that there is no cluster.
    """
    from quorumbook.admin.facts.cluster import cluster_facts
    from quorumbook.admin.facts.verdict import judge, unreachable
    from quorumbook.errors import MetadataUnavailableError
    from quorumbook.metadata.uri import open_store

    try:
        timeout_s = call.settings.number("metadata.session_timeout_s")
        store = await open_store(call.metadata_uri, session_timeout_s=timeout_s)
        try:
            facts = await cluster_facts(store)
        finally:
            await store.close()
    except MetadataUnavailableError as error:
        fix = "check --metadata, and that what it names can be reached"
        return None, unreachable("metadata-unavailable", f"no metadata: {error}", fix)
    return facts, judge(facts)


def _show(call: Call, facts: ClusterFacts | None, judgement: Judgement) -> None:
    form = call.output.form
    if form == PLUGIN:
        print(_plugin_line(facts, judgement))
    elif form == TABLE:
        _show_table(call, facts, judgement)
    elif form == RAW:
        call.output.record({"status": judgement.level.name.lower(), "text": judgement.sentence()})
    else:
        call.output.record(
            {
                "status": judgement.level.name.lower(),
                "reasons": [reason.row() for reason in judgement.reasons],
                **(facts.row() if facts is not None else {}),
                "bookies": [bookie.row() for bookie in facts.bookies] if facts else [],
            }
        )


def _show_table(call: Call, facts: ClusterFacts | None, judgement: Judgement) -> None:
    from quorumbook.admin.facts.words import counted, sized

    print(judgement.level.name if judgement.reasons else judgement.sentence())
    for reason in judgement.reasons:
        print(f"  {reason.level.name.lower():8}  {reason.text}")
        if reason.fix:
            print(f"  {'':8}  -> {reason.fix}")
    print()
    if facts is None:
        return
    row = facts.row()
    ledgers = facts.ledgers
    call.output.record(
        {
            "cluster": facts.instance_id,
            "bookies": f"{row['writable_bookies']} writable, {row['read_only_bookies']} read-only, "
            f"{row['down_bookies']} down",
            "ledgers": f"{counted(ledgers.ledgers, 'ledger')}, {ledgers.open_ledgers:,} open, "
            f"{sized(ledgers.length_bytes)} in the closed ones",
            "under-replicated": f"{facts.underreplicated:,}, "
            f"{len(facts.quarantined):,} of them in quarantine",
            "auditor": facts.auditor or "none",
            "auto-recovery": "enabled" if facts.is_recovery_enabled else "disabled",
            "metadata": f"{facts.metadata_uri}, answers in {facts.metadata_ms:.2g} ms",
        }
    )
    print()
    call.output.rows(
        [_bookie_row(facts, index) for index in range(len(facts.bookies))],
        ["bookie_id", "state", "rack", "ledgers", "fullest_disk", "reasons"],
    )


def _bookie_row(facts: ClusterFacts, index: int) -> dict[str, object]:
    from quorumbook.admin.facts.verdict import fullest

    bookie = facts.bookies[index]
    disk = fullest(bookie)
    return {**bookie.row(), "fullest_disk": f"{disk[0]:.0%} of {disk[1]}" if disk else ""}


def _plugin_line(facts: ClusterFacts | None, judgement: Judgement) -> str:
    """Return the one line of a monitoring plug-in: a status, a text, numbers."""
    _, _, text = judgement.sentence().partition(": ")
    line = f"QUORUMBOOK {judgement.level.name} - {text.replace('|', '/')}"
    if facts is None:
        return line
    row = facts.row()
    names = ("writable_bookies", "read_only_bookies", "down_bookies", "ledgers", "open_ledgers",
             "unreadable_ledgers", "underreplicated_ledgers", "quarantined_ledgers")  # fmt: skip
    numbers = [f"{name}={row[name]}" for name in names]
    return f"{line} | {' '.join(numbers)} metadata_time={facts.metadata_ms:.3f}ms"
