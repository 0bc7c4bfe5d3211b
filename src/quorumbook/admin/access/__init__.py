"""Who may do what, and what was done.

roles    viewer, operator, admin
tokens   bearer tokens, kept as hashes in a file
audit    one line for each change
gate     which requests are let in, and as whom
"""
