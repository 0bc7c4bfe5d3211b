"""`quorumbook bookie`, `disk` and `recovery`: what operators do with bookies."""
