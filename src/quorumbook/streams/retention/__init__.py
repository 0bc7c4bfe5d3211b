"""What is deleted of streams: what need not be kept, and what nobody can reach.

truncation  cuts a stream's beginning off, in its metadata
plan        which segments go (pure);  retention: marks them, and deletes their ledgers
orphans     ledgers that no metadata refers to
"""
