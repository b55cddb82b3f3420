"""What an interrupted run has finished: a line for each shard, in the folder that is being built.

A run with the same text and the same parameters goes on from there; what it finds is read again and compared first.
"""

import json
import os
import threading
from pathlib import Path
from typing import Final

from phalanx.core import unprepared, wire
from phalanx.job.data.manifest import SPLITS, TOKENIZER, FileEntry, Shard, Split, shard_name
from phalanx.storage.atomic import write_atomic
from phalanx.storage.hashes import sha256_file

JOURNAL: Final = unprepared.JOURNAL


class Journal:
    """key: of everything that decides the result besides the tokenizer itself. found: shards that an earlier run says it finished,
    of whatever text."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / JOURNAL
        self._folder = folder
        self._key = key
        self._lock = threading.Lock()
        self.tokenizer: FileEntry | None = None
        self.shards: dict[Split, list[Shard]] = {split: [] for split in SPLITS}
        self.found = 0

    def recover(self, shards_too: bool = True) -> None:
        """Takes what an earlier run with the same key left whole, and removes all else."""
        self._read()
        if not shards_too:
            self.shards = {split: [] for split in SPLITS}
        kept = {self.tokenizer.name} if self.tokenizer else set()
        kept |= {entry.name for shards in self.shards.values() for shard in shards for entry in shard.files}
        for path in self._folder.iterdir():
            if path.name not in kept:
                path.unlink()
        if self.tokenizer:
            self._write()

    def begin(self, tokenizer: FileEntry) -> None:
        """The tokenizer is on the disk: from here on shards may follow."""
        self.tokenizer = tokenizer
        self._write()

    def add(self, shard: Shard) -> None:
        """The shard is on the disk. By any thread; those of a split one after the other."""
        self.shards[shard.split].append(shard)
        with self._lock, self._path.open("ab") as file:
            file.write(wire.dumps(Shard, shard).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def end(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            head, *lines = self._path.read_bytes().splitlines()
            self.found = len(lines)
            fields = json.loads(head)
            tokenizer: FileEntry = wire.build(FileEntry, fields["tokenizer"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        if fields.get("key") != self._key or tokenizer.name != TOKENIZER or not self._is_whole(tokenizer):
            return
        self.tokenizer = tokenizer
        for line in lines:
            try:
                shard: Shard = wire.loads(Shard, line)
            except ValueError:  # the line at which the power went
                return
            if shard.name != shard_name(shard.split, len(self.shards[shard.split])) or not all(map(self._is_whole, shard.files)):
                return
            self.shards[shard.split].append(shard)

    def _is_whole(self, entry: FileEntry) -> bool:
        path = self._folder / entry.name
        try:
            return path.stat().st_size == entry.size_bytes and sha256_file(path) == entry.sha256
        except OSError:
            return False

    def _write(self) -> None:
        head = json.dumps({"key": self._key, "tokenizer": wire.plain(FileEntry, self.tokenizer)})
        lines = [wire.dumps(Shard, shard) for split in SPLITS for shard in self.shards[split]]
        write_atomic(self._path, "".join(f"{line}\n" for line in [head, *lines]).encode())
