"""Connections: from bytes to requests and from answers to bytes, and what they may cost.

connection      one: bytes in, requests out; answers in, one write out;  registry: all of them
admission       what one may do before it has said who it is;  exposure: whether strangers may
limits          how many there may be, and which goes where there are too many
add_budget, answer_budget, frame_budget    bytes in memory, fair among connections
loop_turns      how long a turn of the loop works for connections, and who waits
"""
