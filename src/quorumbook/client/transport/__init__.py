"""Connections to bookies: channels, handshakes, and time."""
