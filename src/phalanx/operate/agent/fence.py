"""The highest leadership number ever seen, kept on disk: a control plane that lost its place can no longer command."""

import asyncio
import json
from pathlib import Path

from phalanx.storage.atomic import write_atomic


class Fence:
    """Admits epochs that do not go back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seen: int = json.loads(path.read_bytes())["epoch"] if path.exists() else 0

    async def admit(self, epoch: int) -> bool:
        """Whether `epoch` may command; a higher one is durable before it does."""
        if epoch < self.seen:
            return False
        if epoch > self.seen:
            await asyncio.to_thread(write_atomic, self._path, json.dumps({"epoch": epoch}).encode())
            self.seen = epoch
        return True
