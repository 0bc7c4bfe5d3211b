"""What a client knows of a cluster: bookies, racks, where new ledgers go."""
