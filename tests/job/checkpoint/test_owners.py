"""How a state is cut into parts, and that what is put together again is all of it: properties over shapes and cuts."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Bug
from phalanx.job.checkpoint import shard_file
from phalanx.job.checkpoint.owners import DTYPES, host_bytes, local_parts, specs_of
from phalanx.job.checkpoint.shard_file import Damaged, Part, PartEntry, SaveKey, ShardIndex
from phalanx.job.checkpoint.whole import merged, spec_of

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)
KEY = SaveKey(step=1, save="a")


def index_of(parts: list[Part]) -> ShardIndex:
    entries = tuple(
        PartEntry(
            name=part.name, dtype=part.dtype, shape=part.shape, start=part.start, size=part.size,
            offset=0, length=part.num_bytes, blake3="x",
        )
        for part in parts
    )  # fmt: skip
    return ShardIndex(key=KEY, rank=0, file="f", size_bytes=0, header_bytes=0, header_blake3="", parts=entries)


@given(shape=SHAPES, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.bool]), most=st.integers(1, 200))
def test_parts_are_small_and_tile_their_tensor(shape: tuple[int, ...], dtype: torch.dtype, most: int) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    parts = local_parts({"w": tensor}, part_bytes_max=most)
    again = torch.zeros_like(tensor)
    for part, piece in parts:
        assert piece.is_contiguous() and tuple(piece.shape) == part.size and DTYPES[part.dtype] == dtype
        assert len(host_bytes(piece)) == part.num_bytes <= max(most, tensor.element_size())
        again[tuple(slice(at, at + size) for at, size in zip(part.start, part.size, strict=True))] = piece
    assert torch.equal(again, tensor)
    places = merged(Path("step-1"), [index_of([part for part, _ in parts])])
    assert {name: spec_of(found) for name, found in places.items()} == specs_of({"w": tensor})


@given(shape=SHAPES.filter(lambda shape: math.prod(shape) > 1), most=st.integers(4, 40), data=st.data())
def test_a_part_that_is_missing_doubled_or_moved_is_noticed(shape: tuple[int, ...], most: int, data: st.DataObject) -> None:
    parts = [part for part, _ in local_parts({"w": torch.zeros(shape)}, part_bytes_max=most)]
    number = data.draw(st.integers(0, len(parts) - 1))
    one = parts[number]
    rest = parts[:number] + parts[number + 1 :]
    with pytest.raises(Damaged, match="hole") if rest else pytest.raises(KeyError):
        merged(Path("step-1"), [index_of(rest)])["w"]
    dim = next((dim for dim, size in enumerate(one.size) if size > 1), None)
    if dim is not None:  # one element less of it, and that of another part twice
        less = tuple(size - (index == dim) for index, size in enumerate(one.size))
        smaller = Part(name="w", dtype="F32", shape=one.shape, start=one.start, size=less)
        with pytest.raises(Damaged, match="hole"):
            merged(Path("step-1"), [index_of([*rest, smaller])])


@given(columns=st.integers(2, 9), cut=st.integers(1, 8), rows=st.integers(2, 9), at=st.integers(1, 8))
def test_columns_cut_at_different_rows_are_no_overlap(columns: int, cut: int, rows: int, at: int) -> None:
    """As two ranks that split a matrix by columns and cut their parts by bytes."""
    cut, at = min(cut, columns - 1), min(at, rows - 1)

    def part(start: tuple[int, int], size: tuple[int, int]) -> Part:
        return Part(name="w", dtype="F32", shape=(rows, columns), start=start, size=size)

    left = [part((0, 0), (at, cut)), part((at, 0), (rows - at, cut))]
    right = part((0, cut), (rows, columns - cut))
    assert set(merged(Path("step-1"), [index_of([*left, right])])) == {"w"}


def test_two_parts_that_overlap_and_leave_a_hole_of_the_same_size_are_noticed() -> None:
    starts = ((0, 0), (0, 2), (1, 1), (2, 0), (3, 0))
    sizes = ((2, 2), (2, 2), (1, 2), (1, 4), (1, 2))
    parts = [Part(name="w", dtype="F32", shape=(4, 4), start=start, size=size) for start, size in zip(starts, sizes, strict=True)]
    with pytest.raises(Damaged, match="overlap"):
        merged(Path("step-1"), [index_of(parts)])


def test_what_safetensors_cannot_hold_is_said_by_name() -> None:
    with pytest.raises(Bug, match=r"w has elements of torch\.complex128"):
        local_parts({"w": torch.zeros(2, dtype=torch.complex128)})


def test_two_parts_of_one_name_are_a_bug_and_not_a_file(tmp_path: Path) -> None:
    part = Part(name="w", dtype="U8", shape=(1,), start=(0,), size=(1,))
    with pytest.raises(Bug):
        shard_file.write(tmp_path / "x", [(part, memoryview(b"a")), (part, memoryview(b"b"))], key=KEY, rank=0)
    assert list(tmp_path.iterdir()) == []
