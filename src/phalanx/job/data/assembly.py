"""Tokens to shards: hands out the second reading and writes what comes back, in the order of the documents."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap

import numpy as np

from phalanx.job.data.crew import Crew
from phalanx.job.data.encoding import Plan, Run, Task, encode
from phalanx.job.data.file_pieces import batches
from phalanx.job.data.journal import Journal
from phalanx.job.data.kinds import OUT, Kinds
from phalanx.job.data.manifest import SPLITS, Shard
from phalanx.job.data.shard_writer import ShardWriter
from phalanx.job.data.survey import KINDS, Survey


def write_shards(
    survey: Survey, plan: Plan, tokens_max: int, journal: Journal, crew: Crew, seen: Callable[[int, int], None]
) -> list[Shard]:
    """All shards of all splits, those that the journal has among them. seen(bytes of text done, bytes in all)."""
    total, kinds = int(survey.sizes[survey.kinds != OUT].sum()), survey.kinds.copy()
    for split in SPLITS:
        kinds[survey.of(split)[: sum(shard.documents for shard in journal.shards[split])]] = OUT
    done = total - int(survey.sizes[kinds != OUT].sum())
    tasks = list(_tasks(survey, kinds, plan))
    with ExitStack() as stack:
        writers = {
            KINDS[split]: stack.enter_context(
                ShardWriter(plan.tokenizer.parent, split, plan.dtype, tokens_max, journal.shards[split], journal.add)
            )
            for split in SPLITS
        }
        for (size, _), runs in zip(tasks, crew.map(encode, (task for _, task in tasks)), strict=True):
            for kind, run in runs.items():
                with _tokens(run) as data:
                    writers[kind].add_run(data, run.lengths)
            done += size
            seen(done, total)
        return [shard for split in SPLITS for shard in writers[KINDS[split]].finish()]


@contextmanager
def _tokens(run: Run) -> Iterator[bytes | memoryview]:
    """The bytes of a run, whose file is removed after."""
    if isinstance(run.data, bytes):
        yield run.data
        return
    with run.data.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped, memoryview(mapped) as view:
        yield view
    run.data.unlink()


def _tasks(survey: Survey, kinds: Kinds, plan: Plan) -> Iterator[tuple[int, Task]]:
    """Batches of the pieces of which something is wanted, each with the bytes of text that it is about."""
    wanted_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kinds != OUT)])
    bytes_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(kinds != OUT, survey.sizes, 0))])
    wanted = np.diff(wanted_before[survey.first]).tolist()
    start = 0
    for batch in batches(survey.pieces):
        end = start + len(batch)
        left = [number for number in range(start, end) if wanted[number]]
        documents = [(int(survey.first[number]), int(survey.first[number + 1])) for number in left]
        if left:
            yield (
                int(bytes_before[survey.first[end]] - bytes_before[survey.first[start]]),
                Task(
                    number=start,
                    plan=plan,
                    pieces=[survey.pieces[number] for number in left],
                    digests=b"".join([survey.piece_digest(number) for number in left]),
                    documents=[last - first for first, last in documents],
                    kinds=np.concatenate([kinds[first:last] for first, last in documents]),
                ),
            )
        start = end
