"""DistributedLog's bytes and texts, one module for each; pure.

position        where a record is
records         log records;  record_sets: many in one;  envelope: the entry around them
control         what our writers tell in control records beside user records
segment_text    the metadata of a segment
names           stream names, and where everything lies in the metadata tree
binding         what makes a node a namespace, and access control
"""
