"""Scrub: finding damage before a reader does, and keeping it on record until it is healed."""
