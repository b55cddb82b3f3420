"""Models of Hugging Face's transformers, in here and out again: the same logits each time."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from phalanx.core.lora import Lora
from phalanx.core.pixels import Normalise
from phalanx.core.vit_shape import VitShape
from phalanx.job.data.images import boxes
from phalanx.job.data.images.decode import decoded
from phalanx.job.data.images.rows import fill, words_of
from phalanx.job.data.tars.open import Sample
from phalanx.job.models.hf_export import write_hf, write_peft
from phalanx.job.models.llama import Llama
from phalanx.job.models.lora import adapt, initialise_adapters, merge
from phalanx.job.models.model_folder import ModelFolder
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_config import preprocessor_of
from phalanx.job.models.vit_export import write_vit
from phalanx.job.models.vit_folder import VitFolder
from phalanx.job.train.classes import ImageClasses

TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
STRETCHED = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 2, "rope_parameters": STRETCHED}),
    "llama-tied-wide-heads": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True, "head_dim": 16}),
    "mistral": ("Mistral", {"num_key_value_heads": 1, "sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}
IDS = torch.randint(96, (2, 48), generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """Logits of transformers' model, of ours from its folder, and of transformers' from the folder that we wrote."""

    theirs: torch.Tensor
    ours: torch.Tensor
    again: torch.Tensor
    kind: str


@pytest.fixture(scope="module")
def transformers() -> Iterator[Any]:
    """Imported once, in 5 s: it asks nobody on the network, and shows no progress."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield transformers
    del os.environ["HF_HUB_OFFLINE"]


@torch.no_grad()
def round_trip(transformers: Any, name: str, folder: Path) -> Case:
    kind, more = CASES[name]
    config = getattr(transformers, f"{kind}Config")(**TINY, max_position_embeddings=256, **more)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in theirs.parameters():  # also biases and norms, which would begin as zeros and ones
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + (parameter.dim() == 1))
    theirs.save_pretrained(folder / "in", max_shard_size=20_000)
    opened = ModelFolder(folder / "in")
    ours = Llama(opened.shape)
    for part_name, part in ours.named_children():
        opened.fill(part, part_name)
    write_hf(folder / "out", ours, "float32", {}, 256, None, 20_000)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "out").eval()
    return Case(theirs(IDS).logits, ours(IDS), again(IDS).logits, type(again).__name__)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks transformers so
@torch.no_grad()
def test_adapters_add_the_same_in_peft_and_merged(transformers: Any, tmp_path: Path) -> None:
    import peft

    round_trip(transformers, "qwen3", tmp_path)
    opened, lora = ModelFolder(tmp_path / "in"), Lora(rank=3, alpha=4.5, targets=("q_proj", "v_proj", "o_proj", "up_proj"))
    ours, merged = Llama(opened.shape), Llama(opened.shape)
    adapt(ours, lora)
    for model in (ours, merged):
        for part_name, part in model.named_children():
            opened.fill(part, part_name)
            initialise_adapters(part, part_name, 3)
    torch.testing.assert_close(ours(IDS), merged(IDS), rtol=0, atol=0)  # at first nothing is added
    adapters = {name: weight for name, weight in ours.named_parameters() if weight.requires_grad}
    generator = torch.Generator().manual_seed(2)
    for weight in adapters.values():
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    write_peft(tmp_path / "peft", opened.shape, lora, str(tmp_path / "in"), adapters, "float32")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    assert (ours(IDS) - merged(IDS)).abs().max() > 0.1
    torch.testing.assert_close(ours(IDS), theirs(IDS).logits, rtol=1e-5, atol=1e-5)
    merge(merged, adapters, lora)
    torch.testing.assert_close(merged(IDS), ours(IDS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_the_same_in_and_out(transformers: Any, name: str, tmp_path: Path) -> None:
    case = round_trip(transformers, name, tmp_path)
    assert case.theirs.abs().max() > 1
    torch.testing.assert_close(case.ours, case.theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case.again, case.theirs, rtol=0, atol=0)
    assert case.kind == f"{CASES[name][0].replace('Mistral', 'Llama')}ForCausalLM"


TINY_VIT = {"image_size": 12, "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


@torch.no_grad()
def test_logits_of_images_are_the_same_in_and_out(transformers: Any, tmp_path: Path) -> None:
    config = transformers.ViTConfig(**TINY_VIT, intermediate_size=40, num_labels=5, layer_norm_eps=1e-3)
    theirs, generator = transformers.ViTForImageClassification(config).eval(), torch.Generator().manual_seed(1)
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    theirs.save_pretrained(tmp_path / "in", max_shard_size=9_000)
    opened = VitFolder(tmp_path / "in")
    ours = Vit(opened.given.shape)
    for name, part in ours.named_children():
        opened.fill(part, name)
    write_vit(tmp_path / "out", ours, "float32", ("cat", "dog"), "imagenet", 9_000)
    again, found = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert len(opened.files.names) > 1 and not any(found.values()), found  # no key is missing, unexpected or of another shape
    images = torch.randn((2, 3, 12, 12), generator=generator)
    expected = theirs(images).logits
    assert expected.abs().max() > 1
    torch.testing.assert_close(ours(images), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(again.eval()(images).logits, expected, rtol=0, atol=0)
    assert again.config.id2label == {0: "cat", 1: "dog", 2: "LABEL_2", 3: "LABEL_3", 4: "LABEL_4"}


@torch.no_grad()
def test_a_model_of_images_without_a_head_is_read_but_for_its_pooler(transformers: Any, tmp_path: Path) -> None:
    theirs = transformers.ViTModel(transformers.ViTConfig(**TINY_VIT, intermediate_size=40)).eval()
    theirs.save_pretrained(tmp_path / "in")
    opened = VitFolder(tmp_path / "in")
    ours = Vit(replace(opened.given.shape, classes=24))
    for name, part in ours.named_children():
        if name != "head":
            opened.fill(part, name)
    ours.head.weight.copy_(torch.eye(24))
    ours.head.bias.zero_()
    images = torch.randn((2, 3, 12, 12), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(images), theirs(images).last_hidden_state[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalise", ["half", "imagenet"])
def test_images_are_prepared_there_as_they_are_scored_here(transformers: Any, normalise: Normalise, tmp_path: Path) -> None:
    """A wide one, of which only the middle is seen."""
    shape = VitShape(image=12, patch=4, dim=24, layers=2, heads=4, classes=5)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor_of(shape, normalise)))
    image, written = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)), BytesIO()
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"]
    image.save(written, "png")
    row = torch.zeros((1, words_of(12)), dtype=torch.int64)
    fill(row[0].numpy(), 0, 0, decoded(Sample(0, "a", {"png": written.getvalue()}), 12, boxes.middle))
    ours, _ = ImageClasses(side=12, normalise=normalise, smoothing=0.0).parts(row)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
