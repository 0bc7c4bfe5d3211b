"""Appending to a stream: from a call to its records' places, across ledgers, exactly once.

writer          what the caller sees;  options: how it works;  appended: what it returns
pending         what one call appended;  packing: its records into entries (both pure)
pump            sends entries, and changes segments
segment_writer  the ledgers under it
takeover        finishes what the last writer left
numbering       which of a producer's numbers are new;  producers: what is known of all (pure)
limits          how fast a writer goes, and how much a stream holds
"""
