"""`python -m phalanx.job.serve.sample MODEL_FOLDER --prompt TEXT`: text from a saved model; only the text goes to stdout."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from phalanx.core import wire
from phalanx.core.errors import CheckpointError, PhalanxError, UserError
from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.data import tokens
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.storage.hashes import sha256_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENS_MAX = 100_000


def load_model(folder: Path, digest: str = "") -> tuple[Llama, "Tokenizer", int]:
    """Model, tokenizer and trained sequence length of a saved folder.

    Raises CheckpointError when a file is missing or damaged, or when the weights are not those of `digest` (when given, else of
    the folder's own), DataError when the tokenizer cannot be read.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shape: LlamaShape = wire.build(LlamaShape, config["shape"])
        sequence = int(config["config"]["sequence"])
        own = str(config["weights_digest"])
        own_tokenizer = str(config["tokenizer_sha256"])
        tensors = load_file(folder / "model.safetensors")
        found_tokenizer = sha256_file(folder / "tokenizer.json")
    except OSError as error:
        raise CheckpointError("model", str(folder), f"{error.filename or folder}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError("model", str(folder), f"is not a whole saved model: {error}") from error
    found = weights_digest(tensors)
    if found != (digest or own):
        fix = f"its digest is {found} and not {digest or own}: the file is damaged, or another model's; take the model from a copy"
        raise CheckpointError("weights", str(folder / "model.safetensors"), fix)
    if found_tokenizer != own_tokenizer:
        fix = f"its SHA-256 is {found_tokenizer} and not {own_tokenizer}: the file is damaged; take the model from a copy"
        raise CheckpointError("tokenizer", str(folder / "tokenizer.json"), fix)
    return _filled(folder, shape, tensors), tokens.load(folder / "tokenizer.json"), sequence


def _filled(folder: Path, shape: LlamaShape, tensors: dict[str, torch.Tensor]) -> Llama:
    with torch.device("meta"):
        model = Llama(shape)
    try:
        model.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            "model", str(folder), f"weights do not fit config.json: {str(error).splitlines()[-1].strip()}"
        ) from error
    return model.eval()


@torch.no_grad()
def generate(model: Llama, prompt: list[int], num_tokens: int, sequence: int, temperature: float, seed: int) -> list[int]:
    """`num_tokens` ids after `prompt`, each drawn given at most the last `sequence`; temperature 0 takes the likeliest."""
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    for _ in range(num_tokens):
        logits_v = model(torch.tensor([ids[-sequence:]]))[0, -1].float()
        if temperature == 0:
            ids.append(int(logits_v.argmax()))
        else:
            ids.append(int(torch.multinomial(torch.softmax(logits_v / temperature, dim=-1), 1, generator=generator)))
    return ids[len(prompt) :]


def sample(folder: Path, prompt: str, num_tokens: int, seed: int, temperature: float, digest: str = "") -> str:
    """The prompt and what the model writes after it. Raises UserError for an argument that cannot work, CheckpointError."""
    if not 0 < num_tokens <= _TOKENS_MAX:
        raise UserError("tokens", num_tokens, f"write a whole number from 1 to {_TOKENS_MAX}")
    if not 0 <= temperature < float("inf"):
        raise UserError("temperature", temperature, "write a number from 0 (always the likeliest token) upwards")
    model, tokenizer, sequence = load_model(folder, digest)
    ids = tokens.encode(tokenizer, [prompt])[0]
    if not ids:
        raise UserError("prompt", prompt, "write at least one character")
    return str(tokenizer.decode(ids + generate(model, ids, num_tokens, sequence, temperature, seed)))


def main(arguments: list[str]) -> int:
    """The exit code; an error is one line on stderr."""
    parser = argparse.ArgumentParser(prog="phalanx.job.serve.sample", description="Text from a saved model.")
    parser.add_argument("folder", type=Path, help="the saved model's folder")
    parser.add_argument("--prompt", required=True, help="text to go on from")
    parser.add_argument("--tokens", type=int, default=64, help="how many to write")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token")
    parser.add_argument("--digest", default="", help="what the weights must be")
    given = parser.parse_args(arguments)
    try:
        text = sample(given.folder, given.prompt, given.tokens, given.seed, given.temperature, given.digest)
    except PhalanxError as error:
        sys.stderr.write(f"Error: {error.sentence()}\n")
        return int(error.exit_code)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
