"""What is known by name: the contexts of a user, bookies and streams for completion."""
