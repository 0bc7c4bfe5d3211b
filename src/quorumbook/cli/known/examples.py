"""The examples at the end of every help page.

They stand in an order in which they can be run, one after the other, on a new cluster of bookies
of which one is ``b1:3181``, in a directory with the files ``events.jsonl`` and ``schema.json``.
"""

from __future__ import annotations

import click

#: By command, without "quorumbook".
EXAMPLES: dict[str, tuple[str, ...]] = {
    "standalone": ("quorumbook standalone --ephemeral",),
    "demo": ("quorumbook demo", "quorumbook demo --keep"),
    "status": ("quorumbook status", "quorumbook status --watch --every 10s"),
    "top": ("quorumbook top", "quorumbook top --once --count 3"),
    "doctor": ("quorumbook doctor", "quorumbook doctor --data-dir . -o json"),
    "support-bundle": (
        "quorumbook support-bundle --yes",
        "quorumbook support-bundle --log events.jsonl --to with-log.tar.gz --yes",
    ),
    "cluster init": ("quorumbook cluster init --metadata sqlite:///other.db",),
    "cluster health": ("quorumbook cluster health -o plugin",),
    "cluster racks set": ("quorumbook cluster racks set b1:3181=/west/r2",),
    "cluster racks ls": ("quorumbook cluster racks ls",),
    "cluster racks remove": ("quorumbook cluster racks remove b1:3181",),
    "ledger write": (
        "echo hello | quorumbook ledger write",
        "quorumbook ledger write --custom app=billing events.jsonl",
    ),
    "ledger create": ("quorumbook ledger create --ensemble-size 3 --custom app=billing",),
    "ledger ls": (
        "quorumbook ledger ls --state open -o jsonl",
        "quorumbook ledger ls --sort -bytes --limit 10 --older-than 1h",
    ),
    "ledger show": ("quorumbook ledger show 0",),
    "ledger read": ("quorumbook ledger read 0", "quorumbook ledger read 1 --first 0 --last 1"),
    "ledger tail": ("quorumbook ledger tail 1 --first 0 --count 2",),
    "ledger recover": ("quorumbook ledger recover 2",),
    "ledger put": ("quorumbook ledger put events.jsonl",),
    "ledger get": ("quorumbook ledger get 3 --to copy.jsonl",),
    "ledger delete": ("quorumbook ledger delete 2 --yes",),
    "stream create": (
        "quorumbook stream create orders",
        "quorumbook stream create clicks --partitions 2 --policy retain_time_s=7d",
    ),
    "stream write": (
        "echo hello | quorumbook stream write orders",
        "quorumbook stream write orders events.jsonl",
    ),
    "stream ls": ("quorumbook stream ls or", "quorumbook stream ls --long --sort -bytes"),
    "stream show": ("quorumbook stream show orders",),
    "stream segments": ("quorumbook stream segments orders",),
    "stream read": (
        "quorumbook stream read orders",
        "quorumbook stream read orders --from -1h --count 10 -o jsonl",
    ),
    "stream tail": ("quorumbook stream tail orders --from earliest --count 2",),
    "stream schema set": (
        "quorumbook stream schema set clicks schema.json",
        "quorumbook stream schema set clicks schema.json --dry-run",
    ),
    "stream schema show": ("quorumbook stream schema show clicks",),
    "stream schema import": (
        "quorumbook stream schema import orders --registry http://registry:8081",
    ),
    "stream alter": ("quorumbook stream alter clicks --partitions 4",),
    "stream policy": (
        "quorumbook stream policy orders",
        "quorumbook stream policy orders --policy retain_time_s=30d",
    ),
    "stream cursors": ("quorumbook stream cursors orders",),
    "stream consume": (
        "quorumbook stream consume clicks --group billing --idle 1s",
        "quorumbook stream consume clicks --group mail --exec 'cat >> mails' --idle 1s",
    ),
    "stream groups": ("quorumbook stream groups clicks",),
    "stream retention": ("quorumbook stream retention orders --dry-run",),
    "stream truncate": ("quorumbook stream truncate orders --before -7d --dry-run",),
    "stream orphans": ("quorumbook stream orphans",),
    "stream seal": ("quorumbook stream seal orders",),
    "stream delete": ("quorumbook stream delete orders --yes",),
    "bookie ls": ("quorumbook bookie ls --disks", "quorumbook bookie ls --state down"),
    "bookie can-stop": ("quorumbook bookie can-stop b1:3181",),
    "bookie readonly": (
        "quorumbook bookie readonly on b1:3181 --reason 'new disk'",
        "quorumbook bookie readonly off b1:3181",
    ),
    "bookie drain": ("quorumbook bookie drain b1:3181 --dry-run",),
    "bookie decommission": ("quorumbook bookie decommission b1:3181 --dry-run",),
    "bookie balance": ("quorumbook bookie balance --dry-run",),
    "bookie gc": ("quorumbook bookie gc b1:3181", "quorumbook bookie gc b1:3181 --dry-run"),
    "bookie gc-hold": ("quorumbook bookie gc-hold b1:3181",),
    "bookie explain-gc": ("quorumbook bookie explain-gc b1:3181",),
    "bookie scrub": ("quorumbook bookie scrub b1:3181 --now",),
    "bookie background-io": ("quorumbook bookie background-io b1:3181 --rate-bytes 50M",),
    "bookie slow": ("quorumbook bookie slow --kind sync", "quorumbook bookie slow b1:3181"),
    "bookie run": ("quorumbook bookie run --port 0 --data-dir bookie",),
    "bookie recover": ("quorumbook bookie recover b1:3181 --dry-run",),
    "bookie adopt": ("quorumbook bookie adopt --conf bk_server.conf",),
    "bookie give-back": ("quorumbook bookie give-back --conf bk_server.conf",),
    "disk fsck": ("quorumbook disk fsck --data-dir bookie",),
    "disk index": ("quorumbook disk index --data-dir bookie",),
    "disk journal": ("quorumbook disk journal --data-dir bookie",),
    "disk log": ("quorumbook disk log --data-dir bookie",),
    "disk rebuild-index": ("quorumbook disk rebuild-index --data-dir bookie",),
    "recovery run": ("quorumbook recovery run",),
    "recovery status": ("quorumbook recovery status",),
    "recovery auditor": ("quorumbook recovery auditor",),
    "recovery underreplicated": ("quorumbook recovery underreplicated --count",),
    "recovery trigger": ("quorumbook recovery trigger",),
    "recovery delay": ("quorumbook recovery delay 30m", "quorumbook recovery delay"),
    "recovery disable": ("quorumbook recovery disable",),
    "recovery enable": ("quorumbook recovery enable",),
    "spark audit": ("quorumbook spark audit --sample 10 --out findings.jsonl",),
    "spark usage": ("quorumbook spark usage --group-by stream",),
    "spark fsck-meta": ("quorumbook spark fsck-meta",),
    "spark export": ("quorumbook spark export --from stream:orders --out orders --format jsonl",),
    "spark offload": (
        "quorumbook spark offload --to s3://bucket/tier --stream orders --older-than 1d",
    ),
    "spark restore": ("quorumbook spark restore --stream orders",),
    "spark tier-verify": ("quorumbook spark tier-verify --stream orders",),
    "spark rereplicate": ("quorumbook spark rereplicate --bookie b1:3181",),
    "spark decommission": ("quorumbook spark decommission --bookie b1:3181",),
    "spark rebalance": ("quorumbook spark rebalance --dry-run",),
    "spark compact-segments": ("quorumbook spark compact-segments --stream orders",),
    "spark compact-keys": (
        "quorumbook spark compact-keys --from stream:prices --to stream:latest --create-stream",
    ),
    "spark lake-sink": (
        "quorumbook spark lake-sink --from stream:orders --table /lake/orders --format delta",
    ),
    "spark lake-changes": (
        "quorumbook spark lake-changes --table /lake/orders --format delta --to stream:changes",
    ),
    "spark xcluster": (
        "quorumbook spark xcluster --from 'stream:*' --to-metadata zk://other:2181/ledgers",
    ),
    "spark gc-orphans": ("quorumbook spark gc-orphans --dry-run",),
    "spark ingest": (
        "quorumbook spark ingest --src 'flights/*.csv' --format csv --to stream:flights"
        " --option header=true --create-stream",
    ),
    "spark transform": (
        "quorumbook spark transform --from stream:orders --to stream:copy --create-stream",
    ),
    "spark analytics": (
        "quorumbook spark analytics --from stream:flights --to stream:delays --create-stream"
        " --schema 'carrier string, at timestamp, delay int' --time at --window '1 hour'"
        " --group-by carrier --measure 'avg(delay) AS delay'",
    ),
    "spark pipeline run": (
        "quorumbook spark pipeline run orders.toml --picture orders.svg --metrics-port 9400",
    ),
    "spark pipeline ls": ("quorumbook spark pipeline ls",),
    "spark pipeline rm": ("quorumbook spark pipeline rm orders",),
    "spark demo": ("quorumbook spark demo",),
    "spark register": (
        "quorumbook spark register eu/orders --database events --master sc://spark1",
    ),
    "spark template": ("quorumbook spark template pipeline --from orders --to clean",),
    "metadata dump": ("quorumbook metadata dump sqlite:///other.db other.dump",),
    "metadata restore": ("quorumbook metadata restore other.dump sqlite:///restored.db",),
    "metadata copy": ("quorumbook metadata copy sqlite:///other.db sqlite:///copied.db",),
    "zookeeper run": ("quorumbook zookeeper run --data-dir zookeeper --port 2181",),
    "console": ("quorumbook console --port 0",),
    "admin run": ("quorumbook admin run --port 0",),
    "token add": ("quorumbook token add deploy --role operator --days 30 --file tokens",),
    "token ls": ("quorumbook token ls --file tokens",),
    "token revoke": ("quorumbook token revoke deploy --file tokens",),
    "config show": ("quorumbook config show journal --explain", "quorumbook config show --changed"),
    "bench write": ("quorumbook bench write --entry-size 1K --count 1000",),
    "bench read": ("quorumbook bench read --count 1000",),
    "bench tail": ("quorumbook bench tail --count 1000",),
    "bench ledgers": ("quorumbook bench ledgers --count 20",),
    "deploy export": ("quorumbook deploy export deploy",),
    "shell": (
        "quorumbook shell listunderreplicated -c",
        "quorumbook shell --explain readledger -l 7 -m",
    ),
    "cheat": ("quorumbook cheat streams",),
    "help": ("quorumbook help ledger-fenced",),
    "context add": ("quorumbook context add prod --metadata zk://zk1:2181,zk2:2181/ledgers --use",),
    "context ls": ("quorumbook context ls",),
    "context use": ("quorumbook context use prod",),
    "context rm": ("quorumbook context rm prod",),
    "completion": ("quorumbook completion bash",),
}
_OF_A_GROUP = 2


def add_examples(command: click.Command, path: str) -> None:
    """Give a command's help its examples, and that of a group those of its first commands."""
    command.epilog = _shown(examples_of(path))
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            add_examples(child, f"{path} {name}")


def examples_of(path: str) -> tuple[str, ...]:
    """Return the examples of a command, by its name without "quorumbook"."""
    below = [lines[0] for name, lines in EXAMPLES.items() if name.startswith(f"{path} ")]
    return EXAMPLES.get(path) or tuple(below[:_OF_A_GROUP])


def _shown(lines: tuple[str, ...]) -> str:
    heading = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(("\b", heading, *(f"  {line}" for line in lines)))
