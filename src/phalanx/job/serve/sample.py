"""`python -m phalanx.job.serve.sample MODEL_FOLDER --prompt TEXT`: text from a saved model; only the text goes to stdout."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from phalanx.core.errors import CheckpointError, PhalanxError, UserError
from phalanx.job.data import tokens
from phalanx.job.models.llama import Llama, LlamaShape
from phalanx.job.models.moe.mixture import are_places, mixtures
from phalanx.job.serve.saved import merged, open_saved

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENS_MAX = 100_000


def load_model(folder: Path, digest: str = "") -> tuple[Llama, "Tokenizer", int]:
    """Model, tokenizer and trained sequence length of a saved folder; adapters are merged into the weights they were trained on.

    Raises CheckpointError when a file is missing or damaged, or when the weights are not those of `digest` (when given, else of
    the folder's own), DataError when the tokenizer cannot be read.
    """
    saved = open_saved(folder, digest)
    model = _filled(folder, saved.shape, saved.tensors) if saved.adapter is None else merged(saved)
    return model, tokens.load(folder / "tokenizer.json"), saved.sequence


def _filled(folder: Path, shape: LlamaShape, tensors: Mapping[str, torch.Tensor]) -> Llama:
    with torch.device("meta"):
        model = Llama(shape)
    try:
        model.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            "model", str(folder), f"weights do not fit config.json: {str(error).splitlines()[-1].strip()}"
        ) from error
    if not all(are_places(mixture.slots) for mixture in mixtures(model)):
        raise CheckpointError("model", str(folder), "its .slots do not name each expert once; take the model from a copy")
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
