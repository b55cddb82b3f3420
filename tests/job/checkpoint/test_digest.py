"""Cheap sums that one flipped bit changes, and who of several is the odd one out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.job.checkpoint.digest import bit_sum
from phalanx.job.checkpoint.odd import Odd, after_second_look, odd_ones

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def some(seed: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype)


@given(st.integers(0, 10**6), st.integers(1, 300), st.sampled_from(DTYPES[:-1]), st.data())
def test_any_flipped_bit_changes_the_sum(seed: int, size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = some(seed, size, dtype)
    before, bits = int(bit_sum(tensor)), tensor.view(INTEGER[tensor.element_size()])
    at, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 8 * tensor.element_size() - 2))
    bits[at] ^= 1 << bit
    assert int(bit_sum(tensor)) != before
    bits[at] ^= 1 << bit
    assert int(bit_sum(tensor)) == before


@given(st.integers(0, 10**6), st.integers(1, 300), st.sampled_from(DTYPES), st.integers(0, 300))
def test_the_sum_over_any_two_parts_is_that_of_the_whole(seed: int, size: int, dtype: torch.dtype, cut: int) -> None:
    tensor = some(seed, size, dtype)
    parts = int(bit_sum(tensor[:cut])) + int(bit_sum(tensor[cut:]))
    assert (parts - int(bit_sum(tensor))) % 2**64 == 0
    assert int(bit_sum(tensor.flip(0))) == int(bit_sum(tensor))


def test_a_large_tensor_is_summed_without_a_copy_that_numpy_keeps() -> None:
    tensor = some(1, 200_001, torch.float32)
    assert int(bit_sum(tensor)) == sum(tensor.view(torch.int32).tolist())
    tensor.untyped_storage().resize_(0)  # FSDP lets go of what it gathered


def test_a_scalar_and_an_empty_part_have_sums_too() -> None:
    assert int(bit_sum(torch.tensor(1.0))) == 0x3F800000 and int(bit_sum(torch.empty(0))) == 0


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ({0: 5}, None),
        ({0: 5, 1: 5}, None),
        ({0: 5, 1: 6}, Odd((0, 1), False)),
        ({0: 5, 1: 6, 2: 5}, Odd((1,), True)),
        ({0: 5, 1: 6, 2: 7, 3: 5, 4: 5}, Odd((1, 2), True)),
        ({0: 5, 1: 6, 2: 5, 3: 6}, Odd((0, 1, 2, 3), False)),
        ({3: 5, 7: 6, 9: 6}, Odd((3,), True)),
    ],
)
def test_more_than_half_are_right(values: dict[int, int], odd: Odd | None) -> None:
    assert odd_ones(values) == odd


def test_of_two_the_one_that_contradicts_itself_is_wrong() -> None:
    odd = Odd((0, 1), False)
    assert after_second_look(odd, {0: 5, 1: 6}, {0: 5, 1: 7}) == Odd((1,), True)
    assert after_second_look(odd, {0: 5, 1: 6}, {0: 5, 1: 6}) == odd
    assert after_second_look(odd, {0: 5, 1: 6}, {0: 8, 1: 7}) == odd
    assert after_second_look(Odd((2,), True), {2: 5}, {2: 5}) == Odd((2,), True)
