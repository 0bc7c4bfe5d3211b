"""Directed phases: what seeds alone hardly ever come to is brought about again and again."""
