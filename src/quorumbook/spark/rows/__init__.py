"""Rows out of what bookies hold: views of streams and ledgers, and their columns."""
