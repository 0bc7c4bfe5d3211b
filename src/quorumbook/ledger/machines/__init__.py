"""Writer, reader, recoverer, copier and the LAC read of a ledger as pure machines."""
