"""What `make docs` does beyond MkDocs.

hooks      the door: MkDocs calls it
reference  pages that are generated from the code
commands   every command that a page shows is one that there is
recording  the picture of the demo
sequence   blocks that say who sends what to whom become drawings
"""
