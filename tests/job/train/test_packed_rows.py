"""A row of several documents is to the model what each of them is alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from phalanx.job.data.packing import BestFit, Concatenate
from phalanx.job.models.context import document_mask
from phalanx.job.models.llama import Llama, LlamaShape, initialise, places_in_documents
from phalanx.job.train.loss import sample_losses, token_loss

SHAPE = LlamaShape(vocab=31, dim=16, layers=2, heads=2, ffn_dim=24)
LENGTHS = np.array([5, 9, 3, 16, 1, 1, 7, 12], dtype=np.int32)
WIDTH = 16


@pytest.fixture(scope="module")
def model() -> Llama:
    made = Llama(SHAPE)
    for name, part in made.named_children():
        initialise(part, name, 0, 0.3)
    return made


def packed() -> tuple[Tensor, Tensor]:
    """Ids and segments of every row of some documents of random tokens."""
    packing = BestFit(LENGTHS, WIDTH)
    pieces = packing.pieces(np.arange(packing.num_samples, dtype=np.int64))
    flat = np.random.default_rng(0).integers(1, SHAPE.vocab, int(LENGTHS.sum()))
    tokens = pieces.tokens(np.cumsum(LENGTHS) - LENGTHS)
    return torch.from_numpy(np.where(tokens < 0, 0, flat[tokens])), torch.from_numpy(pieces.segments()).long()


def documents(ids: Tensor, segments: Tensor) -> list[tuple[int, Tensor]]:
    """(row, where) of each."""
    return [
        (row, (segments[row] == number).nonzero().flatten())
        for row in range(len(ids))
        for number in range(int(segments[row].max()) + 1)
    ]


@torch.no_grad()
def test_logits_of_a_document_in_a_packed_row_are_those_of_the_document_alone(model: Llama) -> None:
    ids, segments = packed()
    logits = model(ids, segments)
    found = documents(ids, segments)
    assert len(found) == len(LENGTHS) and len(ids) < len(LENGTHS)
    for row, where in found:
        alone = model(ids[row, where][None])[0]
        torch.testing.assert_close(logits[row, where], alone, atol=2e-6, rtol=2e-5)
    assert torch.isfinite(logits).all(), "padding too"
    unmasked = model(ids)
    row, where = next((row, where) for row, where in found if where[0] > 0)
    assert not torch.allclose(unmasked[row, where], logits[row, where], atol=1e-3), "the mask does something"


def test_the_loss_counts_targets_within_documents_alone(model: Llama) -> None:
    ids, segments = packed()
    losses = sample_losses(model, torch.stack((ids, segments), dim=1))
    for row in range(len(ids)):
        of_row = [where for at, where in documents(ids, segments) if at == row]
        inside = [where for where in of_row if len(where) > 1]
        alone = [len(where[1:]) * token_loss(model, ids[row, where][None]) for where in inside]
        expected = torch.stack(alone).sum() / sum(len(where) - 1 for where in inside)
        torch.testing.assert_close(losses[row], expected, atol=2e-6, rtol=2e-5)


def test_a_row_without_a_target_is_no_loss_and_no_nan(model: Llama) -> None:
    nothing = torch.stack((torch.zeros(1, 4, dtype=torch.int64), torch.tensor([[0, 1, 2, -1]])), dim=1)
    loss = token_loss(model, nothing)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert all(parameter.grad is None or torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    model.zero_grad()


def test_the_loss_of_packed_rows_does_not_depend_on_which_are_computed_together(model: Llama) -> None:
    ids, segments = packed()
    samples = torch.stack((ids, segments), dim=1)
    halves = [token_loss(model, samples[at : at + 2]) for at in (0, 2)]
    torch.testing.assert_close(token_loss(model, samples[:4]), torch.stack(halves).mean(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("packing", [BestFit(LENGTHS, WIDTH), Concatenate(LENGTHS, WIDTH - 1)], ids=["best fit", "concatenate"])
def test_positions_and_counted_targets_are_those_of_the_pieces(packing: BestFit | Concatenate) -> None:
    pieces = packing.pieces(np.arange(packing.num_samples, dtype=np.int64))
    segments = torch.from_numpy(pieces.segments())
    inside = pieces.segments() >= 0
    assert (places_in_documents(segments).numpy() == pieces.positions())[inside].all()
    mask = document_mask(segments)
    assert (mask.sum(dim=2).numpy() == pieces.positions() + 1)[inside].all()
    assert mask.diagonal(dim1=1, dim2=2).all()
