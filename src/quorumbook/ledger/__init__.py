"""What a ledger is and how its client sides think, without any input or output.

metadata and its formats, the schedule of write sets and coverage, placement, and the four machines
(append, read, recovery, LAC read).  A machine is fed with what happened and asked with ``poll()``
what to do next; sockets, timers, the metadata store and payloads belong to ``quorumbook.client``.
"""
