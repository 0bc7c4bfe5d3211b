"""Taking over the directories of a stopped bookie of the peer, and handing them back.

Journals, entry logs, marks and cookies have the same bytes on both sides.  What differs is the
index: ledgers' keys, fences, explicit LACs, and where their entries lie.
"""
