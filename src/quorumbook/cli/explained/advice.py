"""What to do about each error that has a class of ours; what happened stands in its docstring."""

from __future__ import annotations

#: What to do, by code; each item is a sentence or two.
ADVICE: dict[str, tuple[str, ...]] = {
    "config": (
        "`quorumbook config show --explain` lists every option with its value and its source.",
        "The message names the option. Correct it in quorumbook.toml, in the variable, or in the"
        " --set that it comes from.",
    ),
    "local-protocol": (
        "The command or program asked for something that is never allowed; the message says"
        " what. Change the call.",
    ),
    "remote-protocol": (
        "Something else than a bookie may listen on that port, or a proxy changes what it"
        " forwards. Check the address in `quorumbook bookie ls`.",
    ),
    "frame-too-large": (
        "Raise `bookie.max_frame_bytes` on bookies and `client.max_frame_bytes` on clients to"
        " the same value, or write smaller entries.",
    ),
    "bad-request": ("The bookie is older than the request. Upgrade it.",),
    "no-such-ledger": (
        "`quorumbook ledger show ID` names the bookies that should hold the ledger.",
        "If one of these bookies lost its disk, auto-recovery copies the bookie's entries from"
        " other"
        " replicas: `quorumbook recovery underreplicated` shows what is left to copy.",
    ),
    "no-such-entry": ("`quorumbook ledger show ID` says which entries the ledger has.",),
    "bookie-io": (
        "The bookie's disk fails. Look into the bookie's log, and at `quorumbook bookie ls"
        " --disks`.",
        "Readers use other replicas meanwhile. If the disk is broken, replace the disk.",
    ),
    "unauthorized": (
        "Give the ledger's password with --password or --password-file.",
        "If the ledger has no password, the bookie wants authentication: see `quorumbook help"
        " not-admitted`.",
    ),
    "not-admitted": (
        "If the cluster uses TLS, set tls.enabled and tls.ca_file.",
        "If the cluster uses authentication, set client.auth_plugin and client.auth_settings.",
        "On a host of the cluster, add --config with the bookie's own configuration file.",
    ),
    "unsupported-version": ("Upgrade the older side. Clients of BookKeeper 4.x can connect.",),
    "ledger-fenced": (
        "Do not write the ledger again. Find out who recovered it: another instance of your"
        " program, `quorumbook ledger recover`, or auto-recovery after the writer was silent"
        " for too long.",
        "Write a new ledger. For a stream, open a new writer.",
    ),
    "read-only-bookie": (
        "`quorumbook bookie ls` says why the bookie takes no entries: a full disk, or an operator's"
        " decision.",
        "Free space, or run `quorumbook bookie readonly off BOOKIE`.",
    ),
    "too-many-requests": ("The bookie is overloaded. Write less at a time, or add bookies.",),
    "unknown-ledger-state": (
        "The bookie lost a part of its disk, so it says neither yes nor no. Close the ledger with"
        " `quorumbook ledger recover ID`; the bookie then gets what it lacks from other bookies.",
    ),
    "bookie-unavailable": (
        "`quorumbook bookie ls` shows which bookies are there. Start the one that is named.",
    ),
    "connect-failed": (
        "`quorumbook bookie ls` shows which bookies are registered, and their addresses.",
        "Check that this host can reach the bookie's address. A firewall may be in between, or the"
        " bookie advertises an address of its own network (--advertised-address).",
    ),
    "connection-lost": (
        "Run the command again. If connections break often, look into the bookie's"
        " log.",
    ),
    "request-timeout": (
        "The bookie is overloaded or paused, or its disk is slow: `quorumbook bookie ls --disks`.",
        "`client.request_timeout_s` says how long the client waits.",
    ),
    "security": (
        "The message names the certificate or secret, and what is wrong with it.",
        "`quorumbook config show tls` shows which files are used.",
    ),
    "not-enough-bookies": (
        "`quorumbook bookie ls` shows which bookies are there, and which are read-only.",
        "Start another bookie, or let a read-only one take ledgers again: `quorumbook bookie"
        " readonly off BOOKIE`.",
        "A drain needs a bookie to move each replica to. To leave ledgers in place that are being"
        " written, add --skip-open.",
        "A writer can ask for fewer bookies: --ensemble-size, --write-quorum and --ack-quorum.",
        "If a ledger asks for labels or racks, that many bookies must have them.",
    ),
    "add-quorum-timeout": (
        "Too few bookies answered in time. The entry may or may not be stored.",
        "`quorumbook bookie ls --disks` shows slow disks.",
    ),
    "read-failed": (
        "Every bookie that holds the entry was asked, and none gave it. The message has each"
        " answer.",
        "Start the bookies that are away. `quorumbook ledger show ID` names the bookies that hold"
        " the"
        " entry.",
    ),
    "write-failed": (
        "The message has the cause. Write a new ledger; the failed ledger must be"
        " recovered.",
    ),
    "ledger-closed": (
        "A closed ledger never changes. `quorumbook ledger write` without an id makes a new one.",
    ),
    "ledger-exists": (
        "Give another --ledger-id, or leave --ledger-id out: the cluster then chooses an"
        " id.",
    ),
    "duplicate-entry-id": ("Each entry id is used once. Continue with a larger id.",),
    "ledger-id-overflow": ("Use ids that the cluster chooses; these ids have up to 63 bits.",),
    "ledger-recovery": (
        "Start the bookies that the message names, and run the command again.",
        "If their disks are lost, `quorumbook ledger recover ID --accept-loss` says what would"
        " be given up.",
    ),
    "unclosed-fragment": (
        "The writer still writes this part of the ledger. Wait, or recover the ledger"
        " first.",
    ),
    "digest-mismatch": (
        "The entry is damaged, or the ledger was written with another password or digest.",
        "Other replicas are tried by themselves. `quorumbook bookie scrub BOOKIE --now` looks"
        " for more damage on a bookie.",
    ),
    "client-closed": ("Connect again; a client that was closed stays closed.",),
    "backpressure": ("Wait with `drain()`, and append again.",),
    "metadata": ("The message has the store's own answer. Check the store's log.",),
    "no-such-node": ("`quorumbook metadata dump` of the cluster shows what the store holds.",),
    "node-exists": ("Another process made the node first. Run the command again.",),
    "node-not-empty": ("Delete the nodes below this node first.",),
    "no-such-ledger-in-metadata": (
        "`quorumbook ledger ls` lists the ledgers. A deleted ledger is gone for good.",
        "Check --metadata: it may name another cluster.",
    ),
    "metadata-version-conflict": ("Somebody else changed it first. Run the command again.",),
    "metadata-format": (
        "Check --metadata: it may name something else than a cluster.",
        "If the store is damaged, restore a dump: `quorumbook metadata restore`.",
    ),
    "session-expired": (
        "The process was paused or cut off for longer than `metadata.session_timeout_s`.",
        "Run the command or program again. If sessions expire often, raise that option, or find"
        " what"
        " pauses the host.",
    ),
    "metadata-unavailable": (
        "Check --metadata, and whether ZooKeeper, etcd or the file can be reached from here.",
        "A SQLite file belongs on a local disk, and serves one host.",
    ),
    "metadata-fate-unknown": (
        "The metadata store was away during a change. Look whether the change was made, and repeat"
        " the change if it was not.",
    ),
    "metadata-unauthorized": (
        "Put the credentials of the metadata store into its URI, or the access rights of the"
        " node right.",
    ),
    "cluster-not-initialized": (
        "`quorumbook standalone` makes a cluster on this machine and runs it.",
        "For bookies on several hosts: `quorumbook cluster init --metadata URI`, once.",
        "If there is a cluster, --metadata or QUORUMBOOK_METADATA names another place.",
    ),
    "cluster-exists": (
        "There is a cluster already: use the existing cluster, or add --if-missing to the"
        " command.",
    ),
    "foreign-layout": (
        "Two programs disagree where the metadata of ledgers is. Bookies delete nothing until both"
        " use the same layout: correct the layout in the metadata URI.",
    ),
    "metadata-move": (
        "Stop bookies and writers of the source, and use a target that is empty.",
        "--online copies from a running cluster, to try it.",
    ),
    "no-such-bookie": (
        "Look for a typing error: `quorumbook bookie ls` lists the ids of all bookies that the"
        " cluster knows.",
        "A bookie that was decommissioned is not known any more; nothing is left to do for it.",
    ),
    "no-auditor": (
        "`quorumbook recovery run` starts auto-recovery, which audits.",
        "`quorumbook recovery enable` switches auditing on again.",
    ),
    "corrupt-journal": (
        "`quorumbook disk fsck --data-dir DIR` shows what is damaged; --repair sets the journal"
        " aside, and what it may have lost is copied from other bookies.",
    ),
    "corrupt-entry-log": (
        "Nothing is needed if the bookie starts: damaged entries are copied from others.",
        "`quorumbook disk fsck --data-dir DIR` shows which ones.",
    ),
    "corrupt-index": (
        "`quorumbook disk rebuild-index --data-dir DIR --repair` makes it again from the entry"
        " logs. If the index is of a newer release, start that release.",
    ),
    "corrupt-state": ("`quorumbook disk fsck --data-dir DIR --repair` mends it.",),
    "missing-entry-log": ("If a disk is not mounted, mount it; other replicas serve meanwhile.",),
    "short-read": ("`quorumbook disk fsck --data-dir DIR` shows which entries are affected.",),
    "disk-full": (
        "Make room: `quorumbook bookie explain-gc BOOKIE` says why entry logs are not deleted.",
        "Delete ledgers, or add a bookie and run `quorumbook bookie balance`.",
    ),
    "no-writable-directory": ("Free space or mount the disks; the bookie then takes entries.",),
    "directory-locked": ("Stop the process that uses the directory, or use another --data-dir.",),
    "foreign-directory": (
        "A Java bookie keeps the directory: `quorumbook bookie adopt` takes it over.",
        "If a take-over was interrupted, run the same command again.",
    ),
    "cookie-mismatch": (
        "The directory belongs to another bookie or cluster. Check --data-dir, the port, the"
        " id and --metadata.",
        "Never delete a cookie to get past this: the bookie would deny entries that it had.",
    ),
    "cookie-missing": (
        "A disk is empty that should not be. Mount the disk; or replace the bookie: `quorumbook"
        " bookie recover BOOKIE --delete-cookie`, then start it on empty directories.",
    ),
    "internal": ("Run it again with -v, and report the trace.",),
    "namespace-not-bound": ("Create the first stream there: `quorumbook stream create NAME`.",),
    "invalid-stream-name": ("Use letters, digits, `-`, `_`, `.` and `/` between parts.",),
    "stream-not-found": (
        "`quorumbook stream ls` lists the streams; --namespace says where it looks.",
    ),
    "stream-exists": ("Use it as it is (--exist-ok), or give another name.",),
    "stream-sealed": ("A sealed stream has ended. Create another one.",),
    "access-denied": (
        "`quorumbook stream policy NAME` shows what is denied; take it back with --policy denied=.",
    ),
    "quota-exceeded": (
        "Truncate the stream, or raise max_total_bytes: `quorumbook stream policy NAME --policy"
        " max_total_bytes=N`.",
    ),
    "writer-busy": (
        "Another process writes the stream; the message says which.",
        "Wait for it with --wait 30s, or push it out with --takeover force.",
    ),
    "writer-fenced": (
        "Another process writes the stream now. Stop, or open a new writer to take it back.",
        "Records that were sent and not confirmed may or may not be stored. A writer with a"
        " producer can append them again under the same numbers: duplicates are dropped.",
    ),
    "lock-lost": ("Open the writer again. See also `quorumbook help session-expired`.",),
    "record-too-large": (
        "Split the record, or raise max_record_bytes in the stream's policy.",
    ),
    "txid-out-of-order": ("Transaction ids never go down. Use a larger one, or policy txid=free.",),
    "sequence-conflict": ("Somebody else wrote first. Read what is there, and decide again.",),
    "position-truncated": (
        "Begin at what is left: --skip-truncated, or on_truncated=\"skip\" in Python.",
    ),
    "data-loss": (
        "First look whether bookies are away: `quorumbook bookie ls`.",
        "To go on behind what is missing: --skip-missing, or on_gap=\"report\" in Python.",
    ),
    "corrupt-records": ("The stream was written by something that does not keep its format.",),
    "unsupported-format": ("Upgrade this side; the other one writes a newer format.",),
    "reader-idle": ("The message says why nothing comes. Check bookies and metadata.",),
    "apply": ("The cause is your own code's error; correct it, and open the view again.",),
    "schema-not-found": (
        "`quorumbook stream schema show NAME` lists the versions that there are.",
        "To set one: `quorumbook stream schema set NAME FILE`.",
    ),
    "schema-incompatible": (
        "The message names the field. Give it a default, or make it optional, and set the schema"
        " again; `--dry-run` says whether it could be set.",
        "If readers of the older records may fail, change the rule:"
        " `quorumbook stream schema set NAME FILE --compatibility none`.",
    ),
    "schema-conflict": (
        "Read the schema with `quorumbook stream schema show NAME`, then decide again.",
    ),
    "bad-record": (
        "The message says why the record does not fit. `quorumbook stream read NAME --decode auto`"
        " shows it as it is.",
        "If the record is as it should be, its schema is not: look at"
        " `quorumbook stream schema show NAME`, and at the record's header schema-version.",
    ),
    "policy-conflict": ("Somebody else changed the policy. Read it again, and decide.",),
    "cursor-conflict": ("Another process moved the cursor. Only one should; or `refresh` it.",),
    "checkpoint-changed": ("Use another application name, or the old checkpoint.",),
    "transaction-lost": ("Run the batch again; nothing of it was stored.",),
    "transaction-too-large": ("Write fewer streams or parts in one batch.",),
    "rows-differ": ("Make the source deterministic: a batch that is run again must be the same.",),
    "files-unavailable": (
        "Mount the file system or give the credentials of the bucket; --forget-files goes on"
        " without.",
    ),
    "cursor-busy": ("Another process reads by the cursor. Wait with wait_for_lock_s.",),
    "ack-limit": ("Acknowledge the oldest records first; a cursor keeps 4096 holes.",),
    "partition-lost": (
        "Another member has the partition. Forget the records of it that you have not acknowledged,"
        " and go on.",
    ),
    "group-in-use": ("Stop the members of the group first.",),
    "pipeline-not-found": ("`quorumbook spark pipeline ls` lists those that were run.",),
    "pipeline-runs": (
        "Stop `quorumbook spark pipeline run`. One that was killed counts as running for 20 s.",
    ),
    "partly-sealed": ("The message says which are not sealed. Run the command again.",),
}  # fmt: skip
