"""Checkpoints of two ranks without a gang: one tensor of bytes, of which each rank writes a half."""

from phalanx.job.checkpoint import shard_file, whole
from phalanx.job.checkpoint.commit import Content, Saved, SaveFailed, announce, commit_when_whole
from phalanx.job.checkpoint.folder import Folder
from phalanx.job.checkpoint.manifest import Origin, committed, folder_name
from phalanx.job.checkpoint.retention import Keep, remove, superfluous
from phalanx.job.checkpoint.shard_file import Part, SaveKey, ShardIndex
from phalanx.job.checkpoint.whole import TensorSpec

RANKS = 2
LENGTH = 100_000


def content(length: int = LENGTH) -> Content:
    tensors = {"w": TensorSpec(dtype="U8", shape=(RANKS * length,))}
    return Content(origin=Origin(config="", data="", world_size=RANKS, layout={"dp": RANKS}), dtype="", extra={}, tensors=tensors)


def half(rank: int, step: int, length: int = LENGTH) -> tuple[Part, memoryview]:
    part = Part(name="w", dtype="U8", shape=(RANKS * length,), start=(rank * length,), size=(length,))
    return part, memoryview(bytes([step % 256]) * length)


def put(folder: Folder, key: SaveKey, rank: int, length: int = LENGTH) -> ShardIndex:
    index = shard_file.write(folder, [half(rank, key.step, length)], key=key, rank=rank)
    announce(folder, index)
    return index


def save(root: Folder, step: int, token: str = "a", attempt: str = "lm-1.1", keep: Keep | None = None) -> Saved | SaveFailed:
    """As two ranks and the committer do it, one after the other, and then what retention does."""
    folder, key = root / folder_name(step), SaveKey(step=step, save=token, attempt=attempt)
    for rank in range(RANKS):
        put(folder, key, rank)
    saved = commit_when_whole(folder, key, content(), patience_s=0)
    if isinstance(saved, Saved) and keep is not None:
        remove(superfluous(root, step, keep))
    return saved


def steps_that_verify(root: Folder) -> list[int]:
    return [whole.verify(folder).manifest.step for _, folder in committed(root)]
