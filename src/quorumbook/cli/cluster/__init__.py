"""`quorumbook cluster`, `metadata` and `standalone`: clusters as a whole."""
