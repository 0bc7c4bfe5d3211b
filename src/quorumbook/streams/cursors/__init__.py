"""How far somebody is in a stream: durable positions, and what is still before them.

cursor  named positions that outlive their readers;  state: what is stored of one (pure)
acks    records that were acknowledged one by one (pure)
reader  reading by a cursor
lag     how far a position is from the end
"""
