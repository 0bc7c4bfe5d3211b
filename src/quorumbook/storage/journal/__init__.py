"""The write-ahead log: everything a bookie acknowledges is in here first.

``format.py`` is the bytes, ``group_commit.py`` the writing, ``scan.py`` reads one file,
``replay.py`` a directory.
"""
