"""The disk of a simulated machine, and failures for any disk."""
