"""The v2 protocol: ``packets`` both sides share, and ``requests`` as a bookie gets them."""
