"""What each command of Apache BookKeeper's shell is here; pure.

Options may have one dash or two, as there.  A command that has no counterpart says what to do
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: Where the value of an option becomes an argument of ours.
ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class Given:
    """An option of a command there.

    Attributes:
        names: Its spellings, without dashes.
        to: The option of ours; ARGUMENT: its value is an argument; empty: it changes nothing.
        takes: Whether a value follows it.
        replaces: The command that it asks for, instead of the usual one.
        note: What it changes nothing for, as people are told.
        refusal: Why the command is not run with it, and what to do.
    """

    names: tuple[str, ...]
    to: str = ""
    takes: bool = False
    replaces: str = ""
    note: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A command there.

    Attributes:
        ours: The words of our command; empty: there is none.
        options: What may be given with it.
        arguments: Whether it takes arguments, which ours gets; commas part them.
        defaults: Our options that are added unless they are given.
        instead: What to do where there is no command of ours.
    """

    ours: str = ""
    options: Sequence[Given] = ()
    arguments: bool = False
    defaults: dict[str, str] = field(default_factory=dict)
    instead: str = ""


def instead(text: str) -> Named:
    """Return a command that has no counterpart."""
    return Named(instead=text)


_FORCE = Given(("f", "force"))
_VERBOSE = Given(("v", "verbose"))
_LEDGER = Given(("l", "ledgerid"), ARGUMENT, takes=True)
_OWN_COOKIE = (
    "Cookies are written by the bookie itself: `quorumbook bookie run` makes one at its first "
    "start, and takes up new empty directories with it. To forget a bookie that is gone: "
    "`quorumbook bookie recover BOOKIE --delete-cookie`"
)
_OWN_ID = (
    "Ledgers name a bookie by its id, which is never rewritten. Keep the id where a host's name "
    "changes: `quorumbook bookie run --set bookie.bookie_id=OLD-HOST:3181`. To move what a bookie "
    "holds: `quorumbook bookie decommission BOOKIE`"
)
_ONE_FORMAT = (
    "Our bookies have one index format. `quorumbook bookie adopt` takes over a Java bookie's "
    "directories, and `quorumbook bookie give-back` gives them back"
)

NAMES: dict[str, Named] = {
    "activeledgers": Named(
        "disk log",
        (Given(("l", "logId"), ARGUMENT, takes=True), Given(("t", "timeout"), takes=True)),
    ),
    "autorecovery": Named(
        "recovery status",
        (
            Given(("e", "enable"), replaces="recovery enable"),
            Given(("d", "disable"), replaces="recovery disable"),
        ),
    ),
    "bookieformat": instead(
        "Nothing here wipes directories. Move what the bookie holds with `quorumbook bookie "
        "decommission BOOKIE`, stop it, delete its directories, and start it again: it comes as a "
        "new bookie"
    ),
    "bookieinfo": Named("bookie ls --disks"),
    "bookiesanity": Named(
        "bench write",
        (Given(("e", "entries"), "--count", takes=True), Given(("t", "timeout"), takes=True)),
        defaults={"--ensemble-size": "1", "--count": "10"},
    ),
    "check-db-ledgers-index": Named("disk fsck", (_VERBOSE,)),
    "clusterinfo": Named("status"),
    "convert-to-db-storage": instead(_ONE_FORMAT),
    "convert-to-interleaved-storage": instead(_ONE_FORMAT),
    "cookie_create": instead(_OWN_COOKIE),
    "cookie_delete": instead(_OWN_COOKIE),
    "cookie_generate": instead(_OWN_COOKIE),
    "cookie_get": instead(
        "`quorumbook bookie ls` shows every bookie that has a cookie, down ones included; the "
        "cookie itself is in the console, under Metadata: `quorumbook console`"
    ),
    "cookie_update": instead(_OWN_COOKIE),
    "decommissionbookie": Named(
        "bookie decommission", (Given(("bookieid",), ARGUMENT, takes=True),)
    ),
    "deleteledger": Named(
        "ledger delete",
        (_LEDGER, Given(("f", "force"), "--yes"), Given(("b", "bookie"), takes=True)),
    ),
    "endpointinfo": Named(
        "bookie ls --registered -o json",
        (Given(("b", "bookieid"), takes=True, note="all bookies are shown; yours is among them"),),
    ),
    "forceauditchecks": Named(
        "recovery trigger",
        (
            Given(("calc", "checkallledgerscheck"), "--check=ledgers"),
            Given(("ppc", "placementpolicycheck"), "--check=placement"),
            Given(("rc", "replicascheck"), "--check=replicas"),
        ),
    ),
    "help": Named(),
    "initbookie": instead(_OWN_COOKIE),
    "initnewcluster": Named("cluster init"),
    "lastmark": Named("disk journal"),
    "ledger": Named("disk index", (Given(("m", "meta")),), arguments=True),
    "ledgermetadata": Named(
        "ledger show",
        (
            _LEDGER,
            Given(
                ("dumptofile",),
                takes=True,
                refusal="`quorumbook metadata dump URI FILE` writes the metadata of all ledgers",
            ),
            Given(
                ("restorefromfile",),
                takes=True,
                refusal="`quorumbook metadata restore FILE URI` puts back what `metadata dump` "
                "wrote, into an empty store",
            ),
            Given(("update",), refusal="metadata of one ledger is not put back from a file"),
        ),
    ),
    "listbookies": Named(
        "bookie ls --registered",
        (
            Given(("a", "all")),
            Given(("rw", "readwrite"), "--state=writable"),
            Given(("ro", "readonly"), "--state=read-only"),
            Given(("h", "hostnames")),
        ),
    ),
    "listfilesondisc": Named(
        "disk log",
        (
            Given(("txn", "journal"), replaces="disk journal"),
            Given(("log", "entrylog"), replaces="disk log"),
            Given(("idx", "index"), replaces="disk index"),
        ),
    ),
    "listledgers": Named(
        "ledger ls", (Given(("m", "meta")), Given(("bookieid",), "--bookie", takes=True))
    ),
    "listunderreplicated": Named(
        "recovery underreplicated",
        (
            Given(("mr", "missingreplica"), "--missing-on", takes=True),
            Given(("emr", "excludingmissingreplica"), "--not-missing-on", takes=True),
            Given(("pmr", "printmissingreplica")),
            Given(("prw", "printreplicationworkerid")),
            Given(("c", "onlydisplayledgercount"), "--count"),
        ),
    ),
    "localconsistencycheck": Named("disk fsck"),
    "lostbookierecoverydelay": Named(
        "recovery delay", (Given(("g", "get")), Given(("s", "set"), ARGUMENT, takes=True))
    ),
    "metaformat": Named(
        "cluster init",
        (
            Given(("n", "nonInteractive")),
            Given(
                ("f", "force"),
                refusal="nothing here formats a cluster that exists; "
                "`quorumbook cluster init` makes a new one at another place",
            ),
        ),
    ),
    "nukeexistingcluster": instead(
        "Nothing here deletes a whole cluster. Stop its bookies, delete their directories, and "
        "delete the cluster's root in the metadata store with the store's own tool; then "
        "`quorumbook cluster init` makes a new one"
    ),
    "queryautorecoverystatus": Named("recovery status", (_VERBOSE,)),
    "readjournal": Named(
        "disk journal",
        (
            Given(("dir",), "--data-dir", takes=True),
            Given(("m", "msg"), note="entries are not printed: `quorumbook ledger read ID` does"),
        ),
    ),
    "readledger": Named(
        "ledger read -o jsonl",
        (
            _LEDGER,
            Given(("m", "msg"), replaces="ledger read"),
            Given(("fe", "firstentryid"), "--first", takes=True),
            Given(("le", "lastentryid"), "--last", takes=True),
            Given(("r", "force-recovery"), "--recover"),
            Given(
                ("b", "bookie"),
                takes=True,
                refusal="entries come from whichever bookie has them; what one bookie has is shown "
                "on its host, while it is stopped, by `quorumbook disk index ID`",
            ),
        ),
    ),
    "readlog": Named(
        "disk log",
        (
            Given(("m", "msg"), note="entries are not printed: `quorumbook ledger read ID` does"),
            Given(("l", "ledgerid"), takes=True, note="all ledgers of the log are listed"),
            Given(("e", "entryid"), takes=True, note="all entries of the log are listed"),
            Given(("sp", "startpos"), takes=True, note="the log is listed from its beginning"),
            Given(("ep", "endpos"), takes=True, note="the log is listed to its end"),
        ),
        arguments=True,
    ),
    "readlogmetadata": Named("disk log", arguments=True),
    "rebuild-db-ledger-locations-index": Named("disk rebuild-index"),
    "rebuild-db-ledgers-index": Named("disk rebuild-index", (_VERBOSE,)),
    "recover": Named(
        "bookie recover",
        (
            Given(("q", "query"), "--dry-run"),
            Given(("dr", "dryrun"), "--dry-run"),
            _FORCE,
            Given(
                ("l", "ledger"),
                takes=True,
                refusal="`quorumbook bookie recover` does all ledgers of a bookie; without it, "
                "auto-recovery does each one that is in its queue",
            ),
            Given(("sk", "skipOpenLedgers"), "--skip-open"),
            Given(
                ("sku", "skipUnrecoverableLedgers"),
                note="a ledger that cannot be recovered never stops the others",
            ),
            Given(("d", "deleteCookie"), "--delete-cookie"),
            Given(
                ("rate", "replicationRate"),
                takes=True,
                refusal="say it in the configuration: `--set background.io_rate_bytes=50M` "
                "before `shell`",
            ),
        ),
        arguments=True,
    ),
    "regenerate-interleaved-storage-index-file": instead(
        "`quorumbook disk rebuild-index --repair` makes a stopped bookie's whole index again"
    ),
    "simpletest": Named(
        "bench write",
        (
            Given(("e", "ensemble"), "--ensemble-size", takes=True),
            Given(("w", "writeQuorum"), "--write-quorum", takes=True),
            Given(("a", "ackQuorum"), "--ack-quorum", takes=True),
            Given(("n", "numEntries"), "--count", takes=True),
        ),
        defaults={
            "--ensemble-size": "3",
            "--write-quorum": "2",
            "--ack-quorum": "2",
            "--count": "1000",
        },
    ),
    "triggeraudit": Named("recovery trigger"),
    "updateBookieInLedger": instead(_OWN_ID),
    "updatecookie": instead(_OWN_COOKIE),
    "updateledgers": instead(_OWN_ID),
    "whatisinstanceid": Named("status"),
    "whoisauditor": Named("recovery auditor"),
}
