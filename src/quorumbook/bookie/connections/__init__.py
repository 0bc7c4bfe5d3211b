"""Connections: places, proof, bytes into requests, budgets, and turns of the loop."""
