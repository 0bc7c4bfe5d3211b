"""Entry logs: where entries stay, in large files, runs of one ledger side by side.

``format.py`` is the bytes, ``writer.py`` the writing and rotation, ``reader.py`` single reads,
``scan.py`` reads a whole log and verifies it.
"""
