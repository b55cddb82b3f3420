"""Format 2 as it stands on disk, read as it is described and not by our code; and that format 1 still opens."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from phalanx.core.errors import DataError
from phalanx.job.data.block_sums import BLOCK_BYTES, BlockSums, num_blocks, read_sums, sums_bytes
from phalanx.job.data.megatron import DTYPES, TokenType, token_bytes
from phalanx.job.data.open import open_data
from phalanx.job.data.shard_writer import ShardWriter

MIB = 2**20


def sums_of(data: bytes) -> list[int]:
    return [xxh3_64_intdigest(data[at : at + MIB]) for at in range(0, len(data), MIB)]


@given(sizes=st.lists(st.sampled_from([0, 1, 2, 1000, MIB - 1, MIB, MIB + 1, 2 * MIB + 5]), max_size=4))
def test_sums_of_blocks_do_not_depend_on_the_pieces_that_came(sizes: list[int]) -> None:
    data = np.random.default_rng(1).bytes(sum(sizes))
    sums, at = BlockSums(), 0
    for size in sizes:
        sums.update(data[at : at + size])
        at += size
    found = sums.to_bytes()
    assert read_sums(found).tolist() == sums_of(data)
    assert len(found) == sums_bytes(len(data)) == 8 * num_blocks(len(data))
    assert BLOCK_BYTES == MIB


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_a_written_shard_is_what_the_manifest_says(tmp_path: Path, dtype: TokenType) -> None:
    """Shards of over a MiB, cut where a document ends."""
    writer, tokens = ShardWriter(tmp_path, "train", dtype, 700_000), np.random.default_rng(2)
    documents = [tokens.integers(0, 60_000, size).tolist() for size in (300_000, 399_998, 1, 5, 800_000)]
    writer.add(documents[:2], 7)
    writer.add(documents[2:], 7)
    shards = writer.finish()
    assert [(shard.name, shard.tokens, shard.documents) for shard in shards] == [
        ("train-00000", 700_000, 2),
        ("train-00001", 800_009, 3),
    ]
    for shard, ids in zip(shards, (documents[:2], documents[2:]), strict=True):
        for entry in shard.files:
            data = (tmp_path / entry.name).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size_bytes, entry.sha256)
        data = (tmp_path / f"{shard.name}.bin").read_bytes()
        assert np.frombuffer(data, DTYPES[dtype]).tolist() == [token for one in ids for token in (*one, 7)]
        assert np.fromfile(tmp_path / f"{shard.name}.xxh3", "<u8").tolist() == sums_of(data)
    assert len(list(tmp_path.iterdir())) == 6


def test_an_id_over_the_type_of_the_tokens_is_refused() -> None:
    assert token_bytes([0, 65_535], "uint16") == b"\x00\x00\xff\xff"
    for ids, dtype in (([1, 65_536], "uint16"), ([2**31], "int32"), ([-1], "uint16")):
        with pytest.raises(DataError, match="does not fit"):
            token_bytes(ids, dtype)  # type: ignore[arg-type] # the table mixes types on purpose


@pytest.fixture
def format_1(tmp_path: Path) -> Path:
    """A folder that the first version made, and no later one."""
    return shutil.copytree(Path(__file__).parent / "format_1", tmp_path / "format_1")


def test_a_folder_of_format_1_still_opens(format_1: Path) -> None:
    data = open_data(format_1)
    assert data.manifest.format == 1
    assert data.num_tokens("train") == 2201
    tokens = np.concatenate([np.fromfile(path, "<u2") for path in sorted(format_1.glob("train-*.bin"))])
    assert data.gather("train", np.arange(34), 64)[:, :-1].ravel().tolist() == tokens[: 34 * 64].tolist()


def test_a_folder_of_format_1_is_checked_whole_when_it_is_opened(format_1: Path) -> None:
    data = bytearray((format_1 / "train-00001.bin").read_bytes())
    data[-1] ^= 1
    (format_1 / "train-00001.bin").write_bytes(data)
    with pytest.raises(DataError, match="damaged") as caught:
        open_data(format_1)
    assert caught.value.field == "train-00001.bin"
