"""Attacks that neither know a grammar nor volume, but what lies between; see ``__main__.py``."""
