"""`python -m phalanx.job.serve.export MODEL_FOLDER --to FOLDER`: a saved model as a folder that Hugging Face's libraries read."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.core.errors import PhalanxError, UserError
from phalanx.core.recipe import reads_images
from phalanx.job.data import tokens
from phalanx.job.models.hf_export import ExportDtype, write_hf, write_peft
from phalanx.job.models.model_config import CONFIG, carried, context_of, read_json
from phalanx.job.models.vit_export import write_vit
from phalanx.job.serve.sample import load_model
from phalanx.job.serve.saved import open_saved
from phalanx.job.serve.saved_vit import load_vit

TOKENIZER: Final = "tokenizer.json"


def export(folder: Path, to: Path, dtype: ExportDtype = "float32", digest: str = "") -> None:
    """Adapters are merged first. Raises CheckpointError for a damaged model or weights that are not those of `digest`, and as
    `write_hf` does."""
    if _is_of_images(folder):
        saved = load_vit(folder, digest)
        write_vit(to, saved.model, dtype, saved.names, saved.normalise)
        return
    model, _, sequence = load_model(folder, digest)
    end, context = end_token(folder), context_of(folder, sequence)
    beside = {**tokenizer_files(folder, end, context), **carried(folder)}
    write_hf(to, model, dtype, beside, context, end[1] if end else None)


def export_adapters(folder: Path, to: Path, dtype: ExportDtype = "float32", digest: str = "") -> None:
    """As PEFT reads them. Raises UserError for a model without adapters, and as `export` does."""
    if _is_of_images(folder):
        raise UserError("--format", "peft", f"the model in {folder} is of images, which has no adapters; write hf")
    saved = open_saved(folder, digest)
    if saved.adapter is None:
        raise UserError("--format", "peft", f"the model in {folder} has no adapters, all its weights were trained; write hf")
    write_peft(to, saved.shape, saved.adapter.lora, saved.adapter.base, saved.tensors, dtype)


def _is_of_images(folder: Path) -> bool:
    return reads_images(read_json(folder / CONFIG).get("recipe"))


def end_token(folder: Path) -> tuple[str, int] | None:
    """Of the document's end: what the run's data had, else the usual one where the tokenizer has it."""
    said = read_json(folder / "config.json").get("end_of_document")
    tokenizer = tokens.load(folder / TOKENIZER)
    number: int | None = said if isinstance(said, int) else tokenizer.token_to_id(tokens.END_OF_DOCUMENT)
    text = None if number is None else tokenizer.id_to_token(number)
    return None if number is None or text is None else (text, number)


def tokenizer_files(folder: Path, end: tuple[str, int] | None, context: int) -> Mapping[str, bytes]:
    """As `AutoTokenizer` reads them."""
    said: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    if end is not None:
        said["eos_token"] = end[0]
    return {TOKENIZER: (folder / TOKENIZER).read_bytes(), "tokenizer_config.json": json.dumps(said, indent=2).encode() + b"\n"}


def main(arguments: list[str]) -> int:
    """The exit code; an error is one line on stderr."""
    parser = argparse.ArgumentParser(prog="phalanx.job.serve.export", description="A saved model for Hugging Face's libraries.")
    parser.add_argument("folder", type=Path, help="the saved model's folder")
    parser.add_argument("--to", type=Path, required=True, help="the folder to make")
    parser.add_argument("--format", choices=("hf", "peft"), default="hf", help="for which libraries")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    parser.add_argument("--digest", default="", help="what the weights must be")
    given = parser.parse_args(arguments)
    try:
        act = export_adapters if given.format == "peft" else export
        act(given.folder, given.to, given.dtype, given.digest)
    except PhalanxError as error:
        sys.stderr.write(f"Error: {error.sentence()}\n")
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
