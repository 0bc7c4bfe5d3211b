"""What the metadata store says of bookies: cookies, registrations, racks."""
