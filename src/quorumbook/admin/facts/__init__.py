"""A cluster as it is now; the command line, the HTTP API and the console say the same of it.

words        counts, sizes and times as people read them
bounds       of size and age, for lists of ledgers and streams
stopping     what stopping a bookie would endanger
room         whether what a bookie holds can go anywhere
places       places in a stream as people write them
bookie_http  asks a running bookie over HTTP
bookies      every bookie that anything knows of: writable, read-only, or down
cluster      all that a verdict is made of, in one picture
ledgers      search, and one ledger's picture
streams      what a list shows of streams
decoding     records by their stream's schema, those of an entry too: in one thread, within bounds
replicas     what each bookie gives of an entry
nodes        the metadata tree
verdict      ok, warning or critical, and why
"""
