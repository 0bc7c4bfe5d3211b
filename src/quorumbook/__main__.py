"""``python -m quorumbook`` is the command ``quorumbook``."""

import sys

from quorumbook.cli import main

if __name__ == "__main__":
    sys.exit(main())
