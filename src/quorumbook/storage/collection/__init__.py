"""Garbage collection: which ledgers and copies go, over a storage that serves."""
