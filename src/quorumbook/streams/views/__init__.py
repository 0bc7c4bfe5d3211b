"""What applications build on a stream, ready-made.

table_view       the latest value of each key
state_machine    commands applied alike everywhere;  state_snapshots: where states are stored
following        both apply records by it
byte_stream      a file that grows
"""
