"""A whole cluster in one process, on virtual time, network and disks, from one seed.

    python -m quorumbook.sim run --seeds 0..99
    python -m quorumbook.sim replay 17

Processes run the real code of bookies, clients and auto-recovery.  What is simulated is the world
around them: event loops and time (``kernel``, ``loop``), processes that crash and pause
(``process``), threads (``threads``), disks (``disks``), the network (``network``) and the metadata
store (``metadata``).  ``cluster`` puts machines together, ``life`` is what one seed tells,
``actors`` and ``nemesis`` are its people and its mishaps, ``history`` judges.

Nothing in production imports this room; ``quorumbook.testing`` may.
"""
