"""What the HTTP API answers: an endpoint is a declaration and the function that carries it out.

cluster   the cluster, recovery, metadata, jobs, audit, tokens
racks     where bookies stand
bookies   what they say, read-only, and taking them out
upkeep    collection, scrub, balance, whether one may be stopped, how busy all are
ledgers   search, entries, creating, closing and deleting
records   append, read, follow, consume
streams   streams, cursors, groups, policies
keeping   schemas, ends, partitions, retention, orphans
pipelines  what pipelines on Spark tell of themselves
"""
