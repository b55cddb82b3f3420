"""A model folder as the trainer writes it, for whoever reads one."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.data.tokens import END_OF_DOCUMENT
from phalanx.job.models.llama import Llama, LlamaShape, initialise
from phalanx.storage.hashes import sha256_file

SHAPE: dict[str, Any] = {"vocab": 300, "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 24}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as the trainer writes it, untrained."""
    model = Llama(LlamaShape(**SHAPE))
    for name, part in model.named_children():
        initialise(part, name, 0, 0.5)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END_OF_DOCUMENT], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["def main"], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {
        "format": 1, "shape": SHAPE, "config": {"sequence": 8}, "weights_digest": weights_digest(tensors),
        "tokenizer_sha256": sha256_file(tmp_path / "tokenizer.json"),
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path
