"""`quorumbook demo`: a cluster that loses bookies before one's eyes."""
