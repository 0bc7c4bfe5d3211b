"""Entries in memory: written and not yet in an entry log, or read lately."""
