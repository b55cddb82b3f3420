"""One process of a crew: answers until the other end is closed, by whatever happens to its owner.

Imports little: every process pays for it before it does anything.
"""

import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def serve(descriptor: int) -> None:
    """The pipe's end has this number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are taken by the others
    from phalanx.job.data import encoding, looking  # noqa: F401  # what most tasks need, while the owner looks for files

    pipe = Connection(descriptor)
    try:
        while True:
            act, task = pipe.recv()
            pipe.send(_answer(act, task))
    except (EOFError, OSError):
        return


def _answer(act: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    try:
        return act(task), None
    except Exception as error:  # noqa: BLE001  # it is raised again where it was asked for
        error.add_note(traceback.format_exc())
        return None, error
