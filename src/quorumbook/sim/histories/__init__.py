"""What everybody was told, and whether it can all be true."""
