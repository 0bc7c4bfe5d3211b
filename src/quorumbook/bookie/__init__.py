"""The server: connections, request batches, fencing, read-only state, registration, life cycle."""
