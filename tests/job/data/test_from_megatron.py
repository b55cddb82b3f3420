"""Megatron-LM's indexed data sets become a prepared folder, and what does not fit is refused before anything stands there."""

import struct
from pathlib import Path

import numpy as np
import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.from_megatron import import_megatron
from phalanx.job.data.imported import ImportAsked
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.verify import verify_files

CODES = {"<u1": 1, "<i4": 4, "<i8": 5, "<u2": 8}


@pytest.fixture
def asked(prepared_once: Path) -> ImportAsked:
    """The tokenizer of a prepared folder, and nothing held out."""
    return ImportAsked(tokenizer=prepared_once / "tokenizer.json", held_out=0.0)


def write_pair(prefix: Path, sequences: list[list[int]], bounds: list[int], dtype: str = "<i4", backwards: bool = False) -> Path:
    """As the layout says, sequence by sequence; `backwards` lays them into the `.bin` from the last to the first."""
    data, offsets = b"", [0] * len(sequences)
    for row in range(len(sequences))[:: -1 if backwards else 1]:
        offsets[row] = len(data)
        data += np.array(sequences[row], dtype=dtype).tobytes()
    count = len(sequences)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], count, len(bounds))
    arrays = struct.pack(f"<{count}i{count}q{len(bounds)}q", *map(len, sequences), *offsets, *bounds)
    prefix.with_name(f"{prefix.name}.bin").write_bytes(data)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(head + arrays)
    return prefix


def documents_of(data: TokenData) -> list[list[int]]:
    rows = data.gather("train", np.arange(data.num_tokens("train") - 1), 1)
    whole = [*rows[:, 0].tolist(), int(rows[-1, 1])]
    ends = np.cumsum(document_lengths(data, "train")).tolist()
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("dtype", CODES)
def test_documents_of_several_sequences_come_whole_and_in_order(tmp_path: Path, asked: ImportAsked, dtype: str) -> None:
    one = write_pair(tmp_path / "one", [[1, 2], [3], [], [4, 5, 6]], [0, 2, 3, 4], dtype, backwards=True)
    two = write_pair(tmp_path / "two", [[7, 8, 9]], [0, 1], dtype)
    done: list[tuple[int, int]] = []
    out = import_megatron([one, two.with_suffix(".idx")], tmp_path / "out", asked, lambda *at: done.append(at))
    data = open_data(out, verify=True)
    end = data.end_of_document
    assert documents_of(data) == [[1, 2, 3, end], [4, 5, 6, end], [7, 8, 9, end]]
    assert data.manifest.parameters["made_by"] == "import-megatron" and data.manifest.sources[0].name == "one two"
    assert all(at <= total for at, total in done)


def test_our_own_shards_go_through_it_and_stay_what_they_are(tmp_path: Path, prepared_once: Path, asked: ImportAsked) -> None:
    ours = open_data(prepared_once)
    shards = [prepared_once / shard.name for shard in ours.manifest.shards if shard.split == "train"]
    out = import_megatron(shards, tmp_path / "out", asked)
    again = open_data(out)
    verify_files(out, again.manifest)
    assert documents_of(again) == documents_of(ours)
    assert again.manifest.splits["train"].tokens == ours.manifest.splits["train"].tokens


def damaged(path: Path, at: int, data: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(bytes(whole))


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (0, b"X", "is no index"),
        (9, b"\x02", "is of version 2"),
        (17, b"\x06", "tokens are of type 6"),
        (18, b"\xff\xff", "too few for 65535 sequences"),
        (34, b"\xff\xff\xff\xff", "points outside one.bin"),
        (42, b"\x02", "points outside one.bin"),
        (50, b"\x7f", "points outside one.bin"),
        (74, b"\x05", "document bounds"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(tmp_path: Path, asked: ImportAsked, at: int, data: bytes, words: str) -> None:
    prefix = write_pair(tmp_path / "one", [[1, 2], [3, 4]], [0, 1, 2])
    damaged(tmp_path / "one.idx", at, data)
    with pytest.raises(DataError, match=words):
        import_megatron([prefix], tmp_path / "out", asked)
    assert not (tmp_path / "out").exists()


def test_an_id_outside_the_vocabulary_names_its_document(tmp_path: Path, asked: ImportAsked) -> None:
    prefix = write_pair(tmp_path / "one", [[1, 2], [3, 60_000]], [0, 1, 2])
    with pytest.raises(DataError, match=r"document 1 of .*one.bin has this id, outside the tokenizer's"):
        import_megatron([prefix], tmp_path / "out", asked)
    assert not (tmp_path / "out").exists()


def test_a_pair_that_is_not_there_or_none_at_all_is_one_error(tmp_path: Path, asked: ImportAsked) -> None:
    with pytest.raises(DataError, match=r"prefixes: .*nothing.*No such file.*without the ending"):
        import_megatron([tmp_path / "nothing"], tmp_path / "out", asked)
    with pytest.raises(DataError, match="name the pairs"):
        import_megatron([], tmp_path / "out", asked)
    with pytest.raises(DataError, match="documents: 0: there is none in what is imported"):
        import_megatron([write_pair(tmp_path / "empty", [], [0])], tmp_path / "out", asked)
    assert not (tmp_path / "out").exists()
