"""Real processes under every mishap at once, and a checker over what each of them recorded.

``run.run`` is the door: bookies, writers, rivals and readers as processes of their own, over a
real ZooKeeper.  ``history`` is what they write down, ``checker`` judges it, ``cycles`` chooses
what happens, ``world`` does it, ``clients`` are the processes, ``network`` is what lies between
them, and ``nursery`` starts them.
"""
