"""The client of a cluster, on asyncio; ``quorumbook`` itself names what users need of it.

client      connect, create, open, list, delete
writer      appending: what the caller sees;  adds, pending, positions, window: how it is done
ensemble    replaces bookies that fail;  explicit_lac publishes what an idle writer confirmed
reader      reading and tailing;  reading: ranges ahead of the consumer;  lac: asking for news
recovery    takes a ledger over whose writer is gone
bookies     who is there, who is suspect;  connection: the two channels to each;  ticker: time
"""
