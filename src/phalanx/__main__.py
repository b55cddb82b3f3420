"""`python -m phalanx` is the command `phalanx`, where scripts are not on the path."""

import sys

from phalanx.app import main

if __name__ == "__main__":
    sys.exit(main())
