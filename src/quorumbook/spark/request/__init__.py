"""What a reader is asked for: which streams or ledgers, from where to where, in which pieces."""
