"""What a ledger is and how its client sides think, without any input or output.

metadata      the facts of a ledger;  metadata_format: their bytes;  transitions: how they change
placement     the schedule of write sets and coverage; where copies go
machines      append, read, recovery, LAC read, copying
audit         copies judged against each other
holdings      what a bookie has to hold;  danger: what absent bookies mean

A machine is fed with what happened and asked with ``poll()`` what to do next; sockets, timers, the
metadata store and payloads belong to ``quorumbook.client``.
"""
