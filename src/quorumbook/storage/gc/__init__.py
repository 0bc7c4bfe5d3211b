"""Giving disk space back: ledgers deleted in the cluster, entry logs without live runs."""
