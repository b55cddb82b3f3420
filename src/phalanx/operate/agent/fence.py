"""The highest leadership number ever seen, kept on disk: a control plane that lost its place can no longer command."""

import asyncio
import json
import threading
from pathlib import Path

from phalanx.storage.atomic import write_atomic


class Fence:
    """Admits epochs that do not go back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one = threading.Lock()
        self.seen: int = json.loads(path.read_bytes())["epoch"] if path.exists() else 0

    async def admit(self, epoch: int) -> bool:
        """Whether `epoch` may command; a higher one is durable before it does. Raises what `write_atomic` does."""
        return epoch == self.seen or await asyncio.to_thread(self._admit, epoch)

    def _admit(self, epoch: int) -> bool:
        """In a thread, which no cancellation cuts in two: what is on disk and what is in memory stay the same."""
        with self._one:
            if epoch > self.seen:
                write_atomic(self._path, json.dumps({"epoch": epoch}).encode())
                self.seen = epoch
            return epoch >= self.seen
