"""A ledger's reader: ranges ahead of the consumer, single entries, and news."""
