"""`quorumbook ledger`: ledgers, their entries, and files in them."""
