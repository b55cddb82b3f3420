"""Bytes that many threads put in their places; that a GPU gets the same the benchmarks see, which compare losses bit for bit."""

import pytest
import torch

from phalanx.job.checkpoint.staged import PIECE_BYTES, copy_in, flat

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 3])
def test_all_bytes_come_whatever_pieces_they_are_cut_into(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    sources = [torch.randint(256, (size,), dtype=torch.uint8, generator=generator) for _ in range(3)]
    targets = [torch.zeros(size, dtype=torch.uint8) for _ in sources]
    copy_in(list(zip(targets, sources, strict=True)), CPU)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_flat_is_the_tensor_s_own_memory() -> None:
    tensor = torch.zeros(2, 3)
    copy_in([(flat(tensor), flat(torch.full((2, 3), 1.5)))], CPU)
    assert tensor.eq(1.5).all()
    scalar = torch.tensor(0.0)
    copy_in([(flat(scalar), flat(torch.tensor(7.0)))], CPU)
    assert scalar.item() == 7.0
