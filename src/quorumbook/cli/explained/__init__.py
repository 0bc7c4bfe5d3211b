"""What messages mean, and what a person can do about each: ``quorumbook help CODE``."""
