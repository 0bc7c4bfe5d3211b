"""Streams under one name, and groups of consumers that share them.

stream        the partitions together;  partitioning: which of them a key is in (pure)
writer        writes them
reader        reads them;  merging: as they come
consumer      a member of a group;  group_state: who has what (pure);  group_nodes: its metadata
redelivery    what a group's members refused: handed out again, or given up
"""
