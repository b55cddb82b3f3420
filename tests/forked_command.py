"""The program `phalanx` in a process that has imported what every command does: tests of a whole platform give hundreds."""

import sys

from phalanx.app import main

IMPORTED = (
    "phalanx.client",
    "phalanx.operate.daemons",
    "phalanx.operate.engines.local",
    "phalanx.show.cli.main",
    "phalanx.show.cli.tools",
    "phalanx.storage.workdir",
)


def command(*argv: str) -> int:
    """argv: with the program's own path. The exit code."""
    sys.argv[:] = argv
    return main()
