"""A bookie in its cluster: who it is, registered as what, which ledgers are its own."""
