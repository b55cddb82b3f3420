"""Text from a saved model, through the command that the platform runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from phalanx.core.errors import CheckpointError, UserError
from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.data import tokens
from phalanx.job.data.tokens import END_OF_DOCUMENT
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.serve.sample import load_model, sample
from tests.job.serve.conftest import SHAPE


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-W", "error", "-m", "phalanx.job.serve.sample", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_the_command_prints_only_the_text(folder: Path) -> None:
    digest = json.loads((folder / "config.json").read_text())["weights_digest"]
    ran = command(str(folder), "--prompt", "def ", "--tokens", "20", "--seed", "3", "--digest", digest)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == sample(folder, "def ", 20, seed=3, temperature=0.8) + "\n"
    assert ran.stdout.startswith("def ")


def test_a_wrong_digest_is_one_line_and_exit_code_2(folder: Path) -> None:
    ran = command(str(folder), "--prompt", "x", "--digest", "0" * 64)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Error: weights is") and ran.stderr.count("\n") == 1


def test_the_seed_decides_and_temperature_zero_needs_none(folder: Path) -> None:
    texts = [sample(folder, "def", 12, seed, 1.0) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert sample(folder, "def", 12, 1, 0.0) == sample(folder, "def", 12, 2, 0.0)


def test_text_longer_than_the_trained_sequence_goes_on(folder: Path) -> None:
    assert len(sample(folder, "a long prompt that has more tokens than eight", 30, 0, 0.0)) > 45


@pytest.mark.parametrize(
    ("changed", "named"), [({"prompt": ""}, "prompt"), ({"num_tokens": 0}, "tokens"), ({"temperature": -1.0}, "temperature")]
)
def test_impossible_arguments_name_themselves(folder: Path, changed: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {"prompt": "x", "num_tokens": 1, "seed": 0, "temperature": 1.0} | changed
    with pytest.raises(UserError, match=f"^{named}: "):
        sample(folder, **arguments)  # type: ignore[arg-type]  # values of several types on purpose


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        load_model(folder / "nowhere")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="its digest is"):
        load_model(folder)
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="not a whole saved model"):
        load_model(folder)
    weights.write_bytes(whole)
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace('"e":', '"\u0101":', 1))
    with pytest.raises(CheckpointError, match=r"^tokenizer: .*its SHA-256 is"):
        load_model(folder)


def test_a_mixture_whose_places_of_experts_are_none_is_refused(folder: Path) -> None:
    shape = {**SHAPE, "experts": 4, "expert_ffn_dim": 8}
    tensors = Llama(LlamaShape(**shape)).state_dict()
    tensors["blocks.0.feed.slots"] = torch.tensor([2, 0, 3, 3])
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"shape": shape, "weights_digest": weights_digest(tensors)}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="do not name each expert once"):
        load_model(folder)


def test_an_end_mark_written_in_a_prompt_stays_text_as_in_training(folder: Path) -> None:
    _, tokenizer, _ = load_model(folder)
    ids = tokens.encode(tokenizer, [END_OF_DOCUMENT])[0]
    assert tokens.end_id(tokenizer) not in ids
    assert sample(folder, END_OF_DOCUMENT, 3, 0, 0.0).startswith(END_OF_DOCUMENT)


def test_weights_of_another_shape_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["shape"]["ffn_dim"] = 32
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"do not fit config\.json"):
        load_model(folder)


def test_the_digest_sees_names_dtypes_shapes_and_bytes() -> None:
    base = torch.arange(6.0)
    digests = {
        weights_digest({"a": base}),
        weights_digest({"b": base}),
        weights_digest({"a": base.view(2, 3)}),
        weights_digest({"a": base.view(torch.int32)}),
        weights_digest({"a": base + 0.1}),
    }
    assert len(digests) == 5
    assert weights_digest({"a": base, "b": base}) == weights_digest({"b": base, "a": base.clone()})
