"""A ledger's writer: from calls to adds, their answers, and bookies that fail."""
