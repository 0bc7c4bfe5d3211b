"""Cheat sheets: the commands for one purpose, with a word on each.

A word in capitals is for whoever reads it to fill in.
"""

from __future__ import annotations

#: By topic: what it is about, and the commands, each after what it does.
CHEATS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "start": (
        "a cluster on this machine, and on several",
        (
            ("three bookies here, with a console", "quorumbook standalone"),
            ("the files of systemd, compose and Kubernetes", "quorumbook deploy export DIRECTORY"),
            (
                "a new cluster's metadata",
                "quorumbook cluster init --metadata zk://HOST:2181/ledgers",
            ),
            ("a bookie", "quorumbook bookie run --data-dir /var/lib/quorumbook"),
            ("whether this machine is fit for one", "quorumbook doctor"),
            (
                "say once where the cluster is",
                "quorumbook context add prod --metadata zk://HOST:2181/ledgers --use",
            ),
        ),
    ),
    "ledgers": (
        "write once, read as often as you like",
        (
            ("lines become entries; the id is printed", "quorumbook ledger write FILE"),
            ("read them", "quorumbook ledger read 7"),
            ("follow one that is being written", "quorumbook ledger tail 7"),
            ("store a file, and get it back", "quorumbook ledger put FILE"),
            ("", "quorumbook ledger get 7 --to FILE"),
            ("the ten largest", "quorumbook ledger ls --sort -bytes --limit 10"),
            (
                "those of one application, older than a month",
                "quorumbook ledger ls --custom app=billing --older-than 30d",
            ),
            ("close one whose writer is gone", "quorumbook ledger recover 7"),
            ("which bookies hold it", "quorumbook ledger show 7"),
        ),
    ),
    "streams": (
        "write again and again, read from anywhere",
        (
            (
                "make one that keeps a week",
                "quorumbook stream create orders --policy retain_time_s=7d",
            ),
            ("append lines", "quorumbook stream write orders FILE"),
            ("from an hour ago", "quorumbook stream read orders --from -1h"),
            ("what comes now", "quorumbook stream tail orders"),
            ("the ten largest", "quorumbook stream ls --long --sort -bytes --limit 10"),
            ("how far readers are", "quorumbook stream cursors orders"),
            ("cut off what is older", "quorumbook stream truncate orders --before -7d"),
            ("delete what policies allow, now", "quorumbook stream retention"),
        ),
    ),
    "groups": (
        "share the records of a partitioned stream out",
        (
            ("a stream with four partitions", "quorumbook stream create clicks --partitions 4"),
            ("be a member, and print", "quorumbook stream consume clicks --group billing"),
            (
                "run a command for each record",
                "quorumbook stream consume clicks --group mail --exec ./send --max-deliveries 5",
            ),
            ("only look", "quorumbook stream consume clicks --group look --then leave --idle 1s"),
            ("who has what, and the lag", "quorumbook stream groups clicks"),
            ("go back an hour", "quorumbook stream groups clicks --reset billing -1h"),
        ),
    ),
    "health": (
        "is it well, and if not, what now",
        (
            ("one verdict with reasons", "quorumbook status"),
            ("again and again", "quorumbook status --watch"),
            ("for Nagios and its kin", "quorumbook status -o plugin"),
            ("rates and latencies, live", "quorumbook top"),
            ("bookies that are down", "quorumbook bookie ls --state down"),
            ("how full disks are", "quorumbook bookie ls --disks"),
            ("what lacks replicas", "quorumbook recovery underreplicated"),
            ("in a browser", "quorumbook console"),
            ("a file for somebody who helps", "quorumbook support-bundle"),
            ("what an error means", "quorumbook help ledger-fenced"),
        ),
    ),
    "bookies": (
        "maintain a bookie, or take it away",
        (
            ("may it be stopped for a while?", "quorumbook bookie can-stop BOOKIE"),
            ("no new entries", "quorumbook bookie readonly on BOOKIE --reason 'new disk'"),
            ("move what it holds, step one: look", "quorumbook bookie drain BOOKIE --dry-run"),
            ("for good", "quorumbook bookie decommission BOOKIE"),
            (
                "it is lost: replicate what it had",
                "quorumbook bookie recover BOOKIE --delete-cookie",
            ),
            ("a new one takes its share", "quorumbook bookie balance"),
            ("free space now", "quorumbook bookie gc BOOKIE"),
            ("check a stopped one's files", "quorumbook disk fsck --data-dir DIRECTORY"),
        ),
    ),
    "java": (
        "you know Apache BookKeeper",
        (
            ("its shell's commands, and ours", "quorumbook shell"),
            ("one of them, answered by ours", "quorumbook shell listunderreplicated -c"),
            ("run with its configuration file", "quorumbook bookie run --conf bk_server.conf"),
            (
                "take over a Java bookie's directories",
                "quorumbook bookie adopt --conf bk_server.conf",
            ),
            ("and give them back", "quorumbook bookie give-back --conf bk_server.conf"),
        ),
    ),
    "access": (
        "who may do what",
        (
            (
                "a token for the HTTP API and the console",
                "quorumbook token add NAME --role operator --days 30",
            ),
            ("who has one", "quorumbook token ls"),
            ("take it away", "quorumbook token revoke NAME"),
            ("the API and the console for a cluster", "quorumbook admin run"),
            ("where each option comes from", "quorumbook config show --changed"),
        ),
    ),
}
