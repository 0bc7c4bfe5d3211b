"""The client of a cluster, on asyncio; ``quorumbook`` itself names what users need of it.

client      connect, create, open, list, delete
writing     a ledger's writer: from calls to adds, and bookies that fail meanwhile
reading     a ledger's reader: ranges, single entries, what is new
recovery    takes a ledger over whose writer is gone
tables      the metadata of the cluster as tables
context     what all of these share;  cluster: who is there, who is suspect, who is chosen
transport   the two channels to each bookie
waiting     time limits, room, turns, closing
"""
