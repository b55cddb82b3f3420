"""Every block is checked when it is first read: damage is refused by name wherever it lies, and never returned."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.block_sums import BLOCK_BYTES
from phalanx.job.data.manifest import FileEntry
from phalanx.job.data.open import TokenData, open_data
from tests.drawn import ANYHOW, examples
from tests.job.data.random_tokens import write_tokens

MIB = BLOCK_BYTES
SIZES = [2 * MIB - 100, 700, MIB + 3, 5]
"""Tokens: shards of 4, 1, 3 and 1 blocks of uint16."""
SEQUENCE = 999


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[np.int64]]:
    folder = tmp_path_factory.mktemp("blocks") / "data"
    return folder, write_tokens(folder, SIZES)


@pytest.fixture
def damaged(written: tuple[Path, NDArray[np.int64]], tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(written[0], tmp_path / "data")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def sample(data: TokenData, index: int, sequence: int = SEQUENCE) -> list[int]:
    found: list[int] = data.gather("train", np.array([index]), sequence)[0].tolist()
    return found


def test_a_flipped_byte_in_the_block_that_is_read_is_named(damaged: Path) -> None:
    flip(damaged / "train-00000.bin", MIB + 7)
    data = open_data(damaged)
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(DataError, match=r"bytes 1048576 to 2097152 of .*train-00000\.bin are damaged.*restore it") as caught:
            sample(data, MIB // 2 // SEQUENCE + 1)
        assert (caught.value.field, caught.value.value) == ("train-00000.bin", "block 1")


def test_a_flipped_byte_in_a_block_that_is_never_read_disturbs_nobody(
    damaged: Path, written: tuple[Path, NDArray[np.int64]]
) -> None:
    flip(damaged / "train-00000.bin", 3 * MIB)
    assert sample(open_data(damaged), 0) == written[1][: SEQUENCE + 1].tolist()
    with pytest.raises(DataError, match="its SHA-256 should be"):
        open_data(damaged, verify=True)


@settings(max_examples=examples(60), suppress_health_check=[*ANYHOW, HealthCheck.function_scoped_fixture])
@given(data=st.data(), sequence=st.sampled_from([1, 7, 999, 60_000, 1_200_000]))
def test_a_batch_is_right_or_refused_wherever_a_byte_is_flipped(
    damaged: Path, written: tuple[Path, NDArray[np.int64]], data: st.DataObject, sequence: int
) -> None:
    """And it is refused just when it touches the damaged block."""
    tokens, shard = written[1], data.draw(st.integers(0, len(SIZES) - 1))
    path = damaged / f"train-{shard:05d}.bin"
    byte = data.draw(st.integers(0, 2 * SIZES[shard] - 1))
    begin = sum(SIZES[:shard])
    broken = range(begin + byte // MIB * MIB // 2, begin + min(SIZES[shard], (byte // MIB + 1) * MIB // 2))
    opened = open_data(damaged)
    flip(path, byte)
    try:
        for _ in range(2):
            count = opened.num_samples("train", sequence)
            indices = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)))
            touched = any(i * sequence < broken.stop and i * sequence + sequence >= broken.start for i in indices.tolist())
            if touched:
                with pytest.raises(DataError, match=f"train-{shard:05d}"):
                    opened.gather("train", indices, sequence)
            else:
                rows = opened.gather("train", indices, sequence)
                for index, row in zip(indices.tolist(), rows, strict=True):
                    assert (row == tokens[index * sequence : (index + 1) * sequence + 1]).all()
    finally:
        flip(path, byte)


def test_reading_all_of_it_takes_the_short_way_and_gives_the_same(written: tuple[Path, NDArray[np.int64]]) -> None:
    """Twice: the first pass checks, the second finds all checked."""
    folder, tokens = written
    data = open_data(folder)
    count = data.num_samples("train", SEQUENCE)
    out = np.empty((count, SEQUENCE + 1), dtype=np.int64)
    for _ in range(2):
        assert data.gather("train", np.arange(count), SEQUENCE, out=out) is out
        assert (out[:, :-1].ravel() == tokens[: count * SEQUENCE]).all()
        assert (out[:, -1] == tokens[SEQUENCE : count * SEQUENCE + 1 : SEQUENCE]).all()
        out[:] = -1


def test_a_buffer_may_be_a_part_of_a_wider_one(written: tuple[Path, NDArray[np.int64]]) -> None:
    data, wide = open_data(written[0]), np.full((3, SEQUENCE + 9), -1)
    for _ in range(2):
        data.gather("train", np.arange(3), SEQUENCE, out=wide[:, 4 : SEQUENCE + 5])
        data.gather("train", np.arange(data.num_samples("train", SEQUENCE)), SEQUENCE)  # so that the second goes the short way
        assert (wide[:, 4 : SEQUENCE + 5] == data.gather("train", np.arange(3), SEQUENCE)).all()
        assert (wide[:, :4] == -1).all()
        assert (wide[:, SEQUENCE + 5 :] == -1).all()


def test_wide_tokens_and_negative_ids(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "data", [300_000, 9], dtype="int32", vocab_size=100_000)
    assert sample(open_data(tmp_path / "data"), 1) == tokens[SEQUENCE : 2 * SEQUENCE + 1].tolist()
    writer = tmp_path / "data" / "train-00000.bin"
    writer.write_bytes(np.full(300_000, -1, dtype="<i4").tobytes())
    with pytest.raises(DataError, match="damaged"):
        sample(open_data(tmp_path / "data"), 1)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "shard gone": (lambda folder: (folder / "train-00000.bin").unlink(), "train-00000.bin", "cannot be read"),
    "shard shorter": (lambda folder: os.truncate(folder / "train-00000.bin", MIB), "train-00000.bin", "should have"),
    "checksums gone": (lambda folder: (folder / "train-00000.xxh3").unlink(), "train-00000.xxh3", "cannot be read"),
    "checksums shorter": (lambda folder: os.truncate(folder / "train-00000.xxh3", 8), "train-00000.xxh3", "should have"),
    "checksums flipped": (lambda folder: flip(folder / "train-00000.xxh3", 25), "train-00000.xxh3", "is damaged"),
    "checksums of other data": (
        lambda folder: shutil.copy(folder / "train-00002.xxh3", folder / "train-00000.xxh3"), "train-00000.xxh3", "should have",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "field", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_after_the_opening_is_refused_by_name(
    damaged: Path, damage: Callable[[Path], object], field: str, message: str
) -> None:
    data = open_data(damaged)
    damage(damaged)
    with pytest.raises(DataError, match=message) as caught:
        sample(data, 0)
    assert caught.value.field == field


def test_a_manifest_for_other_data_is_refused(damaged: Path, tmp_path: Path) -> None:
    """Of the same sizes, so that only the checksums tell."""
    write_tokens(tmp_path / "other", SIZES, seed=2)
    shutil.copy(tmp_path / "other" / "manifest.json", damaged / "manifest.json")
    with pytest.raises(DataError, match="SHA-256") as caught:
        sample(open_data(damaged), 0)
    assert caught.value.field == "train-00000.xxh3"


def test_a_restored_file_is_mapped_anew(damaged: Path, written: tuple[Path, NDArray[np.int64]]) -> None:
    """The mapping of the damaged file, which had the name before, must not be read after the check of the new one."""
    flip(damaged / "train-00000.bin", MIB + 7)
    data = open_data(damaged)
    with pytest.raises(DataError):
        sample(data, MIB // 2 // SEQUENCE + 1)
    shutil.copy(written[0] / "train-00000.bin", damaged / "new")
    (damaged / "new").rename(damaged / "train-00000.bin")
    index = MIB // 2 // SEQUENCE + 1
    assert sample(data, index) == written[1][index * SEQUENCE : (index + 1) * SEQUENCE + 1].tolist()


def test_a_buffer_of_another_shape_or_type_is_refused(written: tuple[Path, NDArray[np.int64]]) -> None:
    data = open_data(written[0])
    for wrong in (np.empty((2, SEQUENCE + 1), dtype=np.int64), np.empty((1, SEQUENCE + 1), dtype=np.int32)):
        with pytest.raises(DataError, match=r"give int64 of shape \[1, 1000\]"):
            data.gather("train", np.array([0]), SEQUENCE, out=wrong)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("attempt", range(3))
def test_threads_that_meet_unread_blocks_together_get_what_is_there(written: tuple[Path, NDArray[np.int64]], attempt: int) -> None:
    """Mapping, checking and the short way begin under each other's feet."""
    data, tokens = open_data(written[0]), written[1]
    count = data.num_samples("train", SEQUENCE)

    def read(seed: int) -> bool:
        generator = np.random.default_rng([attempt, seed])
        for _ in range(40):
            indices = generator.integers(0, count, 5)
            rows = data.gather("train", indices, SEQUENCE)
            wanted = [tokens[index * SEQUENCE : (index + 1) * SEQUENCE + 1] for index in indices.tolist()]
            if (rows != np.stack(wanted)).any():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_another_process_may_be_given_the_data(damaged: Path, tmp_path: Path) -> None:
    data = open_data(damaged)
    pickled = pickle.dumps(data)
    assert (pickle.loads(pickled).gather("train", np.arange(9), SEQUENCE) == data.gather("train", np.arange(9), SEQUENCE)).all()
    shutil.rmtree(damaged)
    write_tokens(damaged, SIZES, seed=2)
    with pytest.raises(DataError, match="holds other data"):
        pickle.loads(pickled)


def test_a_forked_process_reads_on(written: tuple[Path, NDArray[np.int64]]) -> None:
    """As PyTorch's loader starts its processes."""
    data, tokens = open_data(written[0]), written[1]
    sample(data, 0)
    child = os.fork()
    if child == 0:
        right = sample(data, 2 * MIB // SEQUENCE + 3) == tokens[(2 * MIB // SEQUENCE + 3) * SEQUENCE :][: SEQUENCE + 1].tolist()
        os._exit(0 if right and sample(data, 0) == tokens[: SEQUENCE + 1].tolist() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_with_too_few_addresses_is_told_so(tmp_path: Path) -> None:
    """A shard of 128 GiB, of which nothing is on the disk, and a limit on addresses."""
    write_tokens(tmp_path / "data", [10])
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    tokens = 64 * 2**30
    manifest["splits"]["train"]["tokens"] = manifest["shards"][0]["tokens"] = tokens
    manifest["shards"][0] |= {"bin_bytes": 2 * tokens, "xxh3_bytes": 8 * 2 * tokens // MIB}
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest))
    os.truncate(tmp_path / "data" / "train-00000.bin", 2 * tokens)
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom phalanx.core.errors import SetupError\n"
        "from phalanx.job.data.open import open_data\nopen_data(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))\n"
        "try:\n    open_data(Path(sys.argv[1]))\nexcept SetupError as error:\n    print(error.fix)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "data"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "ulimit -v unlimited" in done.stdout


def test_no_file_stays_open(tmp_path: Path) -> None:
    """A process may have some hundred files open, and a data set has more shards."""
    tokens = write_tokens(tmp_path / "data", [64] * 40)
    data = open_data(tmp_path / "data")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert (data.gather("train", np.arange(data.num_samples("train", 10)), 10)[:, :-1].ravel() == tokens[:-10]).all()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_damaged_block_says_which_and_what_needs_it(damaged: Path, written: tuple[Path, NDArray[np.int64]]) -> None:
    flip(damaged / "train-00002.bin", MIB + 7)
    data = open_data(damaged)
    with pytest.raises(BadBlock) as caught:
        sample(data, (SIZES[0] + SIZES[1] + MIB // 2) // SEQUENCE + 1)
    (block,) = pickle.loads(pickle.dumps(caught.value)).blocks
    assert block == Block(data=data.manifest_hash, shard=data.manifest.shards[2].bin_sha256, block=1)
    for sequence in (7, SEQUENCE, 700_000):
        count, begin = data.num_samples("train", sequence), SIZES[0] + SIZES[1] + MIB // 2
        needs = [i for i in range(count) if i * sequence < begin + MIB // 2 and i * sequence + sequence >= begin]
        assert data.touching("train", block, sequence) == ((needs[0], needs[-1] + 1),)
    assert data.touching("held_out", block, SEQUENCE) == () == data.touching("train", replace(block, data="other"), SEQUENCE)
    assert data.touching("train", replace(block, block=9), SEQUENCE) == ()


def test_a_block_that_is_right_when_read_again_is_no_damage(
    damaged: Path, written: tuple[Path, NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a bit that flipped between disk and memory; a local folder has no other place to fetch it from."""
    flip(damaged / "train-00000.bin", 7)
    advised: list[tuple[int, int, int]] = []

    def drop(descriptor: int, offset: int, length: int, advice: int) -> None:
        advised.append((offset, length, advice))
        flip(damaged / "train-00000.bin", 7)

    monkeypatch.setattr(os, "posix_fadvise", drop)
    assert sample(open_data(damaged), 0) == written[1][: SEQUENCE + 1].tolist()
    assert advised == [(0, MIB, os.POSIX_FADV_DONTNEED)]


def test_a_bad_shard_is_fetched_again_where_it_came_from_elsewhere(damaged: Path, written: tuple[Path, NDArray[np.int64]]) -> None:
    """Damaged, cut short, or gone, and its checksums too: once each, and then it is read."""
    fetched: list[tuple[str, int]] = []

    def refetch(entry: FileEntry, block: int) -> None:
        fetched.append((entry.name, block))
        shutil.copy(written[0] / entry.name, damaged / "new")
        (damaged / "new").rename(damaged / entry.name)

    data = open_data(damaged, refetch=refetch)
    flip(damaged / "train-00000.bin", MIB + 7)
    assert sample(data, MIB // 2 // SEQUENCE + 1) == written[1][SEQUENCE * (MIB // 2 // SEQUENCE + 1) :][: SEQUENCE + 1].tolist()
    os.truncate(damaged / "train-00001.bin", 9)
    (damaged / "train-00002.xxh3").unlink()
    assert len(data.gather("train", np.arange(data.num_samples("train", SEQUENCE)), SEQUENCE))
    assert sorted(fetched) == [("train-00000.bin", 1), ("train-00001.bin", 0), ("train-00002.xxh3", 0)]


def test_a_block_that_comes_damaged_again_is_refused(damaged: Path) -> None:
    flip(damaged / "train-00000.bin", 7)
    fetched: list[str] = []
    data = open_data(damaged, refetch=lambda entry, _: fetched.append(entry.name))
    with pytest.raises(BadBlock, match="are damaged"):
        sample(data, 0)
    assert fetched == ["train-00000.bin"]
