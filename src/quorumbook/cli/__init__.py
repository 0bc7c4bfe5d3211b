"""The command ``quorumbook``: one file for a group of commands.

``main.py`` knows the groups by name and imports one only when it is used, so that ``--help`` and
errors come at once.  ``common.py`` holds what every command takes (metadata URI, configuration,
output format), ``errors.py`` turns an exception into one line and an exit code, ``output.py``
prints results.  This is the room that composes the others: it makes a bookie's and a client's
options out of the configuration.
"""
