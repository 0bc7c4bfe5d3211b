"""The commands of ``bin/bookkeeper shell``, answered by ours.

names     which there are, and what each becomes; pure
commands  ``quorumbook shell``
"""
