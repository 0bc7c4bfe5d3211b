"""What a bookie keeps on its disks; ``store`` is the facade.

startup      opens a storage: directories, journal replay, index;  inspection: looks only
journal      what was acknowledged is there first;  entrylog: where entries go then
index        where each entry is;  states: fences, limbo, last add confirmed
cache        entries in memory;  reading: from caches, entry logs and index
writes       into journal and write cache;  checkpoint: from there into entry logs and index
directories  places, locks, room kept free
gc           what may be deleted, and compaction;  collection: its passes;  scrub: reads all
adoption     the peer's directories taken over, and given back
"""
