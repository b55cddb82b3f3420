"""The vision transformer against transformers' own, and its first weights."""

import warnings

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from phalanx.core.vit_shape import VitShape, flops_per_image, num_parameters
from phalanx.job.models.vit import Vit, initialise

SHAPE = VitShape(image=12, patch=4, dim=24, layers=3, heads=4, ffn_dim=40, classes=5, norm_epsilon=1e-6)


def ours(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of transformers' `ViTForImageClassification` under our names."""
    first = "vit.embeddings."
    found = {
        "embedding.project.weight": theirs[f"{first}patch_embeddings.projection.weight"].flatten(1),
        "embedding.project.bias": theirs[f"{first}patch_embeddings.projection.bias"],
        "embedding.class_token": theirs[f"{first}cls_token"].flatten(),
        "embedding.places": theirs[f"{first}position_embeddings"][0],
    }
    names = {
        "attention_norm": "layernorm_before", "attention.out": "attention.o_proj", "feed_norm": "layernorm_after",
        "feed.up": "mlp.fc1", "feed.down": "mlp.fc2",
    }  # fmt: skip
    for kind in ("weight", "bias"):
        for layer in range(SHAPE.layers):
            at = f"vit.layers.{layer}."
            found |= {f"blocks.{layer}.{one}.{kind}": theirs[f"{at}{other}.{kind}"] for one, other in names.items()}
            parts = [theirs[f"{at}attention.{part}_proj.{kind}"] for part in "qkv"]
            found[f"blocks.{layer}.attention.qkv.{kind}"] = torch.cat(parts)
        found |= {f"norm.{kind}": theirs[f"vit.layernorm.{kind}"], f"head.{kind}": theirs[f"classifier.{kind}"]}
    return found


def test_the_same_weights_give_the_logits_that_transformers_gives() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=12, patch_size=4, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40, num_labels=5,
        layer_norm_eps=SHAPE.norm_epsilon,
    )  # fmt: skip
    reference = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for weight in reference.parameters():  # biases of 0 and norms of 1 would show nothing
            weight.normal_(0.0, 0.3)
    model = Vit(SHAPE)
    model.load_state_dict(ours(reference.state_dict()))
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        assert torch.allclose(model(images), reference(images).logits, rtol=1e-5, atol=1e-5)


def test_counts_are_those_of_the_model() -> None:
    model = Vit(SHAPE)
    assert sum(weight.numel() for weight in model.parameters()) == num_parameters(SHAPE)
    with (
        warnings.catch_warnings(),
        FlopCounterMode(display=False) as counted,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(torch.zeros(1, 3, 12, 12))
    assert counted.get_total_flops() == flops_per_image(SHAPE) / 3


def test_first_weights_depend_on_names_and_the_seed_alone() -> None:
    def drawn(seed: int, whole: bool) -> dict[str, Tensor]:
        model = Vit(SHAPE)
        for name, part in [("", model)] if whole else list(model.named_children()):
            initialise(part, name, seed, 0.02)
        return {name: weight.detach() for name, weight in model.named_parameters()}

    first, parts, other = drawn(1, True), drawn(1, False), drawn(2, True)
    assert all(torch.equal(first[name], parts[name]) for name in first)
    matrices = [name for name in first if first[name].dim() == 2 and name != "head.weight"]
    assert all(not torch.equal(first[name], other[name]) for name in matrices)
    assert all(float(first[name].std()) == pytest.approx(0.02, rel=0.25) for name in matrices)
    assert (first["blocks.0.feed_norm.weight"] == 1).all() and not first["head.weight"].any()
    assert not first["embedding.class_token"].any() and not first["blocks.1.attention.qkv.bias"].any()
