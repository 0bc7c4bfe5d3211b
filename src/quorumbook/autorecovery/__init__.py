"""Keeps ledgers fully replicated: an auditor says what is missing, workers copy it.

process             auditor and worker of one process: start, stop, what both share
audits
  auditor           stands for election;  bookie_audits: what it does about lost bookies,
                    lost_bookies: who is lost and when (pure);  cluster_view: what it goes by
  checks            run from time to time;  ledger_checks: what they look at in a ledger,
                    copies: counting them by the bookies' lists (pure)
copying
  worker            takes marked ledgers off the queue, waits, gives up for a while
  moving            what bookies hold goes to others, by an operator's order;  balance: a plan
  healing           one ledger: what is copied to whom, and recorded
  replication       one copy: reads, recovery adds, and reading back
  verified_reads    one replica: what it gives, and what it lacks
ledger_walk         the way through all ledgers
metrics, pages      numbers of both;  HTTP

Work is handed over by the queue of under-replicated ledgers (``metadata.recovery.queue``), in
the peer's bytes, so that auditors and workers of the peer take part.  Everything in this room is
safe though two processes do it at once: by compare-and-set on a ledger's metadata, and by fences.
"""
