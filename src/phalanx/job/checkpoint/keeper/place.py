"""Where a keeper lives: a folder of the attempt on this node, and a slot of the node in it."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IDLE_S: Final = 600.0
"""Longer than any recovery of a gang takes; afterwards a keeper that nobody speaks to lets its memory go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a keeper lives. slot: of the node, counted from 0. attempt: '' outside Phalanx. scratch: a folder of the node, on whose
    disk its snapshots lie; '' for in memory."""

    folder: Path
    slot: int
    attempt: str = ""
    scratch: str = ""

    @property
    def key(self) -> str:
        """Its name among all places of a gang, on whatever nodes."""
        return f"{socket.gethostname()}:{self.folder}:{self.slot}"

    @property
    def socket_name(self) -> str:
        return f"keeper-{self.slot}.sock"

    @property
    def log_name(self) -> str:
        return f"keeper-{self.slot}.log"
