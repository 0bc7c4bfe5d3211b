"""Copies made anew, moved and balanced."""
