"""`quorumbook stream`: streams, their records, cursors, groups and policies."""
