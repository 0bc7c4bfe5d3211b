"""Ok, warning or critical, and why: one judgement of a cluster, made of its facts alone.

critical   entries cannot be read, nothing can be written, or the metadata store is away
warning    everything works, but one more failure may be one too many, or repair does not go on
ok         nothing is to be done
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from quorumbook.admin.facts.bookies import DOWN, READ_ONLY, WRITABLE, BookieFacts
from quorumbook.admin.facts.cluster import ClusterFacts
from quorumbook.admin.facts.words import counted, listed

#: From here on a disk is nearly full; at ``bookie.max_disk_usage`` (0.95) the bookie is read-only.
DISK_WARNING = 0.85


class Level(IntEnum):
    """How bad it is; the numbers are exit codes, and those of monitoring plug-ins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class VerdictReason:
    """One thing that is wrong."""

    level: Level
    #: Stable, for programs.
    code: str
    #: What is so, in a sentence.
    text: str
    #: What to do about it.
    fix: str = ""

    def row(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {
            "level": self.level.name.lower(),
            "code": self.code,
            "text": self.text,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a cluster."""

    #: The worst first.
    reasons: tuple[VerdictReason, ...]

    @property
    def level(self) -> Level:
        """Return the worst of the reasons."""
        return max((reason.level for reason in self.reasons), default=Level.OK)

    def sentence(self) -> str:
        """Return the verdict in one line."""
        if not self.reasons:
            return "OK: nothing is to be done"
        return f"{self.level.name}: {'; '.join(reason.text for reason in self.reasons)}"


def judge(facts: ClusterFacts) -> Judgement:
    """Judge a cluster."""
    reasons = [*_bookies(facts), *_ledgers(facts), *_recovery(facts), *_disks(facts)]
    if facts.damaged:
        reasons.append(
            VerdictReason(
                Level.WARNING,
                "damaged-metadata",
                f"some metadata cannot be understood: {listed(facts.damaged)}",
                "restore these nodes from a backup (`quorumbook metadata restore`)",
            )
        )
    return Judgement(tuple(sorted(reasons, key=lambda reason: -reason.level)))


def unreachable(code: str, text: str, fix: str = "") -> Judgement:
    """Return the verdict on a cluster whose metadata store does not answer."""
    return Judgement((VerdictReason(Level.CRITICAL, code, text, fix),))


def _bookies(facts: ClusterFacts) -> list[VerdictReason]:
    reasons = []
    writable, read_only, down = (facts.ids(state) for state in (WRITABLE, READ_ONLY, DOWN))
    if not writable:
        reasons.append(
            VerdictReason(
                Level.CRITICAL,
                "no-writable-bookie",
                "no bookie is writable, so nothing can be written"
                if read_only or down
                else "no bookie is registered, so nothing can be written",
                "start bookies (`quorumbook bookie run`); `quorumbook bookie ls` says what keeps "
                "others read-only",
            )
        )
    if down:
        named = sum(bookie.ledgers or 0 for bookie in facts.bookies if bookie.state == DOWN)
        text = f"{counted(len(down), 'bookie')} down: {listed(down)}"
        if named:
            text += f" (replicas of {counted(named, 'ledger')} are there)"
        reasons.append(
            VerdictReason(
                Level.WARNING,
                "bookie-down",
                text,
                f"start it again; if it will not come back: `quorumbook bookie recover {down[0]}`",
            )
        )
    if read_only:
        reasons.append(
            VerdictReason(
                Level.WARNING,
                "bookie-read-only",
                f"{counted(len(read_only), 'bookie')} read-only: {listed(_with_reasons(facts))}",
                "`quorumbook bookie readonly status BOOKIE` says why",
            )
        )
    if silent := [bookie.bookie_id for bookie in facts.bookies if bookie.error]:
        reasons.append(
            VerdictReason(
                Level.WARNING,
                "bookie-silent",
                f"{counted(len(silent), 'bookie')} registered but silent over HTTP: "
                f"{listed(silent)}",
                "look at its log, and whether its http.port can be reached from here",
            )
        )
    return reasons


def _with_reasons(facts: ClusterFacts) -> list[str]:
    found = [bookie for bookie in facts.bookies if bookie.state == READ_ONLY]
    return [
        f"{bookie.bookie_id} ({', '.join(bookie.reasons)})" if bookie.reasons else bookie.bookie_id
        for bookie in found
    ]


def _ledgers(facts: ClusterFacts) -> list[VerdictReason]:
    reasons = []
    ledgers = facts.ledgers
    if ledgers.unreadable_count:
        reasons.append(
            VerdictReason(
                Level.CRITICAL,
                "entries-unreadable",
                f"{counted(ledgers.unreadable_count, 'ledger')} with entries that no registered "
                f"bookie has: {listed(ledgers.unreadable)}",
                "bring back the bookies that are down; nothing else has these entries",
            )
        )
    if ledgers.damaged_count:
        reasons.append(
            VerdictReason(
                Level.CRITICAL,
                "ledger-metadata-damaged",
                f"the metadata of {counted(ledgers.damaged_count, 'ledger')} cannot be "
                f"understood: {listed(ledgers.damaged, 1)}",
                "restore these nodes from a backup (`quorumbook metadata restore`)",
            )
        )
    if facts.underreplicated:
        reasons.append(
            VerdictReason(
                Level.WARNING,
                "under-replicated",
                f"{counted(facts.underreplicated, 'ledger')} under-replicated",
                "`quorumbook recovery underreplicated` lists them with the worker at each",
            )
        )
    if facts.quarantined:
        first = facts.quarantined[0]
        reasons.append(
            VerdictReason(
                Level.WARNING,
                "quarantined",
                f"{counted(len(facts.quarantined), 'ledger')} in quarantine; ledger "
                f"{first.ledger_id}: {first.reason}",
                "`quorumbook recovery underreplicated` says what stands in the way of each",
            )
        )
    return reasons


def _recovery(facts: ClusterFacts) -> list[VerdictReason]:
    if not facts.is_recovery_enabled:
        return [
            VerdictReason(
                Level.WARNING,
                "recovery-disabled",
                "auto-recovery is switched off",
                "`quorumbook recovery enable` switches it on",
            )
        ]
    if facts.auditor is None:
        return [
            VerdictReason(
                Level.WARNING,
                "no-auditor",
                "there is no auditor, so nobody notices lost bookies",
                "start one: `quorumbook recovery run`, or bookies with recovery.in_bookie",
            )
        ]
    return []


def fullest(bookie: BookieFacts) -> tuple[float, str] | None:
    """Return the share that is used of a bookie's fullest disk, and its path."""
    used = [
        (float(row["used"]), str(row.get("path", "")))
        for row in bookie.directories
        if isinstance(row.get("used"), int | float)
    ]
    return max(used, default=None)


def _disks(facts: ClusterFacts) -> list[VerdictReason]:
    full = [
        f"{bookie.bookie_id} {disk[1]} {disk[0]:.0%}"
        for bookie in facts.bookies
        if (disk := fullest(bookie)) is not None and disk[0] >= DISK_WARNING
    ]
    if not full:
        return []
    return [
        VerdictReason(
            Level.WARNING,
            "disk-nearly-full",
            f"disks nearly full: {listed(full)}",
            "add bookies and `quorumbook bookie balance`, or delete ledgers and streams",
        )
    ]
