"""What a model's lineage says of data that its run did not read."""

from phalanx.job.data.quarantine import SetAside
from phalanx.job.train.set_aside import set_aside_lineage

SHARDS = "5d41402abc4b2a76b9719d911017c592", "7d793037a0760186574b0282f2f435e7"


def aside(source: str, shard: int, block: int, since: int = 16) -> SetAside:
    return SetAside(source=source, shard=SHARDS[shard], block=block, samples=((block * 10, block * 10 + 12),), since=since)


def test_nothing_is_said_of_a_run_that_has_read_all() -> None:
    assert set_aside_lineage((), 8) == {}


def test_blocks_are_named_by_source_shard_and_step() -> None:
    found = [aside("web", 0, block) for block in (3, 8, 9, 10)] + [aside("web", 1, 3, since=40), aside("code", 1, 0)]
    assert set_aside_lineage(found, 8) == {
        "data_set_aside": "6 blocks, for 12 samples of code, 44 samples of web",
        "data_set_aside.code": "shard 7d793037a076 block 0 from step 3",
        "data_set_aside.web": "shard 5d41402abc4b blocks 3, 8-10 from step 3; shard 7d793037a076 block 3 from step 6",
    }


def test_a_line_keeps_to_the_length_of_a_record() -> None:
    many = [aside("web", 0, 2 * block, since=8 * block) for block in range(100)]
    line = set_aside_lineage(many, 8)["data_set_aside.web"]
    assert line.endswith("; and 80 more") and len(line) < 2000
