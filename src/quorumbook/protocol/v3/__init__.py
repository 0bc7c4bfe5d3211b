"""The v3 protocol: the ``client``'s side, and what a bookie receives."""
