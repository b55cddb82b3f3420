"""Prepared data as arrays: whole batches, and every kind of damage refused by name."""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import MANIFEST, SPLITS, Split
from phalanx.job.data.open import open_data
from phalanx.job.data.order import batch_indices, rank_slice
from phalanx.storage.hashes import sha256_file


@cache
def flat(folder: Path, split: Split) -> list[int]:
    shards = [np.fromfile(path, dtype="<u2") for path in sorted(folder.glob(f"{split}-*.bin"))]
    return [int(token) for token in np.concatenate(shards)]


def test_it_says_what_it_holds(prepared_once: Path) -> None:
    data = open_data(prepared_once)
    assert data.manifest_hash == sha256_file(prepared_once / MANIFEST)
    assert data.vocab_size == 600
    for split in SPLITS:
        assert data.num_tokens(split) == len(flat(prepared_once, split))
        assert data.num_samples(split, 64) == (data.num_tokens(split) - 1) // 64
        assert data.num_samples(split, data.num_tokens(split)) == 0
    assert data.tokenizer_path.is_file()
    with pytest.raises(DataError, match="above 0"):
        data.num_samples("train", 0)


@given(
    sequence=st.integers(1, 30_000), picks=st.lists(st.floats(0, 1, exclude_max=True), max_size=6), split=st.sampled_from(SPLITS)
)
def test_gathered_samples_are_the_tokens_of_the_concatenated_documents(
    prepared_once: Path, sequence: int, picks: list[float], split: Split
) -> None:
    data, tokens = open_data(prepared_once), flat(prepared_once, split)
    count = data.num_samples(split, sequence)
    indices = np.array([int(pick * count) for pick in picks if count], dtype=np.int64)
    rows = data.gather(split, indices, sequence)
    assert rows.shape == (len(indices), sequence + 1)
    assert rows.dtype == np.int64
    assert rows.tolist() == [tokens[i * sequence : i * sequence + sequence + 1] for i in indices.tolist()]


def test_an_epoch_reads_every_token_once_as_input(prepared_once: Path) -> None:
    data, sequence = open_data(prepared_once), 128
    count = data.num_samples("train", sequence)
    epoch = np.sort(batch_indices(5, 0, count, count))
    inputs = data.gather("train", epoch, sequence)[:, :-1].ravel()
    assert inputs.tolist() == flat(prepared_once, "train")[: count * sequence]


def test_t01_the_batch_is_the_same_at_any_world_size(prepared_once: Path) -> None:
    data = open_data(prepared_once)
    batch = batch_indices(5, 3, 12, data.num_samples("train", 32))
    whole = data.gather("train", batch, 32)
    for world_size in (1, 2, 3, 5):
        parts = [data.gather("train", rank_slice(batch, rank, world_size), 32) for rank in range(world_size)]
        assert (np.concatenate(parts) == whole).all()


def test_outside_the_split_raises(prepared_once: Path) -> None:
    data = open_data(prepared_once)
    count = data.num_samples("train", 64)
    for index in (-1, count):
        with pytest.raises(IndexError, match=rf"^sample {index} lies outside \[0, {count}\)$"):
            data.gather("train", np.array([0, index, 10**9]), 64)


def shard(folder: Path) -> Path:
    return folder / "train-00000.bin"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def reach_out(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["shards"][0]["name"] = "../data/train-00000"
    rewrite(folder, shards=manifest["shards"])


def no_shard(folder: Path) -> None:
    nothing = {"tokens": 0, "documents": 0, "text_bytes": 0}
    rewrite(folder, shards=[], splits={"train": nothing, "held_out": nothing})


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no folder": (lambda folder: folder.rename(folder.with_name("gone")), "data", "is not there"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), "data", "without their manifest.json"),
    "manifest is a folder": (lambda folder: as_folder(folder / MANIFEST), "manifest", "cannot be read"),
    "manifest is not JSON": (lambda folder: (folder / MANIFEST).write_text("{"), "manifest", "not a manifest of ours"),
    "manifest of something else": (lambda folder: (folder / MANIFEST).write_text('{"format": 2}'), "manifest", "not a manifest"),
    "newer format": (lambda folder: (folder / MANIFEST).write_text('{"format": 3}'), "format", "newer Phalanx"),
    "a name that reaches out": (reach_out, "manifest", "outside its folder"),
    "wrong counts": (lambda folder: rewrite(folder, shards=[]), "splits.train", "does not count"),
    "no shard": (no_shard, "manifest", "lists no shard; make the folder again"),
    "wrong type": (lambda folder: rewrite(folder, dtype="int32"), "train-00000.bin", "tokens"),
    "shard gone": (lambda folder: shard(folder).unlink(), "train-00000.bin", "cannot be read"),
    "shard shorter": (lambda folder: os.truncate(shard(folder), 100), "train-00000.bin", "should have"),
    "shard empty": (lambda folder: shard(folder).write_bytes(b""), "train-00000.bin", "should have"),
    "a flipped bit": (lambda folder: flip(shard(folder)), "train-00000.bin", "is damaged"),
    "a flipped bit in an index": (lambda folder: flip(folder / "held_out-00000.idx"), "held_out-00000.idx", "is damaged"),
    "another tokenizer": (lambda folder: flip(folder / "tokenizer.json"), "tokenizer.json", "is damaged"),
    "checksums gone": (lambda folder: (folder / "train-00000.xxh3").unlink(), "train-00000.xxh3", "cannot be read"),
    "vocabulary over the type": (lambda folder: rewrite(folder, vocab_size=70_000), "vocab_size", "cannot hold it"),
    "a token past the vocabulary": (lambda folder: rewrite(folder, vocab_size=300), "train-00000.bin", "outside the vocabulary"),
}


@pytest.mark.parametrize(("damage", "field", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_d09_damage_is_refused_by_name(prepared: Path, damage: Callable[[Path], object], field: str, message: str) -> None:
    damage(prepared)
    with pytest.raises(DataError, match=message) as caught:
        open_data(prepared, verify=True)
    assert caught.value.field == field


def test_what_shows_at_once_is_refused_without_reading_the_shards(prepared: Path) -> None:
    os.truncate(shard(prepared), 100)
    with pytest.raises(DataError, match="should have"):
        open_data(prepared)


def test_damage_is_told_in_few_words(prepared: Path) -> None:
    """Which file, where, and how it is other: a list of jobs has room for little more."""
    flip(prepared / "tokenizer.json")
    with pytest.raises(DataError) as caught:
        open_data(prepared)
    words = (
        rf"tokenizer\.json: in {prepared} it is damaged: its SHA-256 should be [0-9a-f]{{12}} and is [0-9a-f]{{12}}; restore it, "
    )
    assert re.match(words, caught.value.sentence())
    size = (prepared / "tokenizer.json").stat().st_size
    os.truncate(prepared / "tokenizer.json", size - 1)
    with pytest.raises(DataError) as caught:
        open_data(prepared)
    short = f"tokenizer.json: in {prepared} it should have {size} bytes and has {size - 1}; restore it, "
    assert caught.value.sentence().startswith(short) and str(caught.value) == caught.value.sentence()


def test_a_file_that_is_gone_is_named_once(prepared: Path) -> None:
    (prepared / "train-00000.xxh3").unlink()
    with pytest.raises(DataError) as gone:
        open_data(prepared, verify=True)
    absent = f"train-00000.xxh3: cannot be read (No such file or directory) in {prepared}; restore it, "
    assert gone.value.sentence().startswith(absent)


def test_several_damaged_files_are_counted(prepared: Path) -> None:
    flip(shard(prepared))
    flip(prepared / "train-00001.idx")
    with pytest.raises(DataError, match=r"train-00000\.bin.*and 1 more: train-00001\.idx"):
        open_data(prepared, verify=True)
