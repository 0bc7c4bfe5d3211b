"""Frames into streams and ledgers: each row once."""
