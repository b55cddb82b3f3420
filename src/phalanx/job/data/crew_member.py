"""One process of a crew: answers until the other end is closed, by whatever happens to its owner.

Imports little: every process pays for it before it does anything.
"""

import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

from phalanx.job.data.crew_pipe import Pipe


def serve(descriptor: int) -> None:
    """The pipe's end has this number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are taken by the others
    from phalanx.job.data import encoding, looking  # noqa: F401  # what most tasks need, while the owner looks for files

    pipe = Pipe(socket.socket(fileno=descriptor))
    try:
        while True:
            act, task = pipe.receive()
            pipe.send(_answer(act, task))
    except (EOFError, OSError):
        return


def _answer(act: Callable[[Any], Any], task: Any) -> tuple[Any, Exception | None]:
    try:
        return act(task), None
    except Exception as error:  # noqa: BLE001  # it is raised again where it was asked for
        sent = _sendable(error)
        sent.add_note(traceback.format_exc())
        return None, sent


def _sendable(error: Exception) -> Exception:
    """The error, or what it says where pickle cannot make it again, as of a library's that takes more than its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
    except Exception:  # noqa: BLE001  # whatever its class raises
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
