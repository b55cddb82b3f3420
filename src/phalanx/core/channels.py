"""A channel: bytes between a person's program and one place inside a running job, through the control plane.

Over a WebSocket a binary frame is one byte, the stream, and data; a text frame is a JSON object with one of the keys below. The
same goes over the person's connection and over the agent's, which dials one for each channel. Standard library only.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

INPUT, OUT, ERR = 0, 1, 2
"""Streams: what the person sends, what comes back, and of a command without a terminal its standard error apart."""

DATA_BYTES_MAX: Final = 64 * 1024
"""In one frame."""
MESSAGE_BYTES_MAX: Final = DATA_BYTES_MAX + 1
CHANNELS_PER_JOB: Final = 64
CHANNELS_PER_NODE: Final = 512
"""Open at once."""
ARGV_BYTES_MAX: Final = 16 * 1024
OPEN_S_MAX: Final = 30.0
"""From the asking until the job's end of the channel is there."""

What = Literal["attach", "exec", "forward", "notebook"]

RESIZE: Final = "resize"
"""[rows, columns] of the person's terminal."""
END: Final = "end"
"""The stream of that number is over; the other direction may go on."""
EXIT: Final = "exit"
"""The shell or the command ended with this code, as a shell has it: 128 and its number for a signal. Nothing follows."""
SAY: Final = "say"
"""A line of the platform's for the person."""
OPENED: Final = "opened"
"""The job's end is there. First word of the agent, unless it is the next."""
REFUSED: Final = "refused"
"""{field, value, fix} of an error. Nothing follows."""
NOTEBOOK: Final = "notebook"
"""{port, token, path} of the job's notebook server."""


@dataclass(frozen=True, slots=True)
class ChannelAsked:
    """What somebody wants of a job.

    what: its terminal, a command of `argv` in a rank's place (with a terminal of its own, `terminal`), a connection to `port` of a
    rank's node, or where its notebook is. rows, columns: of the person's terminal.
    """

    what: What
    rank: int = 0
    argv: tuple[str, ...] = ()
    terminal: bool = False
    port: int = 0
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class NotebookPlace:
    """Where a job's notebook server listens on its node. token: opens it; shown to nobody but who asked."""

    port: int
    token: str = field(repr=False)
    path: str = "/"
