"""A bookie that does not run: its directories mended, taken over, given back."""
