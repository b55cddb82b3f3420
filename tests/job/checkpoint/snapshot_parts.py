"""A small state, and what is in it after a step."""

from phalanx.job.checkpoint.shard_file import Part

PARTS = (
    Part(name="w", dtype="F32", shape=(6, 5), start=(0, 0), size=(3, 5)),
    Part(name="b", dtype="BF16", shape=(7,), start=(0,), size=(7,)),
    Part(name="step", dtype="F32", shape=(), start=(), size=()),
    Part(name="none", dtype="F32", shape=(0, 4), start=(0, 0), size=(0, 4)),
)


def filled(part: Part, step: int) -> memoryview:
    return memoryview(bytes((step * 31 + at) % 251 for at in range(part.num_bytes)))
